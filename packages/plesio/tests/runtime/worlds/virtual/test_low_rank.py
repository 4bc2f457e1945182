"""Runs that send gradients in low rank for a while: nothing is lost, and where it is chosen it saves time."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.step_time import Constant
from plesio.policies import Reviewed, read_log, verify
from plesio.policies.adaptive.system.setting import IN_LOW_RANK, SYNCHRONOUS, Sent, Setting
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.decisions import script, to_setting
from support.processes import on_processes
from support.workers import workers_of

NUM_WORKERS, NUM_STEPS, BATCH_SIZE, SIZE = 3, 60, 2, 80
ROUNDED = Setting.of(period=1, delay=0, sent=Sent.ROUNDED)
CHOSEN = "adaptive,price=1,store=off"
"""Local steps are out of the question, as for an optimizer to which a worker's own batch is nearly all noise."""
SWITCHES = f"switch:{IN_LOW_RANK.spec}/bsp@20/{IN_LOW_RANK.spec}@30/local_sgd:4@40"


class Slope(nn.Module):
    """Its loss is linear in a matrix and a vector: gradients are of full rank, and the same wherever it is."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.zeros(SIZE, SIZE))
        self.vector = nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, 1:] * self.matrix).sum((1, 2)) + x[:, 0] @ self.vector


def train(policy: str, *, pacer: Pacer | None = None, trace: Path | None = None) -> Tensor:
    """Train, and return a worker's final parameters."""
    generator = torch.Generator().manual_seed(4)
    data = TensorDataset(torch.randn(NUM_WORKERS * BATCH_SIZE * NUM_STEPS, SIZE + 1, SIZE, generator=generator))
    model = Slope()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with plesio.join(
        model, optimizer, policy=policy, trace=trace, options=plesio.JoinOptions(pacer=pacer, info=RunInfo(seed=7))
    ) as session:
        for (x,) in session.shard(DataLoader(data, batch_size=BATCH_SIZE, shuffle=True)):
            loss = model(x).mean()
            loss.backward()
            session.step(loss)
    return torch.cat([model.matrix.detach().view(-1), model.vector.detach()])


def run(policy: str, *, bytes_per_s: float = 1e9, trace: Path | None = None) -> Simulation[Tensor]:
    def work(job: VirtualJob) -> Tensor:
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=5, worker=job.place.rank, clock=job.clock)
        return train(policy, pacer=pacer, trace=trace)

    nic = Link(latency_s=1e-5, bytes_per_s=bytes_per_s)
    cluster = Cluster(name="slow", hosts=NUM_WORKERS, workers_per_host=1, cores_per_host=1, nic=nic)
    return simulate(work, num_workers=NUM_WORKERS, cluster=cluster)


def assert_lost_nothing(found: Sequence[Tensor], *, tolerance: float) -> None:
    """All updates are in the parameters, though some were not sent in the step that they belong to."""
    [wanted, *_] = workers_of(run("bsp"))
    assert float(wanted.abs().max()) > 20 * tolerance
    for parameters in found:
        torch.testing.assert_close(parameters, wanted, rtol=0, atol=tolerance)


def test_a_switch_away_from_low_rank_loses_no_update() -> None:
    simulation = run(SWITCHES)
    assert_lost_nothing(workers_of(simulation), tolerance=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        pytest.param((IN_LOW_RANK, SYNCHRONOUS), 1e-5, id="to bsp"),
        pytest.param((IN_LOW_RANK, Setting.of(period=4, delay=2), IN_LOW_RANK), 1e-5, id="to local steps, and back"),
        pytest.param((ROUNDED, IN_LOW_RANK, ROUNDED), 4e-3, id="to rounding"),
        pytest.param((SYNCHRONOUS, IN_LOW_RANK), 1e-5, id="to the end"),
    ],
)
def test_an_adaptive_run_that_leaves_low_rank_loses_no_update(
    settings: Sequence[Setting], tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding is right in the mean alone."""
    script(monkeypatch, *map(to_setting, settings))
    simulation = run("adaptive")
    assert [one["policy"] for one in simulation.runs[0].decisions] == [setting.spec for setting in settings]
    assert_lost_nothing(workers_of(simulation), tolerance=tolerance)


def test_it_sends_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or nothing is left out that could be lost. Reviews are sent as well."""
    in_full = run("adaptive,compress=off").runs[0]
    script(monkeypatch, to_setting(IN_LOW_RANK))
    assert run("adaptive").runs[0].bytes_sent_total < 0.5 * in_full.bytes_sent_total


def train_on_process(*, policy: str) -> list[float]:
    return train(policy).tolist()


def test_on_processes_nothing_is_lost_either() -> None:
    found = on_processes(NUM_WORKERS, __file__, "train_on_process", policy=SWITCHES)
    assert_lost_nothing(list(map(torch.tensor, found)), tolerance=1e-5)


def test_it_is_chosen_on_a_slow_network_alike_to_the_bit_and_its_log_replays(tmp_path: Path) -> None:
    """An exchange in full takes 0.35 s, a rounded one 0.09 s, and one of rank 4 0.04 s."""
    low, again, rounded = (
        run(policy, bytes_per_s=1e5, trace=tmp_path / name)
        for name, policy in (("low", CHOSEN), ("again", CHOSEN), ("rounded", f"{CHOSEN},compress=off"))
    )
    assert "powersgd" in low.runs[0].decisions[-1]["policy"]
    assert low.runs[0].decisions == again.runs[0].decisions
    for one, other in zip(workers_of(low), workers_of(again), strict=True):
        assert torch.equal(one, other)
    log = read_log(tmp_path / "low" / "events.jsonl")
    assert verify(log) is None
    [told] = {entry.event.low_rank_share for entry in log.entries if isinstance(entry.event, Reviewed)}
    assert told == pytest.approx((4 * (SIZE + SIZE) + SIZE) / (SIZE * SIZE + SIZE))
    assert not any("powersgd" in one["policy"] for one in rounded.runs[0].decisions)
    assert low.runs[0].wall_s < rounded.runs[0].wall_s
