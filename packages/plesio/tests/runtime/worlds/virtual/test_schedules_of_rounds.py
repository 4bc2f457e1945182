"""Schedulers that the session steps end where they would alone, however the samples are shared out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.progress import track
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import plesio
from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import LogNormal
from plesio.runtime.coordinator.leases import round_sizes
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.problems import Problem, perceptron
from support.workers import cluster_of_racks

EPOCHS, BATCH_SIZE, RATE = 3, 3, 0.05

MAKE: dict[str, Callable[[torch.optim.Optimizer, int], lr_scheduler.LRScheduler]] = {
    "cosine": lambda optimizer, steps: lr_scheduler.CosineAnnealingLR(optimizer, steps),
    "one cycle": lambda optimizer, steps: lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps),
    "warm-up": lambda optimizer, steps: lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / steps)),
    "sequence": lambda optimizer, steps: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 4), lr_scheduler.CosineAnnealingLR(optimizer, steps - 4)],
        [4],
    ),
}


@dataclass
class Worker:
    rates: list[float] = field(default_factory=list)
    began_at: int = 0
    last: float = 0.0


def steps_of(num_samples: int, num_workers: int, *, batches_a_step: int = 1) -> int:
    """Count the steps of a synchronous run."""
    rounds = len(list(round_sizes(num_samples, num_workers=num_workers, batch_size=BATCH_SIZE)))
    return EPOCHS * -(-rounds // batches_a_step)


def alone(kind: str, steps: int) -> list[float]:
    """The rates before each step, and after the last."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=RATE, momentum=0.9)
    scheduler, rates = MAKE[kind](optimizer, steps), [optimizer.param_groups[0]["lr"]]
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def run(
    policy: str,
    kind: str = "cosine",
    *faults: Fault,
    num_workers: int = 2,
    num_samples: int = 40,
    racks: Sequence[int] = (),
    batches_a_step: int = 1,
    equal: bool = False,
    **arguments: Any,
) -> Simulation[Worker]:
    def work(job: VirtualJob) -> Worker:
        saw, model = Worker(), perceptron(4, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
        mean_s, cv = (0.02, 0.0) if equal else (0.02 * (1 + job.place.rank % 3), 0.3)
        pacer = Pacer(step_time=LogNormal(mean_s=mean_s, cv=cv), seed=5, worker=job.place.rank, clock=job.clock)
        options = plesio.JoinOptions(pacer=pacer)
        with plesio.join(model, optimizer, policy=policy, options=options, **arguments) as session:
            saw.began_at = session.clock
            loader = DataLoader(Problem(num_samples, 4), batch_size=BATCH_SIZE, shuffle=True)
            session.schedule(MAKE[kind](optimizer, EPOCHS * -(-session.steps_per_epoch(loader) // batches_a_step)))
            for _ in range(EPOCHS):
                number = 0
                for number, (_, x, y) in enumerate(session.shard(loader), start=1):
                    (model(x) - y).square().mean().backward()
                    if number % batches_a_step == 0:
                        saw.rates.append(optimizer.param_groups[0]["lr"])
                        session.step()
                if number % batches_a_step:
                    saw.rates.append(optimizer.param_groups[0]["lr"])
                    session.step()
        saw.last = optimizer.param_groups[0]["lr"]
        return saw

    cluster = cluster_of_racks(racks) if racks else Cluster.one_host(num_workers)
    return simulate(work, num_workers=num_workers, cluster=cluster, faults=faults)


def _ended(simulation: Simulation[Worker]) -> list[Worker]:
    assert not any("has the learning rate" in line for run in simulation.runs for line in run.fallbacks)
    for outcome in simulation.outcomes.values():
        if outcome.error is not None:
            raise outcome.error
    return [outcome.value for outcome in simulation.outcomes.values() if outcome.value is not None]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("num_samples", [40, 37])
@pytest.mark.parametrize(("policy", "num_workers"), [("bsp", 1), ("bsp", 3), ("local_sgd:4", 2)])
def test_in_a_collective_the_clock_is_that_of_steps(policy: str, num_workers: int, num_samples: int, kind: str):
    rates = alone(kind, steps_of(num_samples, num_workers))
    for worker in _ended(run(policy, kind, num_workers=num_workers, num_samples=num_samples)):
        assert [*worker.rates, worker.last] == rates


@pytest.mark.parametrize(
    "policy",
    [
        "local_sgd:4,exchange=store",
        "local_sgd:4,delay=2,exchange=store",
        "diloco:4,exchange=store,quorum=2",
        "diloco:4,exchange=store,quorum=2,delay=2",
        "diloco:4,exchange=store,quorum=2,fragments=2",
        "diloco:4,exchange=store,quorum=2,steps=dynamic",
    ],
)
def test_a_schedule_moves_between_exchanges_with_the_store_too(policy: str):
    rates = alone("warm-up", steps_of(48, 2))
    for worker in _ended(run(policy, "warm-up", num_samples=48, equal=True)):
        assert [*worker.rates, worker.last] == rates


@pytest.mark.parametrize("fault", [Fault(at_s=0.21, worker=1, kind="lose"), Fault(at_s=0.21, kind="join")])
def test_it_moves_where_a_worker_is_lost_or_joins(fault: Fault):
    rates = alone("cosine", steps_of(80, 3))
    workers = _ended(run("diloco:4,exchange=store", "cosine", fault, num_workers=3, num_samples=80, equal=True))
    for worker in workers:
        places = [rates.index(rate) for rate in worker.rates]
        assert places == sorted(places), "the clock went back"
        assert worker.last == rates[-1]
    assert [rates.index(rate) for rate in workers[0].rates[:4]] == [0, 1, 2, 3]


@pytest.mark.parametrize("batches_a_step", [2, 4])
@pytest.mark.parametrize(("policy", "num_workers"), [("bsp", 1), ("bsp", 3), ("local_sgd:2", 2), ("delayed:1", 2)])
def test_gradients_of_several_batches_are_one_step_of_the_schedule(policy: str, num_workers: int, batches_a_step: int):
    """At the end of an epoch the rest is a step, as a loop that is left would have it alone."""
    rates = alone("one cycle", steps_of(40, num_workers, batches_a_step=batches_a_step))
    for worker in _ended(run(policy, "one cycle", num_workers=num_workers, batches_a_step=batches_a_step)):
        assert [*worker.rates, worker.last] == rates


@pytest.mark.parametrize("policy", ["asp", "bsp,exchange=store", "adaptive"])
def test_a_schedule_of_such_steps_ends_with_the_run(policy: str):
    rates = alone("cosine", steps_of(40, 3, batches_a_step=2))
    for worker in _ended(run(policy, num_workers=3, batches_a_step=2)):
        assert worker.last == rates[-1]
        places = [rates.index(rate) for rate in worker.rates]
        assert places[0] == 0
        assert places == sorted(places), "the clock went back"


@pytest.mark.parametrize("policy", ["bsp", "ssp:2", "diloco:4,exchange=store"])
def test_a_worker_that_joins_late_counts_such_steps_as_the_others_do(policy: str):
    """It comes when epochs are over in which it made no step, so it has not seen yet how many batches a step has."""
    simulation = run(policy, "cosine", Fault(at_s=0.34, kind="join"), num_samples=96, batches_a_step=2, equal=True)
    newcomer = simulation.outcomes[2].value
    assert newcomer is not None
    assert len(newcomer.rates) < 6, "it came in the last epoch"
    assert {worker.last for worker in _ended(simulation)} == {alone("cosine", steps_of(96, 2, batches_a_step=2))[-1]}


@pytest.mark.parametrize("num_samples", [40, 80])
def test_gradients_may_be_accumulated_from_one_epoch_to_the_next(num_samples: int):
    def work(job: VirtualJob) -> list[int]:
        model, counts, number = perceptron(4, 0), [], 0
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with plesio.join(model, optimizer, policy="bsp") as session:
            scheduler = lr_scheduler.StepLR(optimizer, 1)
            session.schedule(scheduler)
            for _ in range(4):
                for _, x, y in session.shard(DataLoader(Problem(num_samples, 4), batch_size=4)):
                    (model(x) - y).square().mean().backward()
                    number += 1
                    if number % 4 == 0:
                        session.step()
                        counts.append(scheduler.last_epoch)
        return counts

    simulation = simulate(work, num_workers=2, cluster=Cluster.one_host(2))
    steps = num_samples // 8
    assert [outcome.value for outcome in simulation.outcomes.values()] == [[*range(1, steps + 1)]] * 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["cosine", "one cycle"])
@pytest.mark.parametrize(
    ("policy", "racks"),
    [
        ("asp", ()),
        ("ssp:4", ()),
        ("bsp,exchange=store", ()),
        ("local_sgd:4,exchange=store", ()),
        ("hier:bsp/ssp:2", (2, 1)),
        ("switch:bsp/asp@8/bsp@25", ()),
        ("adaptive", ()),
    ],
)
def test_a_schedule_ends_with_the_run(policy: str, racks: Sequence[int], kind: str):
    steps = steps_of(40, 3)
    rates = alone(kind, steps)
    for worker in _ended(run(policy, kind, num_workers=3, racks=racks)):
        assert worker.last == rates[-1]
        assert worker.rates[0] == rates[0]
        assert set(worker.rates) <= set(rates), "a rate that no step has alone"
        places = [rates.index(rate) for rate in worker.rates]
        assert kind != "cosine" or places == sorted(places), "the clock went back"


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp", "adaptive"])
@pytest.mark.parametrize(
    "fault", [Fault(at_s=0.21, worker=1, kind="lose"), Fault(at_s=0.21, kind="join")], ids=["lost", "joins"]
)
def test_a_schedule_ends_with_a_run_that_a_worker_leaves_or_joins(policy: str, fault: Fault):
    rates = alone("cosine", steps_of(80, 3))
    workers = _ended(run(policy, "cosine", fault, num_workers=3, num_samples=80))
    assert len(workers) == (2 if fault.kind == "lose" else 4)
    assert {worker.last for worker in workers} == {rates[-1]}
    assert workers[-1].rates[1] < RATE or fault.kind == "lose", "it began anew"  # the first is of before its first step
    if policy in ("bsp", "local_sgd:4"):
        steps = {tuple(worker.rates[-5:]) for worker in workers}
        assert len(steps) == 1, "learning rates differ"


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_a_schedule_is_kept_by_checkpoints(policy: str, tmp_path: Path):
    rates = alone("one cycle", steps_of(40, 2))
    _ended(run(policy, "one cycle", checkpoint=tmp_path, every="5 steps", keep=20))
    for path in sorted(tmp_path.iterdir())[1::2]:
        for worker in _ended(
            run(policy, "one cycle", checkpoint=tmp_path / "again", every="99 steps", resume=str(path))
        ):
            assert worker.last == rates[-1]
            assert set(worker.rates) <= set(rates)
            assert worker.rates[0] != rates[0]


def test_a_loop_that_is_left_early_counts_as_far_as_it_went():
    def work(job: VirtualJob) -> list[int]:
        model, counts = perceptron(4, 0), []
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with plesio.join(model, optimizer, policy="bsp") as session:
            scheduler = lr_scheduler.StepLR(optimizer, 1)
            session.schedule(scheduler)
            for _ in range(2):
                for number, (_, x, y) in enumerate(session.shard(DataLoader(Problem(40, 4), batch_size=4)), start=1):
                    (model(x) - y).square().mean().backward()
                    session.step()
                    counts.append(scheduler.last_epoch)
                    if number == 3:
                        break
        return counts

    simulation = simulate(work, num_workers=2, cluster=Cluster.one_host(2))
    assert [outcome.value for outcome in simulation.outcomes.values()] == [[1, 2, 3, 4, 5, 6]] * 2


def test_without_shard_a_round_is_a_step_and_a_scheduler_has_one_master():
    model = perceptron(4, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    with plesio.join(model, optimizer) as session:
        session.schedule(scheduler)
        for _ in range(3):
            model(torch.ones(1, 4).double()).sum().backward()
            session.step()
        assert scheduler.last_epoch == 3
        scheduler.step()
        model(torch.ones(1, 4).double()).sum().backward()
        with pytest.raises(ConfigError, match="the script has stepped it too"):
            session.step()


def test_a_schedule_that_is_too_short_is_named_once():
    model = perceptron(4, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with plesio.join(model, optimizer) as session:
        session.schedule(lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=3))
        batches = iter(session.shard(DataLoader(Problem(40, 4), batch_size=4)))
        with pytest.raises(ConfigError, match="this OneCycleLR has 3 steps, and the run makes more"):  # noqa: PT012
            for _, x, y in batches:
                (model(x) - y).square().mean().backward()
                session.step()
        batches.close()  # as the end of the loop's function does: an error here would be printed after the first


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lr_scheduler.ReduceLROnPlateau, "goes by a metric"),
        (lambda optimizer: optimizer, "takes a scheduler"),
        (lambda _: lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1)], lr=RATE), 1), "is of another optimizer"),
    ],
)
def test_what_no_clock_can_step_is_refused(make: Callable[[torch.optim.Optimizer], Any], line: str):
    model = perceptron(4, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with plesio.join(model, optimizer) as session, pytest.raises(ConfigError, match=line):
        session.schedule(make(optimizer))


class Wrapped:
    """Keeps a scheduler, as a trainer of somebody's own may."""

    def __init__(self, scheduler: lr_scheduler.LRScheduler) -> None:
        self.scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state_dict)


