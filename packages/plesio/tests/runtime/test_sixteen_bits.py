"""Models whose parameters have 16 bits, and autocast to bfloat16, under every policy and in both worlds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio
from plesio.cli.commands import invoke
from plesio.protocol.effects import ApplyOrder
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.server import payloads
from plesio.runtime.server.shard import Shard
from plesio.runtime.worker.exchange.replica import Replica
from runtime.half_precision_programs import (
    ALL,
    HALF,
    build,
    flat_of,
    loss_of,
    loss_with,
    on_processes,
    run,
    simulated,
)
from support.workers import workers_of

pytestmark = pytest.mark.timeout(120)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("policy", "num_workers"), ALL)
def test_models_of_16_bits_are_trained(policy: str, num_workers: int, dtype: str):
    workers = workers_of(simulated(policy, num_workers, dtype=dtype))
    assert loss_with(workers[0].final) < 0.5 * loss_with(flat_of(build()[0]))
    for worker in workers:
        assert worker.dtypes == [f"torch.{dtype}"]
        assert worker.refused == {}
    assert workers[0].sha256 is not None


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("policy", "num_workers"), ALL)
def test_autocast_to_bfloat16_needs_no_scaler(policy: str, num_workers: int):
    workers = workers_of(simulated(policy, num_workers, autocast="bfloat16"))
    assert loss_with(workers[0].final) < 0.5 * loss_with(flat_of(build()[0]))
    assert workers[0].refused == {}


def test_an_export_of_16_bits_loads_in_plain_torch(tmp_path: Path):
    model, optimizer = build("bfloat16", optimizer="adamw")
    with plesio.join(model, optimizer, checkpoint=tmp_path / "run", every="3 steps") as session:
        for _ in range(4):
            loss_of(model, torch.ones(2, 6), torch.ones(2, 1), autocast=None).backward()
            session.step()
    assert invoke(["checkpoint", "export", str(tmp_path / "run"), "--out", str(tmp_path / "model.pt")]) == 0
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    other, _ = build("bfloat16")
    other.load_state_dict(loaded["model"])
    assert {tensor.dtype for tensor in loaded["model"].values()} == {torch.bfloat16}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("policy", ["asp", "ssp:2,period=2", "bsp,exchange=store", "switch:bsp/asp@4/bsp@12"])
def test_servers_step_models_of_16_bits(policy: str, optimizer: str):
    workers = workers_of(run(policy, dtype="bfloat16", optimizer=optimizer))
    assert loss_with(workers[0].final) < 0.7 * loss_with(flat_of(build()[0]))


WIDTHS: list[tuple[str, dict[str, Any]]] = [
    (policy, {"dtype": dtype})
    for policy in ("bsp", "bsp,compress=powersgd:2", "delayed:1", "local_sgd:3", "ssp:2", "adaptive")
    for dtype in HALF
]


@pytest.mark.slow
def test_processes_train_models_of_16_bits():
    for (policy, options), found in zip(WIDTHS, on_processes(WIDTHS), strict=True):
        assert loss_with(found[0].final) < 0.5 * loss_with(flat_of(build()[0])), policy
        assert found[0].refused == {}
        assert found[0].dtypes == [f"torch.{options['dtype']}"]


def test_servers_add_up_what_16_bits_cannot():
    """Each update is a quarter of what bfloat16 resolves at 1."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    layout = SliceLayout.of(Replica(model, torch.optim.SGD(model.parameters())).tensors.exchanged(), num_servers=1)
    [slices] = layout.servers
    shard = Shard(slices, block=torch.ones(1, dtype=torch.bfloat16).view(torch.uint8), update="delta", optimizer=None)
    share = torch.tensor([2.0**-9], dtype=torch.bfloat16)
    for clock in range(1, 65):
        shard.push(0, clock=clock, payloads=[payloads.Payload(share.view(torch.uint8).numpy())], groups=None)
        shard.apply(ApplyOrder(updates=((0, clock),), weight=1.0, version=clock, num_live=1))
    assert shard.pull(None)[0].packed().view(torch.bfloat16).item() == 1.125
