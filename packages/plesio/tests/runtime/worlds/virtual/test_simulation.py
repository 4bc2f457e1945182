"""Sessions on virtual workers: the same results every time, the laws of the policies, and what faults do."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.errors import ConfigError, WorkerLostError
from plesio.core.results import read_results
from plesio.cost.cluster import Cluster, parse_cluster
from plesio.cost.faults import Fault
from plesio.cost.host_costs import HostCosts
from plesio.cost.step_time import LogNormal
from plesio.policies import parse_policy
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

NUM_SAMPLES = 96
POLICIES = ["bsp", "bsp,exchange=store", "bsp,backup=1", "ssp:2", "asp", "asp,weight=inverse", "local_sgd:4",
            "local_sgd:4,delay=2",
            "local_sgd:4,exchange=store", "ssp:4,update=delta"]  # fmt: skip


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(NUM_SAMPLES, 6, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True).tanh())


def build(*, dropout: float = 0.0, batch_norm: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    norm = nn.BatchNorm1d(8) if batch_norm else nn.Identity()
    model = nn.Sequential(nn.Linear(6, 8), norm, nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def held_out_loss(model: nn.Module) -> float:
    x, y = data().tensors
    return float(F.mse_loss(model(x), y))


@dataclass(frozen=True)
class Worker:
    """The program of each worker."""

    policy: str
    epochs: int = 2
    batch_size: int = 4
    cv: float = 0.3
    trace: Path | None = None
    loader_workers: int = 0
    elastic: bool = True
    shape: dict[str, Any] = field(default_factory=dict)

    def __call__(self, job: VirtualJob) -> dict[str, torch.Tensor]:
        model, optimizer = build(**self.shape)
        torch.manual_seed(100 + job.place.rank)
        step_time = LogNormal(mean_s=0.02, cv=self.cv)
        pacer = Pacer(step_time=step_time, seed=0, worker=job.place.rank, clock=job.clock)
        options = plesio.JoinOptions(pacer=pacer, elastic=self.elastic)
        with plesio.join(model, optimizer, policy=self.policy, trace=self.trace, options=options) as session:
            for _ in range(self.epochs):
                loader = DataLoader(data(), batch_size=self.batch_size, shuffle=True, num_workers=self.loader_workers)
                for x, y in session.shard(loader):
                    loss = F.mse_loss(model(x), y)
                    loss.backward()
                    session.step(loss)
            session.finish(lambda: held_out_loss(model))
        return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def run(worker: Worker, *, num_workers: int = 4, **options: Any) -> Simulation[dict[str, torch.Tensor]]:
    options.setdefault("cluster", parse_cluster("4x1gbe") if num_workers <= 4 else Cluster.one_host(num_workers))
    return simulate(worker, num_workers=num_workers, **options)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", POLICIES)
def test_equal_arguments_give_equal_parameters_traces_and_results(policy: str, tmp_path: Path):
    shape = {"dropout": 0.2, "batch_norm": True}
    once, again = (run(Worker(policy, trace=tmp_path / name, shape=shape)) for name in ("one", "two"))
    for mine, theirs in zip(once.values(), again.values(), strict=True):
        assert mine is not None
        assert theirs is not None
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert once.runs == again.runs
    assert files(tmp_path / "one") == files(tmp_path / "two")
    [result] = once.runs
    assert result == read_results(tmp_path / "one" / "results.json")[0]
    assert (result.world, result.status, result.samples) == ("virtual", "finished", 2 * NUM_SAMPLES)
    assert result.virtual_s == result.wall_s > 0
    assert result.final_metric is not None
    assert result.max_lead <= parse_policy(policy).bound


def test_loader_processes_change_nothing_for_a_synchronous_policy():
    plain, parallel = (run(Worker("bsp", loader_workers=number), num_workers=2) for number in (0, 1))
    assert plain.runs[0].parameters_sha256 == parallel.runs[0].parameters_sha256


def test_store_goes_on_without_a_lost_worker_and_trains_on_every_sample():
    simulation = run(Worker("asp"), faults=[Fault(at_s=0.1, kind="lose", worker=2)])
    [result] = simulation.runs
    assert result.status == "finished"
    assert result.lost_workers == (2,)
    assert result.samples >= 2 * NUM_SAMPLES
    assert simulation.outcomes[2].value is None
    assert simulation.outcomes[2].error is None


def test_collective_ends_with_the_lost_rank_named():
    simulation = run(Worker("bsp", elastic=False), faults=[Fault(at_s=0.1, kind="lose", worker=1)])
    for rank in (0, 2, 3):
        error = simulation.outcomes[rank].error
        assert isinstance(error, WorkerLostError)
        assert error.ranks == (1,)
    assert simulation.runs[0].status == "failed"


def test_a_worker_joins_while_the_run_goes_on():
    simulation = run(Worker("asp", epochs=6), faults=[Fault(at_s=0.2, kind="join")])
    [result] = simulation.runs
    assert [worker.worker for worker in result.workers] == [0, 1, 2, 3, 4]
    assert result.workers[4].steps > 0
    assert result.samples == 6 * NUM_SAMPLES


def test_a_slower_network_and_fewer_cores_take_longer():
    worker = Worker("bsp", cv=0.0)
    own = run(worker, cluster=Cluster.one_host(4)).runs[0].wall_s
    shared = run(worker, cluster=replace(Cluster.one_host(4), cores_per_host=2)).runs[0].wall_s
    network = run(worker, cluster=parse_cluster("4x1gbe")).runs[0].wall_s
    steps = 2 * NUM_SAMPLES / 16
    assert own == pytest.approx(steps * 0.02, rel=0.05)
    assert shared == pytest.approx(2 * steps * 0.02, rel=0.05)
    assert own < network


def test_an_error_in_the_users_code_is_the_users_own():
    def main(job: VirtualJob) -> None:
        model, optimizer = build()
        with plesio.join(model, optimizer, policy="bsp") as session:
            for x, _ in session.shard(DataLoader(data(), batch_size=4, shuffle=True)):
                if job.place.rank == 1 and session.clock == 2:
                    raise KeyError("mine")
                model(x).sum().backward()
                session.step()

    with pytest.raises(KeyError, match="mine"):
        simulate(main, num_workers=2, cluster=Cluster.one_host(2)).values()


def test_no_room_is_one_clear_line():
    with pytest.raises(ConfigError, match="room for 4 workers"):
        run(Worker("bsp"), num_workers=5, cluster=parse_cluster("4x1gbe"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_bytes_from_rack_to_rack_are_counted(policy: str):
    apart, together = (
        run(Worker(policy, epochs=1), num_workers=16, cluster=parse_cluster(name)).runs[0]
        for name in ("2-racks", "16x10gbe")
    )
    assert 0 < apart.bytes_sent_cross_rack < apart.bytes_sent_total
    assert together.bytes_sent_cross_rack == 0
    assert apart.bytes_sent_total == pytest.approx(together.bytes_sent_total, rel=0.1)


def paced_s(*, cluster: Cluster, costs: HostCosts, step_s: float) -> float:
    """Virtual seconds of ten steps of four workers that exchange nothing."""

    def work(job: VirtualJob) -> None:
        for _ in range(10):
            job.clock.sleep_until_s(job.clock.now_s() + step_s)

    return simulate(work, num_workers=4, cluster=cluster, costs=costs).virtual_s


def test_on_few_cores_a_measured_gradient_takes_as_long_as_a_given_step():
    cluster = Cluster(name="two cores", hosts=1, workers_per_host=4, cores_per_host=2)
    given_s = paced_s(cluster=cluster, costs=HostCosts(), step_s=0.02)
    assert given_s == pytest.approx(10 * 0.02 * 4 / 2)
    assert paced_s(cluster=cluster, costs=HostCosts(gradient_s=0.02), step_s=0.02) == pytest.approx(given_s)
    assert paced_s(cluster=cluster, costs=HostCosts(gradient_s=0.03), step_s=0.02) == pytest.approx(1.5 * given_s)


def test_what_a_rehearsal_really_computes_shares_the_machines_cores():
    cluster = Cluster.one_host(4)
    costs = HostCosts(gradient_s=0.01, cores=2.0)
    # four gradients of 10 ms take two cores 20 ms: hidden in a step of 30 ms, and longer than one of 15 ms
    assert paced_s(cluster=cluster, costs=costs, step_s=0.03) == pytest.approx(10 * 0.03)
    assert paced_s(cluster=cluster, costs=costs, step_s=0.015) == pytest.approx(10 * 0.02)


@pytest.mark.parametrize("policy", ["bsp", "ssp:2", "delayed:1", "local_sgd:4,delay=2"])
def test_who_watches_may_stop_it_and_all_workers_end(policy: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("plesio.runtime.worlds.virtual.simulation.LOOK_S", 0.0)

    def work(job: VirtualJob) -> None:
        model = nn.Linear(2, 1)
        data = TensorDataset(torch.ones(4096, 2))
        with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.01), policy=policy) as session:
            for (batch,) in session.shard(DataLoader(data, batch_size=4, shuffle=True)):
                loss = model(batch).square().mean()
                loss.backward()
                session.step(loss)

    stopped = simulate(work, num_workers=3, cluster=Cluster.one_host(3), stop=lambda progress: progress.steps >= 30)
    assert stopped.stopped
    assert [type(outcome.error) for outcome in stopped.outcomes.values()].count(KeyboardInterrupt) > 0
    assert 30 <= stopped.runs[0].steps < 900
    assert stopped.runs[0].status != "finished"
    assert not simulate(
        lambda job: None, num_workers=2, cluster=Cluster.one_host(2), stop=lambda progress: False
    ).stopped
