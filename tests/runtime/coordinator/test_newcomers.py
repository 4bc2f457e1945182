"""Who joins a running collective, and where the others stop for it: decided on server 0, without socket or tensor."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from plesio.core.results import Environment
from plesio.policies import parse_policy
from plesio.policies.steered import NEVER
from plesio.protocol.effects import Effect, Tell
from plesio.protocol.figures import Report, RunInfo
from plesio.protocol.message import Message
from plesio.protocol.positions import Position, common_clock
from plesio.protocol.to_server import Cut, FromWorker, Goodbye, Holding, Join, Leave
from plesio.protocol.to_worker import Failed, Hold, Lost, MayLeave, Regroup, Regrouping, Start, Stop
from plesio.runtime.coordinator.coordinator import Coordinator

ENVIRONMENT = Environment(plesio="1", python="3", torch="2", numpy="2", platform="p", cpu="c", num_cpus=2)
NUM_WORKERS = 3


def join_of(policy: str, *, rack: int = 0, elastic: bool = True, layout: str = "") -> Join:
    return Join(policy=policy, info=RunInfo(), num_workers=NUM_WORKERS, num_servers=0, snapshot_every=None, folder=None,
                layout=layout, rack=rack, environment=ENVIRONMENT, elastic=elastic)  # fmt: skip


def position(clock: int) -> Position:
    return Position(base=0, settled=clock, trained=clock, clock=clock, plan=0, samples=4 * clock)


class Run:
    """A coordinator whose workers have joined; ``told`` is the news of the last call, by worker."""

    def __init__(self, policy: str = "bsp", *, elastic: bool = True) -> None:
        self.coordinator = Coordinator(
            parse_policy(policy), info=RunInfo(), expected=range(NUM_WORKERS), num_servers=0, elastic=elastic
        )
        self.policy = self.coordinator.policy.spec
        self.told: dict[int, list[Message]] = {}
        for worker in range(NUM_WORKERS):
            self.say(worker, join_of(self.policy, elastic=elastic))

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
        self.say(worker, Cut(position=None, meeting=f"host:{worker}"))


def test_all_stop_where_the_furthest_is_and_take_the_newcomer_in() -> None:
    run = Run()
    run.say(3, join_of("bsp"))
    assert run.heard(Start).keys() == {3}
    run.say(3, Cut(position=None, meeting="host:3"))
    assert run.heard(Hold) == {worker: Hold(generation=1) for worker in (0, 1, 2)}
    run.say(0, Holding(generation=1, begun=7))
    run.say(2, Holding(generation=1, begun=6))
    assert run.told == {}
    run.say(1, Holding(generation=1, begun=6))
    assert run.heard(Stop) == {worker: Stop(generation=1, clock=7) for worker in (0, 1, 2)}
    for worker in (2, 0, 1):
        assert run.heard(Regrouping) == {}
        run.say(worker, Cut(position=position(7), meeting=f"host:{worker}", agreed=True))
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
        run.say(worker, Cut(position=position(5), meeting=f"host:{worker}", agreed=lost == 3 and holding == 3))
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
    assert run.coordinator.status == "finished"


def test_one_that_comes_before_the_run_has_begun_joins_it_then() -> None:
    coordinator = Coordinator(parse_policy("bsp"), info=RunInfo(), expected=(0, 1), num_servers=0, elastic=True)
    for worker in (2, 0):
        assert coordinator.handle(join_of("bsp"), worker=worker, now_s=0.0) == []
    effects = coordinator.handle(join_of("bsp"), worker=1, now_s=0.0)
    assert [one.worker for one in effects if isinstance(one, Tell) and isinstance(one.message, Start)] == [0, 1, 2]


class Schedule(RuleBasedStateMachine):
    """Workers of a collective that step in lockstep, come and go at any moment, and hear of it in any order.

    A worker's own part is what `plesio.runtime.worker.brake` and ``recovery`` do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.run = Run()
        self.num_come = NUM_WORKERS
        self.gone: set[int] = set()
        self.clock = dict.fromkeys(range(NUM_WORKERS), 0)
        """Of those that have been in a group."""
        self.members: dict[int, tuple[int, ...]] = dict.fromkeys(range(NUM_WORKERS), tuple(range(NUM_WORKERS)))
        """Of each, those that it meets."""
        self.generation = dict.fromkeys(range(NUM_WORKERS), 0)
        self.standing: set[int] = set()
        self.held: dict[int, int] = {}
        self.stop: dict[int, Stop] = {}
        self.inbox: dict[int, list[Message]] = {}
        self._take()

    def _take(self) -> None:
        for worker, news in self.run.told.items():
            if worker not in self.gone:
                self.inbox.setdefault(worker, []).extend(news)

    def _cut(self, worker: int, *, agreed: bool) -> None:
        self.standing.add(worker)
        here = self.clock.get(worker)
        self.run.say(worker, Cut(position=None if here is None else position(here), meeting="m", agreed=agreed))
        self._take()

    @property
    def waiting(self) -> list[int]:
        return sorted(worker for worker, news in self.inbox.items() if news and worker not in self.gone)

    @rule()
    def come(self) -> None:
        worker, self.num_come = self.num_come, self.num_come + 1
        self.generation[worker] = 0
        self.run.say(worker, join_of("bsp"))
        self._take()
        self._cut(worker, agreed=False)

    @precondition(lambda self: len(self.clock) > 1)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """Anybody but the last that knows how far the run is."""
        alive = [worker for worker in range(self.num_come) if worker not in self.gone]
        if len([worker for worker in alive if worker in self.clock]) == 1:
            alive = [worker for worker in alive if worker not in self.clock]
        if not alive:
            return
        worker = data.draw(st.sampled_from(alive))
        self.gone.add(worker)
        self.clock.pop(worker, None)
        self.inbox.pop(worker, None)
        self.standing.discard(worker)
        self.run.lose(worker)
        self._take()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.waiting))
        self._hear(worker)

    def _hear(self, worker: int) -> None:
        match self.inbox[worker].pop(0):
            case Hold(generation=generation):
                self.held[worker] = generation
                self.run.say(worker, Holding(generation=generation, begun=self.clock[worker] + 1))
                self._take()
            case Stop() as stop:
                self.stop[worker] = stop
            case Regrouping() if worker not in self.standing:
                self._cut(worker, agreed=False)
            case Regroup() as regroup:
                self.standing.discard(worker)
                self.clock[worker] = common_clock(regroup.positions)
                self.generation[worker] = regroup.generation
                self.members[worker] = regroup.members
            case Lost(fatal=fatal):
                assert not fatal

    def _may_step(self, worker: int) -> bool | None:
        """Whether it may begin its next step; None if that is not known yet."""
        if self.held.get(worker, 0) <= self.generation[worker]:
            return True
        stop = self.stop.get(worker)
        if stop is None or stop.generation != self.held[worker]:
            return None
        return self.clock[worker] < stop.clock

    @rule()
    def step(self) -> None:
        """All that are in one group make a step together, if none of them stands, holds or has gone."""
        free = sorted(worker for worker in self.clock if worker not in self.standing)
        together = all(self.members[worker] == tuple(free) for worker in self.clock)
        same = len({self.generation[worker] for worker in self.clock}) == 1
        if together and same and all(self._may_step(worker) for worker in free):
            for worker in free:
                self.clock[worker] += 1
        for worker in free:
            if self._may_step(worker) is False and worker not in self.standing:
                self._cut(worker, agreed=True)

    @invariant()
    def holds(self) -> None:
        assert self.run.coordinator.status == "finished"

    def teardown(self) -> None:
        """Once nobody comes or goes any more, all are in one group and go on."""
        for _ in range(200):
            for worker in self.waiting:
                while self.inbox.get(worker):
                    self._hear(worker)
            self.step()
        assert not self.standing, f"{self.standing} stand for ever"
        assert len(set(self.clock.values())) <= 1
        assert set(self.clock) == {worker for worker in range(self.num_come) if worker not in self.gone}
        before = dict(self.clock)
        self.step()
        assert all(self.clock[worker] == clock + 1 for worker, clock in before.items()), "nobody goes on"
        for worker in self.clock:
            self.run.say(worker, Leave())
        for worker in list(self.clock):
            self.run.say(worker, Goodbye(status="finished", error=None, report=Report()))
        assert self.run.coordinator.state == "ended"


Schedule.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSchedule = Schedule.TestCase