def chained(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(optimizer, 5)])


@pytest.mark.parametrize(
    ("make", "keep", "saves", "warns"),
    [
        (lambda optimizer: lr_scheduler.StepLR(optimizer, 5), None, True, True),
        (chained, None, True, True),
        (chained, None, False, False),
        (chained, lambda session, one: session.register(scheduler=one), True, False),
        (chained, lambda session, one: session.register(trainer=Wrapped(one)), True, False),
        (chained, lambda session, one: session.schedule(one), True, False),
        (lambda optimizer: None, None, True, False),
        (lr_scheduler.ReduceLROnPlateau, lambda session, one: session.register(plateau=one), True, False),
    ],
)
def test_a_scheduler_that_no_checkpoint_keeps_is_named(
    make: Callable[[torch.optim.Optimizer], Any],
    keep: Callable[[plesio.Session, Any], None] | None,
    saves: bool,
    warns: bool,
    tmp_path: Path,
):
    model = perceptron(4, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    arguments = {"checkpoint": tmp_path, "every": "1 steps"} if saves else {}
    with plesio.join(model, optimizer, **arguments) as session:
        scheduler = make(optimizer)
        if keep is not None:
            keep(session, scheduler)
        for _ in range(2):
            model(torch.ones(1, 4).double()).sum().backward()
            session.step()
    assert sum("scheduler that is not registered" in line for line in session.report().fallbacks) == warns


def test_a_scheduler_that_a_worker_who_joins_is_not_told_of_is_named():
    def work(job: VirtualJob) -> None:
        model = perceptron(4, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        pacer = Pacer(step_time=LogNormal(mean_s=0.02, cv=0.3), seed=5, worker=job.place.rank, clock=job.clock)
        with plesio.join(model, optimizer, policy="bsp", options=plesio.JoinOptions(pacer=pacer)) as session:
            lr_scheduler.ConstantLR(optimizer, 1.0)
            for _, x, y in session.shard(DataLoader(Problem(80, 4), batch_size=4)):
                (model(x) - y).square().mean().backward()
                session.step()

    simulation = simulate(work, num_workers=2, cluster=Cluster.one_host(2), faults=[Fault(at_s=0.05, kind="join")])
    assert any("a worker that joins begins it anew" in line for line in simulation.runs[0].fallbacks)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp", "adaptive"])
def test_batches_of_a_batch_sampler_are_rounds_too(policy: str):
    def work(job: VirtualJob) -> tuple[int, int]:
        model = perceptron(4, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        loader = DataLoader(
            Problem(41, 4), batch_sampler=BatchSampler(RandomSampler(range(41)), batch_size=4, drop_last=False)
        )
        counts = [0]
        with plesio.join(model, optimizer, policy=policy) as session:
            scheduler = lr_scheduler.StepLR(optimizer, 1)
            session.schedule(scheduler)
            for _ in range(2):
                for _, x, y in session.shard(loader):
                    (model(x) - y).square().mean().backward()
                    session.step()
                    counts.append(scheduler.last_epoch)
            assert scheduler.last_epoch == 2 * session.steps_per_epoch(loader)
        return max(later - earlier for earlier, later in pairwise(counts)), counts[1]

    for outcome in simulate(work, num_workers=2, cluster=Cluster.one_host(2)).outcomes.values():
        assert outcome.value is not None
        assert outcome.value[0] <= 2
        assert outcome.value[1] <= 1


@pytest.mark.parametrize(
    ("policy", "differ", "warns"),
    [
        ("bsp,exchange=store", True, True),
        ("bsp,exchange=store", False, False),
        ("asp", True, False),  # one scheduler may be ahead of the other
        ("local_sgd:4,exchange=store", False, False),
    ],
)
def test_learning_rates_that_differ_at_the_servers_are_named(policy: str, differ: bool, warns: bool):
    def work(job: VirtualJob) -> None:
        model = perceptron(4, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with plesio.join(model, optimizer, policy=policy) as session:
            plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            for epoch in range(4):
                for _, x, y in session.shard(DataLoader(Problem(40, 4), batch_size=4)):
                    (model(x) - y).square().mean().backward()
                    session.step()
                plateau.step(-epoch * float(job.place.rank if differ else 0))

    [result] = simulate(work, num_workers=2, cluster=Cluster.one_host(2)).runs
    named = [line for line in result.fallbacks if "has the learning rate" in line]
    assert len(named) == warns
    assert all("in group 0" in line and "worker 1" in line for line in named)


@pytest.mark.parametrize("differ", [True, False])
def test_learning_rates_that_differ_at_a_review_are_named_once(differ: bool):
    """The script sets them by itself, so there is no scheduler and no evaluation to compare them at."""

    def work(job: VirtualJob) -> None:
        model = perceptron(4, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with plesio.join(model, optimizer, policy="adaptive,store=off") as session:
            for epoch in range(8):
                if epoch == 4:
                    optimizer.param_groups[0]["lr"] = RATE / (2 + job.place.rank * differ)
                for _, x, y in session.shard(DataLoader(Problem(40, 4), batch_size=4)):
                    (model(x) - y).square().mean().backward()
                    session.step()

    [result] = simulate(work, num_workers=2, cluster=Cluster.one_host(2)).runs
    named = [line for line in result.fallbacks if "has the learning rate" in line]
    assert len(named) == differ
    assert all(f"{RATE / 2:g}" in line and f"{RATE / 3:g}" in line and "worker 1" in line for line in named)


RATES = {"every step": True, "bar": True, "asks": False, "asks its length": False, "every epoch": False, "once": False}
"""When a script sets its rate, and whether it is told that the steps of its worker are fewer."""


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "asp"])
@pytest.mark.parametrize("when", RATES)
def test_a_rate_set_by_hand_at_each_step_is_named(policy: str, when: str):
    shown = partial(track, disable=True) if when == "bar" else iter

    def work(job: VirtualJob) -> None:
        model = perceptron(4, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        loader = DataLoader(Problem(40, 4), batch_size=4)
        with plesio.join(model, optimizer, policy=policy) as session:
            asks = {"asks": session.steps_per_epoch, "asks its length": lambda _: len(session.shard(loader))}
            steps = 2 * asks.get(when, len)(loader)
            made = 0
            for _ in range(2):
                for number, (_, x, y) in enumerate(shown(session.shard(loader))):
                    if {"every epoch": number == 0, "once": made == 3}.get(when, True):
                        optimizer.param_groups[0]["lr"] = RATE * (1 - made / steps)
                    (model(x) - y).square().mean().backward()
                    session.step()
                    made += 1

    simulation = simulate(work, num_workers=2, cluster=Cluster.one_host(2))
    simulation.values()
    lines = [line for line in simulation.runs[0].fallbacks if "sets another learning rate at each step" in line]
    assert len(lines) == RATES[when], simulation.runs[0].fallbacks


LATE: dict[str, tuple[Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler], bool]] = {
    "milestone": (lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [15]), True),
    "its last step but one": (lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [19]), True),
    "its last step": (lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [20]), False),
    "beyond": (lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [25, 30]), False),
    "step size": (lambda optimizer: lr_scheduler.StepLR(optimizer, 14), True),
    "a function": (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 15 else 0.1), True),
    "constant": (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda _: 1.0), False),
    "a table that ends": (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: ([1.0] * 14)[step]), False),
    "sequence": (
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.LambdaLR(optimizer, lambda _: 1.0), lr_scheduler.StepLR(optimizer, 2)], [13]
        ),
        True,
    ),
}
"""Schedules that leave the rate as it is for most of 20 steps, and whether those change it before the last one."""


