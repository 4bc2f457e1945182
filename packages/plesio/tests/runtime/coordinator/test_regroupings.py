"""Continuations of a collective that has lost a worker: decided on server 0, without a socket or a tensor."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, UnsetType

from plesio.core.results import Environment
from plesio.policies import LeaveReason, Left, Resumed, Reviewed, read_log
from plesio.protocol.effects import Effect, Tell
from plesio.protocol.figures import Report, Within
from plesio.protocol.message import Message, encode
from plesio.protocol.plans import Remainder, Span
from plesio.protocol.positions import Position
from plesio.protocol.to_server import FromWorker, Goodbye, Heartbeat, Join, Leave, PositionReport, Review, StageStop
from plesio.protocol.to_worker import Entered, Expelled, Lost, MayLeave, Regroup, Regrouping
from plesio.runtime.coordinator.coordinator import Coordinator
from plesio.runtime.worker.loading import SynchronousBatches
from plesio.runtime.worker.rounds import RoundRecords
from support.coordinated_run import join_of

ENVIRONMENT = Environment(plesio="1", python="3", torch="2", numpy="2", platform="p", cpu="c", num_cpus=2)


class Run:
    """A coordinator whose workers have joined; ``told`` is the news of the last call, by worker."""

    def __init__(
        self, policy: str = "bsp", *, workers: int = 4, elastic: bool = True, folder: Path | None = None
    ) -> None:
        join = join_of(policy, num_workers=workers, elastic=elastic)
        self.coordinator = Coordinator(join, folder=folder)
        self.told: dict[int, list[Message]] = {}
        for worker in range(workers):
            self.say(worker, join)

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

    def cut(self, worker: int, *, clock: int = 5) -> None:
        self.say(worker, PositionReport(position=position(clock), meeting=f"host:{worker}"))

    def heard(self, kind: type[Message]) -> dict[int, Any]:
        return {worker: one for worker, news in self.told.items() for one in news if isinstance(one, kind)}


def position(clock: int) -> Position:
    return Position(base=0, settled=clock, trained=clock, clock=clock, plan=0, samples=4 * clock)


def test_a_loss_stops_the_others_and_when_all_stand_they_hear_where_all_are() -> None:
    run = Run()
    run.lose(0)
    assert run.heard(Regrouping) == {worker: Regrouping(generation=1) for worker in (1, 2, 3)}
    assert not [lost for lost in run.heard(Lost).values() if lost.fatal]
    run.cut(3, clock=6)
    run.cut(1)
    assert run.told == {}
    run.cut(2)
    [group] = {encode(one)[0]: one for one in run.heard(Regroup).values()}.values()
    assert run.heard(Regroup).keys() == {1, 2, 3}
    assert (group.members, group.meeting, group.generation) == ((1, 2, 3), "host:1", 1)
    assert [one.clock for one in group.positions] == [5, 5, 6]
    assert run.coordinator.ledger.status == "finished"


def test_one_that_is_cut_off_before_the_loss_is_known_waits_for_the_verdict() -> None:
    run = Run(workers=3)
    run.cut(2)
    assert run.heard(Regrouping).keys() == {0, 1, 2}
    run.cut(0)
    assert run.told == {}
    run.lose(1)
    assert run.heard(Regroup)[0].members == (0, 2)


def test_a_second_loss_on_the_way_is_the_same_generation_and_after_it_another() -> None:
    run = Run()
    run.lose(3)
    run.cut(0)
    run.lose(2)
    assert run.heard(Regrouping) == {}
    run.cut(1)
    assert run.heard(Regroup)[1].generation == 1
    run.lose(1)
    assert run.heard(Regrouping) == {0: Regrouping(generation=2)}
    run.cut(0)
    assert run.heard(Regroup)[0].members == (0,)


def test_a_lost_worker_that_speaks_up_is_told_so_and_who_cannot_meet_ends() -> None:
    run = Run(workers=3)
    run.lose(1)
    run.cut(1)
    assert run.told == {1: [Expelled()]}
    for _ in range(10):
        run.cut(0)
        run.cut(2)
        if run.heard(Lost):
            break
    assert run.heard(Lost)[0].fatal
    assert "cannot reach each other" in run.heard(Lost)[0].error


def test_nobody_is_stopped_for_one_whose_training_was_over() -> None:
    run = Run(workers=2)
    run.say(1, Leave())
    assert run.heard(MayLeave) == {1: MayLeave(evaluates=False)}
    run.lose(1)
    assert run.heard(Regrouping) == {}
    run.say(0, Leave())
    assert run.heard(MayLeave) == {0: MayLeave(evaluates=True)}
    run.say(0, Goodbye(status="finished", error=None, report=Report()))
    assert run.coordinator.ledger.status == "finished"


def test_who_says_that_it_leaves_before_it_hears_of_a_loss_is_in_the_new_group_all_the_same() -> None:
    run = Run(workers=3)
    run.say(0, Leave())  # evaluates, so it waits for the others
    run.lose(2)
    assert set(run.heard(Regrouping)) == {0, 1}
    run.say(1, Leave())  # was on its way
    assert run.told == {}, "it is told to stand, and is to say so again"
    run.cut(0)
    run.cut(1)
    assert {worker: one.members for worker, one in run.heard(Regroup).items()} == {0: (0, 1), 1: (0, 1)}
    run.say(1, Leave())
    assert run.heard(MayLeave) == {1: MayLeave(evaluates=False)}
    run.say(0, Leave())
    assert run.heard(MayLeave) == {0: MayLeave(evaluates=True)}


def test_who_waits_to_leave_is_not_let_go_by_a_second_loss_when_it_has_been_told_to_stand() -> None:
    run = Run(workers=3)
    run.say(0, Leave())
    run.lose(1)
    run.lose(2)
    assert run.heard(MayLeave) == {}
    run.cut(0)
    assert run.heard(Regroup)[0].members == (0,)
    run.say(0, Leave())
    assert run.heard(MayLeave) == {0: MayLeave(evaluates=True)}


def test_who_sets_out_for_the_store_before_it_hears_of_a_loss_sets_out_anew() -> None:
    run = Run("switch:bsp/asp@3", workers=2)
    for worker in range(2):
        run.say(worker, Review(event=Reviewed(worker=worker, clock=1, samples=(), compute_s=(), blocked_s=())))
    run.lose(1)
    run.say(0, StageStop(clock=3))  # was on its way
    assert run.told == {}, "it is told to say where it stands in the group that is no more"
    run.cut(0, clock=3)
    steer = run.heard(Regroup)[0].steer
    assert (steer.clock, steer.policy) == (3, "asp")
    run.say(0, StageStop(clock=3))
    assert set(run.heard(Entered)) == {0}


def test_a_worker_whose_training_was_over_goes_to_the_store_with_the_others_of_its_new_group() -> None:
    run = Run("switch:bsp/asp@3", workers=3)
    run.say(0, Review(event=Reviewed(worker=0, clock=1, samples=(), compute_s=(), blocked_s=())))
    run.say(0, Leave())
    run.lose(1)
    run.cut(0, clock=1)
    run.say(2, Review(event=Reviewed(worker=2, clock=1, samples=(), compute_s=(), blocked_s=())))
    run.cut(2, clock=1)
    assert {one.steer.policy for one in run.heard(Regroup).values()} == {"asp"}
    run.say(2, StageStop(clock=1))
    assert run.heard(Entered) == {}, "worker 0 is awaited"
    run.say(0, StageStop(clock=1))
    assert set(run.heard(Entered)) == {0, 2}


@pytest.mark.parametrize("policy", ["bsp", "ssp:2"])
def test_without_it_or_on_the_store_nobody_forms_a_group(policy: str) -> None:
    run = Run(policy, elastic=policy != "bsp")
    run.lose(2)
    assert run.heard(Regrouping) == {}
    assert all(lost.fatal == (policy == "bsp") for lost in run.heard(Lost).values())


def test_a_policy_that_changes_is_steered_anew_and_the_log_knows(tmp_path: Path) -> None:
    run = Run("switch:bsp/local_sgd:4@9", workers=3, folder=tmp_path)
    run.lose(0)
    for worker in (1, 2):
        run.cut(worker, clock=4)
    steer = run.heard(Regroup)[1].steer
    assert (steer.clock, steer.policy, steer.next_clock) == (4, "bsp", 9)
    run.coordinator.close_logs()
    events = [entry.event for entry in read_log(tmp_path / "events.jsonl").entries]
    assert events[-2:] == [Left(worker=0, reason=LeaveReason.REPLACED), Resumed(clock=4)]


def test_what_of_rounds_is_in_no_replica_is_left_with_the_rest() -> None:
    """Four ranks have trained on three rounds of 8; all hold the first, ranks 0 and 1 their own parts of the others."""
    rounds = RoundRecords(0, 4, warn=pytest.fail)
    source = SynchronousBatches(Remainder(num_samples=40, num_fresh=40), batch_size=2, plan=0, rounds=rounds)
    batches = source.batches()
    for clock in (1, 2, 3):
        source.taken(sum(map(len, next(batches))))
        source.trained(2)
        rounds.mark(clock, settled=0 if clock == 1 else 1)
    left = rounds.left(0, clock=3, settled=1, rounds_of=[3, 2, 0, 1])
    assert left.remainder is not None
    assert left.remainder.spans == (Span(0, 12, 14), Span(0, 14, 16), Span(0, 18, 20), Span(0, 20, 22), Span(0, 22, 24))
    assert (left.remainder.start, left.remainder.num_fresh, len(left.remainder)) == (24, 16, 26)
    assert (left.samples, left.dropped) == (24 - 10, 0)


def beat(run: Run, worker: int, *, clock: int, within: Within | UnsetType = UNSET, at_s: float) -> None:
    report = Report(clock=clock, steps=clock, samples=4 * clock, recent_step_s=0.01, within=within)
    run.coordinator.handle(Heartbeat(report=report), worker=worker, now_s=at_s)


def tick(run: Run, *, at_s: float) -> None:
    run._keep(run.coordinator.tick(now_s=at_s))


def test_the_others_go_on_without_a_worker_that_ended_its_loop_a_lease_ago() -> None:
    run = Run(workers=3)
    for at_s in (1.0, 2.5, 3.5):
        for worker in range(3):
            beat(run, worker, clock=10, at_s=at_s)
        if at_s == 1.0:
            run.say(0, Leave())  # it waits for the others, as the one that evaluates
        tick(run, at_s=at_s)
        if at_s < 3.0:
            assert run.told == {}, "the others may yet say that they leave"
    assert run.told == {
        0: [MayLeave(evaluates=False)],
        1: [Regrouping(generation=1)],
        2: [Regrouping(generation=1)],
    }
    tick(run, at_s=3.6)
    assert run.told == {}
    run.cut(1, clock=10)
    run.cut(2, clock=10)
    assert {worker: one.members for worker, one in run.heard(Regroup).items()} == {1: (1, 2), 2: (1, 2)}
    ledger = run.coordinator.ledger
    assert not ledger.fallbacks.lines, "nobody has trained on yet"
    beat(run, 1, clock=11, at_s=3.7)
    [line] = ledger.fallbacks.lines
    assert "worker 0 ended its loop after 10 steps and the others went on without it" in line
    assert "the final parameters are worker 1's" in line
    run.say(2, Leave())
    run.say(1, Leave())
    assert run.heard(MayLeave) == {1: MayLeave(evaluates=True)}
    assert ledger.lost == []


@pytest.mark.parametrize(
    ("within", "mixed_up"),
    [
        (("evaluation", "step"), True),
        (("step", "evaluation"), True),
        (("end", "evaluation"), True),
        (("evaluation", "evaluation"), True),  # after unequally many steps
        (("metric", "evaluation"), False),
        (("evaluation", UNSET), False),  # the other is in the user's code
    ],
)
def test_workers_that_wait_in_different_collectives_end(within: Sequence[Within | UnsetType], mixed_up: bool) -> None:
    run = Run(workers=2)
    for at_s in (1.0, 2.0, 3.0, 3.9, 4.5):
        for worker, place in enumerate(within):
            beat(run, worker, clock=10 + worker, within=place, at_s=at_s)
        tick(run, at_s=at_s)
        assert run.told == {} or at_s == 4.5
    assert bool(run.told) == mixed_up
    for lost in run.heard(Lost).values():
        assert lost.fatal
        assert "worker 0" in lost.error.split(" while ")[0]
        assert "stop all at the length of the shortest loader" in lost.error


def test_workers_that_move_on_are_not_mixed_up() -> None:
    run = Run(workers=2)
    for number in range(12):
        beat(run, 0, clock=10 + number, within="evaluation", at_s=1.0 + number)
        beat(run, 1, clock=10 + number, within="step", at_s=1.0 + number)
        tick(run, at_s=1.0 + number)
        assert run.told == {}
