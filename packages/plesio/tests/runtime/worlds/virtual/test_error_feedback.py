"""Compression loses for good without error feedback, and not with it (Karimireddy et al. 2019)."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.cost.cluster import Cluster
from plesio.protocol.figures import RunInfo
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

NUM_SAMPLES, NUM_WORKERS = 120, 3


def loss_of(policy: str) -> float:
    """Return the loss of the final parameters, on all samples, far into the training."""

    def work(job: VirtualJob) -> float:
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(NUM_SAMPLES, 40, generator=generator)
        y = x @ torch.linspace(-1, 1, 40).unsqueeze(1)
        model = nn.Linear(40, 1, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(info=RunInfo(seed=7))) as session:
            loader = DataLoader(TensorDataset(x, y), batch_size=5, shuffle=True)
            for inputs, targets in session.shard(loader, samples=20 * NUM_SAMPLES):
                (model(inputs) - targets).square().mean().backward()
                session.step()
        return float((model(x) - y).square().mean().detach())

    first, *_ = simulate(work, num_workers=NUM_WORKERS, cluster=Cluster.one_host(NUM_WORKERS)).values()
    assert first is not None
    return first


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("policy", "compress"),
    [
        ("bsp", "topk:0.05"),
        ("local_sgd:4", "topk:0.05"),
        ("asp", "topk:0.05"),
        ("ssp:4,update=delta", "topk:0.05"),
        pytest.param("bsp", "randk:0.1", marks=pytest.mark.slow),
    ],
)
def test_error_feedback_reaches_what_no_feedback_does_not(policy: str, compress: str):
    without, fed = (loss_of(f"{policy},compress={compress}{option}") for option in ("+no_feedback", ""))
    assert fed < without / 10