def _scheduled_late(
    policy: str,
    make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler],
    *,
    asks: bool = False,
    every: int = 1,
    most: int = 10,
    num_workers: int = 2,
) -> Sequence[str]:
    def work(job: VirtualJob) -> None:
        model = perceptron(4, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        loader = DataLoader(Problem(40, 4), batch_size=4)
        with plesio.join(model, optimizer, policy=policy) as session:
            if asks:
                session.steps_per_epoch(loader)
            scheduler, number = make(optimizer), 0
            for _ in range(2):
                for step, (_, x, y) in enumerate(session.shard(loader), start=1):
                    (model(x) - y).square().mean().backward()
                    session.step()
                    number += 1
                    if number % every == 0:
                        scheduler.step()
                    if step == most:
                        break

    simulation = simulate(work, num_workers=num_workers, cluster=Cluster.one_host(num_workers))
    simulation.values()
    return [line for line in simulation.runs[0].fallbacks if "once a step" in line]


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "ssp:2"])
@pytest.mark.parametrize("kind", LATE)
def test_a_schedule_whose_change_is_beyond_this_workers_steps_is_named(policy: str, kind: str):
    make, named = LATE[kind]
    if policy == "ssp:2" and kind == "its last step but one":
        pytest.skip("a worker with fewer steps than another reckons with fewer in all")
    lines = _scheduled_late(policy, make)
    assert len(lines) == named, lines
    assert all("alone this one would have changed the rate after 1" in line for line in lines)


@pytest.mark.parametrize(
    "case", [{"asks": True}, {"every": 2}, {"most": 4}, {"num_workers": 1}], ids=lambda case: next(iter(case))
)
def test_a_schedule_is_not_named_that_goes_as_it_would_alone(case: dict[str, Any]):
    assert _scheduled_late("bsp", LATE["milestone"][0])
    assert not _scheduled_late("bsp", LATE["milestone"][0], **case)
