"""Joins of a running collective, and the others' stops for them: decided on server 0, without socket or tensor."""

from typing import Any

import pytest

from plesio.core.results import Environment
from plesio.policies import parse_policy
from plesio.policies.policy import NEVER
from plesio.protocol.effects import Effect, Tell
from plesio.protocol.message import Message
from plesio.protocol.positions import Position
from plesio.protocol.to_server import FromWorker, Holding, Join, Leave, PositionReport, SaveRequest, Saving
from plesio.protocol.to_worker import Failed, Hold, MayLeave, Regroup, Regrouping, Start, Stop
from plesio.runtime.coordinator.coordinator import Coordinator
from support import coordinated_run

ENVIRONMENT = Environment(plesio="1", python="3", torch="2", numpy="2", platform="p", cpu="c", num_cpus=2)
NUM_WORKERS = 3


def join_of(policy: str, **settings: Any) -> Join:
    return coordinated_run.join_of(policy, **{"num_workers": NUM_WORKERS, **settings})


def position(clock: int) -> Position:
    return Position(base=0, settled=clock, trained=clock, clock=clock, plan=0, samples=4 * clock)


class Run:
    """A coordinator whose workers have joined; ``told`` is the news of the last call, by worker."""

    def __init__(self, policy: str = "bsp", **settings: Any) -> None:
        self.policy = parse_policy(policy).spec
        self.coordinator = Coordinator(join_of(self.policy, **settings))
        self.told: dict[int, list[Message]] = {}
        for worker in range(NUM_WORKERS):
            self.say(worker, join_of(self.policy, **settings))

    def _keep(self, effects: list[Effect]) -> None:
        self.coordinator.validate()
        self.told = {}
        for effect in effects:
            if isinstance(effect, Tell):
                self.told.setdefault(effect.worker, []).append(effect.message)

    def say(self, worker: int, message: FromWorker | Join) -> None:
        self._keep(self.coordinator.handle(message, worker=worker, now_s=1.0))

    def lose(self, worker: int) -> None:
        self._keep(self.coordinator.lose(worker, now_s=1.0))

    def heard(self, kind: type[Message]) -> dict[int, Any]:
        return {worker: one for worker, news in self.told.items() for one in news if isinstance(one, kind)}

    def come(self, worker: int = NUM_WORKERS) -> None:
        self.say(worker, join_of(self.policy))
        self.say(worker, PositionReport(position=None, meeting=f"host:{worker}"))


def test_all_stop_where_the_furthest_is_and_take_the_newcomer_in() -> None:
    run = Run()
    run.say(3, join_of("bsp"))
    assert run.heard(Start).keys() == {3}
    run.say(3, PositionReport(position=None, meeting="host:3"))
    assert run.heard(Hold) == {worker: Hold(generation=1) for worker in (0, 1, 2)}
    run.say(0, Holding(generation=1, begun=7))
    run.say(2, Holding(generation=1, begun=6))
    assert run.told == {}
    run.say(1, Holding(generation=1, begun=6))
    assert run.heard(Stop) == {worker: Stop(generation=1, clock=7) for worker in (0, 1, 2)}
    for worker in (2, 0, 1):
        assert run.heard(Regrouping) == {}
        run.say(worker, PositionReport(position=position(7), meeting=f"host:{worker}", agreed=True))
    regroup = run.heard(Regroup)[3]
    assert (regroup.members, regroup.meeting, regroup.generation) == ((0, 1, 2, 3), "host:0", 1)
    assert regroup.positions == (position(7), position(7), position(7), None)
    run.lose(3)
    assert run.heard(Regrouping).keys() == {0, 1, 2}


@pytest.mark.parametrize("lost", [0, 3])
@pytest.mark.parametrize("holding", [0, 1, 3])
def test_a_loss_while_all_are_stopping_wakes_everybody_and_is_one_generation(lost: int, holding: int) -> None:
    run = Run()
    run.come()
    for worker in range(holding):
        run.say(worker, Holding(generation=1, begun=5))
    run.lose(lost)
    assert run.heard(Regrouping) == ({} if lost == 3 else {worker: Regrouping(generation=1) for worker in (1, 2)})
    rest = [worker for worker in range(3) if worker != lost]
    for worker in rest:
        run.say(
            worker, PositionReport(position=position(5), meeting=f"host:{worker}", agreed=lost == 3 and holding == 3)
        )
    assert run.heard(Regroup)[rest[0]].members == tuple(sorted({0, 1, 2, 3} - {lost}))


def test_who_comes_when_all_have_trained_is_sent_away_and_nobody_waits_for_it() -> None:
    run = Run()
    run.come()
    for worker in range(3):
        run.say(worker, Holding(generation=1, begun=9))
    run.say(2, Leave())
    assert "at its end" in run.heard(Failed)[3].message
    assert run.heard(Stop)[0].clock == NEVER
    assert run.heard(MayLeave).keys() == {2}
    for worker in (1, 0):
        run.say(worker, Leave())
    assert run.heard(MayLeave)[0].evaluates
    run.say(4, join_of("bsp"))
    assert "at its end" in run.heard(Failed)[4].message


@pytest.mark.parametrize(
    ("policy", "worker", "join", "problem"),
    [
        ("bsp", 3, join_of("asp"), "the others"),
        ("bsp", 3, join_of("bsp", layout="other"), "model differs"),
        ("bsp", 1, join_of("bsp"), "needs a rank of its own"),
        ("hier:bsp/local_sgd:4", 3, join_of("hier:bsp/local_sgd:4", rack=2), "set PLESIO_RACK to one of them"),
    ],
)
def test_who_cannot_join_is_told_so_and_nobody_is_disturbed(policy: str, worker: int, join: Join, problem: str) -> None:
    run = Run(policy)
    run.say(worker, join)
    assert list(run.told) == [worker]
    assert problem in run.heard(Failed)[worker].message
    assert run.coordinator.ledger.status == "finished"


def test_islands_on_a_collective_take_in_no_other_and_go_on_without_one_that_is_lost() -> None:
    run = Run("local_sgd:4", grows=False)
    run.say(3, join_of("local_sgd:4"))
    assert "its workers are islands" in run.heard(Failed)[3].message
    run.lose(1)
    assert run.heard(Regrouping).keys() == {0, 2}


def test_one_that_comes_before_the_run_has_begun_joins_it_then() -> None:
    coordinator = Coordinator(join_of("bsp", num_workers=2))
    for worker in (2, 0):
        assert coordinator.handle(join_of("bsp"), worker=worker, now_s=0.0) == []
    effects = coordinator.handle(join_of("bsp"), worker=1, now_s=0.0)
    assert [one.worker for one in effects if isinstance(one, Tell) and isinstance(one.message, Start)] == [0, 1, 2]


def test_one_that_comes_before_a_run_that_cannot_begin_is_sent_away() -> None:
    saving = Saving(every_steps=5)
    join = join_of("bsp", num_workers=3, saving=saving)
    coordinator = Coordinator(join)
    for worker in (3, 0, 1):
        coordinator.handle(join, worker=worker, now_s=0.0)
    told = [one for one in coordinator.lose(0, now_s=1.0) if isinstance(one, Tell) and isinstance(one.message, Failed)]
    assert {one.worker: one.message.message for one in told} == dict.fromkeys(
        (1, 3), "worker 0 was gone before the run began"
    )
    coordinator.handle(join, worker=2, now_s=2.0)
    assert coordinator.handle(SaveRequest(), worker=1, now_s=2.0) == [], "it has begun after all"
