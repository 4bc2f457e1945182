"""fsdp and torch's hooks between virtual workers: the numbers, the times of their collectives, and what is refused."""

from pathlib import Path

import pytest
import torch
from torch import nn

import plesio
from plesio.core.errors import ConfigError, ExchangeError, TaskError, WorkerLostError
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.link import Link
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.noted_training import run
from support.workers import workers_of

NUM_RANKS, WIDTH, DEPTH, STEPS = 4, 64, 3, 5
LATENCY_S, BYTES_PER_S = 1e-3, 1e6
CLUSTER = Cluster(
    name="four",
    hosts=NUM_RANKS,
    workers_per_host=1,
    cores_per_host=1,
    nic=Link(latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S),
    collectives="nccl",
)


class Tower(nn.Module):
    """Blocks, and a root with as many parameters as one of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def train(job: VirtualJob, policy: str, num_steps: int) -> list[torch.Tensor]:
    model = Tower()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(job=job)) as session:
        for step in range(num_steps):
            generator = torch.Generator().manual_seed(10 * step + session.rank)
            model(torch.randn(4, WIDTH, generator=generator)).square().mean().backward()
            session.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def trained(policy: str, *, num_steps: int) -> Simulation[list[torch.Tensor]]:
    return simulate(lambda job: train(job, policy, num_steps), cluster=CLUSTER, num_workers=NUM_RANKS)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_numbers_are_those_of_bsp_to_the_bit(batch_norm: bool):
    plain, cut = (workers_of(run(policy, batch_norm=batch_norm)) for policy in ("bsp", "fsdp"))
    for mine, theirs in zip(cut, plain, strict=True):
        torch.testing.assert_close(mine.final, theirs.final, rtol=1e-12, atol=1e-14)
        assert mine.batches == theirs.batches
        assert torch.equal(mine.final, cut[0].final)


def test_a_step_has_the_collectives_of_fsdp():
    """Each block has two gatherings and a scattering, the root one of each; each is a ring."""
    short, long = trained("fsdp", num_steps=1), trained("fsdp", num_steps=1 + STEPS)
    part = WIDTH // NUM_RANKS * (WIDTH + 1) * 4
    collectives = 3 * DEPTH + 2
    sent = long.runs[0].bytes_sent["collective"] - short.runs[0].bytes_sent["collective"]
    assert sent == NUM_RANKS * STEPS * collectives * (NUM_RANKS - 1) * part
    step_s = collectives * (NUM_RANKS - 1) * (LATENCY_S + part / BYTES_PER_S)
    assert long.virtual_s - short.virtual_s == pytest.approx(STEPS * step_s, rel=0.02)


def test_a_tower_trains_as_under_bsp():
    plain, cut = (workers_of(trained(policy, num_steps=STEPS))[0] for policy in ("bsp", "fsdp"))
    for mine, theirs in zip(cut, plain, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_casting_hooks_are_the_compression():
    for form in ("fp16", "bf16"):
        hooked, compressed = run(f"bsp,hook={form}").runs[0], run(f"bsp,compress={form}").runs[0]
        assert hooked.parameters_sha256 == compressed.parameters_sha256
        assert hooked.bytes_sent == compressed.bytes_sent
        assert hooked.policy == f"bsp,hook={form}"


@pytest.mark.parametrize("policy", ["bsp,hook=powersgd:2", "post_local_sgd:4"])
def test_what_is_torchs_own_code_is_refused(policy: str):
    with pytest.raises(ExchangeError, match="runs on real processes alone"):
        run(policy).values()


def test_blocks_that_are_not_there_are_refused():
    with pytest.raises(TaskError, match='no module of the model is a "encoder"'):
        run("fsdp,blocks=encoder").values()


def test_a_loss_ends_the_run():
    fault = Fault(kind="lose", worker=1, at_s=3.0)
    simulation = simulate(lambda job: train(job, "fsdp", 50), cluster=CLUSTER, num_workers=NUM_RANKS, faults=[fault])
    with pytest.raises(WorkerLostError, match="worker 1 was lost"):
        simulation.values()


def test_with_copies_the_others_go_on():
    fault = Fault(kind="lose", worker=1, at_s=3.0)
    simulation = simulate(
        lambda job: train(job, "fsdp,mirror=2", 50), cluster=CLUSTER, num_workers=NUM_RANKS, faults=[fault]
    )
    ends = [one for one in simulation.values() if one is not None]
    assert simulation.runs[0].lost_workers == (1,)
    assert all(torch.equal(mine, other) for one in ends for mine, other in zip(one, ends[0], strict=True))


@pytest.mark.parametrize("saves", [False, True])
def test_copies_that_nothing_would_use_are_refused(tmp_path: Path, saves: bool):
    def work(job: VirtualJob) -> None:
        model, options = Tower(), plesio.JoinOptions(job=job, elastic=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plesio.join(model, optimizer, policy="fsdp,mirror=1", checkpoint=tmp_path if saves else None, options=options)

    with pytest.raises(ConfigError, match=r"^fsdp,mirror=1: .* elastic=False ends the run then; leave out one"):
        simulate(work, cluster=CLUSTER, num_workers=NUM_RANKS).values()


def test_a_copy_sends_the_parts_of_parameters_and_moments():
    plain, mirrored = (trained(policy, num_steps=STEPS).runs[0] for policy in ("fsdp", "fsdp,mirror=1"))
    more = mirrored.bytes_sent["collective"] - plain.bytes_sent["collective"]
    assert more == pytest.approx(STEPS * 3 * 4 * sum(parameter.numel() for parameter in Tower().parameters()), rel=0.02)
