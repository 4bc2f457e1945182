"""The machine that waits for all but the slowest: what it answers, event by event."""

import pytest

from plesio.core.errors import PolicySpecError
from plesio.policies import (
    BSP,
    Action,
    Admit,
    Apply,
    Arrived,
    Event,
    Grant,
    Joined,
    LeaveReason,
    Left,
    PolicyMachine,
    Refuse,
    RefuseReason,
    parse_policy,
)
from plesio.testing.play import play
from support.machines import start

ONE = BSP(exchange="store", backup=1)


def mean_of(*updates: tuple[int, int], version: int) -> Apply:
    return Apply(updates=updates, weight=1.0, version=version, staleness=(0,) * len(updates))


def granted(*workers: int, clock: int) -> tuple[Grant, ...]:
    return tuple(Grant(worker=worker, clock=clock) for worker in workers)


def hear(machine: PolicyMachine, *events: Event) -> tuple[Action, ...]:
    """The answer to the last of these events."""
    for event in events:
        answer = machine.handle(event)
        machine.validate()
    return answer


def test_a_step_is_the_mean_of_the_first_and_the_slowest_is_refused_when_it_comes():
    machine = start(ONE, num_workers=3)
    assert hear(machine, Arrived(worker=2, clock=1)) == ()
    assert hear(machine, Arrived(worker=0, clock=1)) == (
        mean_of((2, 1), (0, 1), version=1),
        *granted(0, 2, clock=2),
    )
    assert hear(machine, Arrived(worker=1, clock=1)) == (
        Refuse(worker=1, clock=1, reason=RefuseReason.LATE),
        *granted(1, clock=2),
    )


def test_a_worker_that_was_late_contributes_to_the_step_that_it_has_begun_anew():
    machine = start(ONE, num_workers=3)
    hear(machine, Arrived(worker=2, clock=1), Arrived(worker=0, clock=1), Arrived(worker=1, clock=1))
    assert hear(machine, Arrived(worker=1, clock=2, base_version=1)) == ()
    assert hear(machine, Arrived(worker=0, clock=2, base_version=1))[0] == mean_of((1, 2), (0, 2), version=2)


def test_a_slow_worker_s_clock_falls_behind_and_what_it_makes_of_the_latest_version_counts():
    machine = start(ONE, num_workers=3)
    for clock in (1, 2, 3):
        hear(machine, *(Arrived(worker=worker, clock=clock, base_version=clock - 1) for worker in (0, 1)))
    hear(machine, Arrived(worker=2, clock=1))
    assert hear(machine, Arrived(worker=2, clock=2, base_version=3), Arrived(worker=0, clock=4, base_version=3)) == (
        mean_of((2, 2), (0, 4), version=4),
        *granted(0, clock=5),
        *granted(2, clock=3),
    )


def test_where_no_version_was_made_nobody_is_late():
    machine = start(BSP(exchange="store", backup=2), num_workers=3)
    refused = Refuse(worker=0, clock=1, reason=RefuseReason.NOT_FINITE)
    assert hear(machine, Arrived(worker=0, clock=1, finite=False)) == (refused, *granted(0, clock=2))
    assert hear(machine, Arrived(worker=1, clock=1)) == (mean_of((1, 1), version=1), *granted(1, clock=2))


def test_one_is_always_waited_for():
    machine = start(BSP(exchange="store", backup=7), num_workers=2)
    assert hear(machine, Arrived(worker=1, clock=1)) == (mean_of((1, 1), version=1), *granted(1, clock=2))


@pytest.mark.parametrize("reason", LeaveReason)
def test_a_departed_worker_is_not_waited_for_and_what_it_contributed_counts(reason: LeaveReason):
    machine = start(ONE, num_workers=4)
    assert hear(machine, Arrived(worker=0, clock=1), Left(worker=0, reason=reason)) == ()
    assert hear(machine, Arrived(worker=1, clock=1)) == ()
    assert hear(machine, Left(worker=2, reason=reason)) == (mean_of((0, 1), (1, 1), version=1), *granted(1, clock=2))


def test_a_worker_that_is_back_in_the_round_that_it_contributed_to_is_admitted_after_it():
    machine = start(ONE, num_workers=4)
    gone = Left(worker=0, reason=LeaveReason.CLOSED)
    assert hear(machine, Arrived(worker=0, clock=1), gone, Joined(worker=0)) == ()
    assert hear(machine, Arrived(worker=1, clock=1), Arrived(worker=2, clock=1)) == (
        mean_of((0, 1), (1, 1), (2, 1), version=1),
        *granted(1, 2, clock=2),
        Admit(worker=0, clock=0),
        *granted(0, clock=1),
    )


def test_the_last_workers_to_leave_complete_their_round():
    machine = start(ONE, num_workers=2)
    hear(machine, Arrived(worker=0, clock=1), Arrived(worker=0, clock=2, base_version=1))
    hear(machine, Left(worker=0, reason=LeaveReason.LOST))
    assert hear(machine, Left(worker=1, reason=LeaveReason.LOST)) == ()
    assert hear(machine, Joined(worker=5)) == (Admit(worker=5, clock=0), *granted(5, clock=1))


def test_what_no_world_may_send_is_a_bug():
    machine = start(ONE, num_workers=4)
    machine.handle(Arrived(worker=0, clock=1))
    for event in (Arrived(worker=0, clock=2), Arrived(worker=1, clock=2), Arrived(worker=9, clock=1)):
        with pytest.raises(AssertionError):
            machine.handle(event)


def test_one_straggler_costs_no_time():
    """Three workers of one second and one of four: a step takes a second, and all that the slow one makes is late."""
    played = play(ONE.start(), step_s=[*[lambda: 1.0] * 3, lambda: 4.0], num_steps=130)
    assert played.steps == (40, 40, 40, 10)
    assert played.time_s == 40
    assert set(played.staleness) == {0}
    late = [action for answer in played.answers for action in answer if isinstance(action, Refuse)]
    assert {action.worker for action in late} == {3}
    assert all(action.reason is RefuseReason.LATE for action in late)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bsp,backup=-1", "backup is -1; write a whole number of 0 or more"),
        ("bsp,backup=some", 'backup is "some"; write a whole number'),
        ("bsp,backup=1,exchange=collective", "a collective waits for all workers; backup workers need exchange=store"),
        ("bsp,backup=1,compress=fp16", "leave compress=fp16 out"),
        ("ssp:0,backup=1", 'unknown key "backup"'),
        ("hier:bsp,backup=1/asp", '"bsp,backup=1" cannot be run within a rack'),
    ],
)
def test_what_cannot_have_backup_workers_is_refused(text: str, message: str):
    with pytest.raises(PolicySpecError) as error:
        parse_policy(text)
    assert message in str(error.value)


def test_the_exchange_is_implied():
    assert parse_policy("bsp,backup=1") == parse_policy("bsp,exchange=store,backup=1") == ONE
    assert parse_policy("bsp,backup=0") == BSP()
