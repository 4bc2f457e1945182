import pytest

from plesio.policies import (
    BSP,
    SSP,
    Admit,
    Apply,
    Arrived,
    Grant,
    Joined,
    LeaveReason,
    Left,
    LocalSGD,
    Policy,
    Refuse,
    RefuseReason,
)
from support.machines import start


def mean_of(*updates: tuple[int, int], version: int) -> Apply:
    return Apply(updates=updates, weight=1.0, version=version, staleness=(0,) * len(updates))


def test_first_workers_are_admitted_at_zero_with_credit_for_one_round():
    machine = LocalSGD(period=8, delay=3).start()
    assert machine.handle(Joined(worker=5)) == (Admit(worker=5, clock=0), Grant(worker=5, clock=11))


@pytest.mark.parametrize("policy", [BSP(), BSP(exchange="store"), SSP(bound=0), LocalSGD(period=1)])
def test_every_step_waits_for_all_and_averages_in_order_of_arrival(policy: Policy):
    machine = start(policy, num_workers=3)
    assert machine.handle(Arrived(worker=2, clock=1)) == ()
    assert machine.handle(Arrived(worker=0, clock=1)) == ()
    assert machine.handle(Arrived(worker=1, clock=1)) == (
        mean_of((2, 1), (0, 1), (1, 1), version=1),
        Grant(worker=0, clock=2),
        Grant(worker=1, clock=2),
        Grant(worker=2, clock=2),
    )


def test_update_that_is_not_finite_is_refused_and_the_round_goes_on():
    machine = start(BSP(), num_workers=2)
    refusal = Refuse(worker=0, clock=1, reason=RefuseReason.NOT_FINITE)
    assert machine.handle(Arrived(worker=0, clock=1, finite=False)) == (refusal,)
    assert machine.handle(Arrived(worker=1, clock=1)) == (
        mean_of((1, 1), version=1),
        Grant(worker=0, clock=2),
        Grant(worker=1, clock=2),
    )


def test_round_without_a_finite_update_makes_no_version():
    machine = start(BSP(), num_workers=1)
    assert machine.handle(Arrived(worker=0, clock=1, finite=False)) == (
        Refuse(worker=0, clock=1, reason=RefuseReason.NOT_FINITE),
        Grant(worker=0, clock=2),
    )
    assert machine.handle(Arrived(worker=0, clock=2)) == (mean_of((0, 2), version=1), Grant(worker=0, clock=3))


@pytest.mark.parametrize("reason", LeaveReason)
def test_departed_worker_no_longer_holds_the_round(reason: LeaveReason):
    machine = start(BSP(), num_workers=2)
    machine.handle(Arrived(worker=0, clock=1))
    assert machine.handle(Left(worker=1, reason=reason)) == (mean_of((0, 1), version=1), Grant(worker=0, clock=2))


def test_what_a_departed_worker_had_contributed_counts():
    machine = start(BSP(), num_workers=2)
    machine.handle(Arrived(worker=0, clock=1))
    assert machine.handle(Left(worker=0, reason=LeaveReason.LOST)) == ()
    assert machine.handle(Arrived(worker=1, clock=1)) == (mean_of((0, 1), (1, 1), version=1), Grant(worker=1, clock=2))


def test_newcomer_owes_an_update_to_the_open_round():
    machine = start(LocalSGD(period=4), num_workers=1)
    machine.handle(Arrived(worker=0, clock=4, num_steps=4))
    assert machine.handle(Joined(worker=1)) == (Admit(worker=1, clock=4), Grant(worker=1, clock=8))
    assert machine.handle(Arrived(worker=0, clock=8, num_steps=4)) == ()
    assert machine.handle(Arrived(worker=1, clock=8, num_steps=4))[0] == mean_of((0, 8), (1, 8), version=2)


def test_worker_that_returns_to_a_round_it_has_contributed_to_is_admitted_after_it():
    machine = start(BSP(), num_workers=2)
    machine.handle(Arrived(worker=0, clock=1))
    machine.handle(Left(worker=0, reason=LeaveReason.CLOSED))
    assert machine.handle(Joined(worker=0)) == ()
    assert machine.handle(Arrived(worker=1, clock=1)) == (
        mean_of((0, 1), (1, 1), version=1),
        Grant(worker=1, clock=2),
        Admit(worker=0, clock=1),
        Grant(worker=0, clock=2),
    )


def test_worker_that_returns_and_leaves_again_before_the_round_completes_is_not_admitted():
    machine = start(BSP(), num_workers=2)
    machine.handle(Arrived(worker=0, clock=1))
    machine.handle(Left(worker=0, reason=LeaveReason.CLOSED))
    machine.handle(Joined(worker=0))
    assert machine.handle(Left(worker=0, reason=LeaveReason.LOST)) == ()
    assert machine.handle(Arrived(worker=1, clock=1)) == (mean_of((0, 1), (1, 1), version=1), Grant(worker=1, clock=2))


def test_last_round_completes_when_the_last_worker_leaves_and_the_next_comer_goes_on_from_there():
    machine = start(BSP(), num_workers=2)
    machine.handle(Arrived(worker=0, clock=1))
    machine.handle(Left(worker=0, reason=LeaveReason.CLOSED))
    assert machine.handle(Left(worker=1, reason=LeaveReason.LOST)) == (mean_of((0, 1), version=1),)
    assert machine.handle(Joined(worker=7)) == (Admit(worker=7, clock=1), Grant(worker=7, clock=2))


def test_delay_lets_workers_run_on_behind_their_contribution():
    machine = start(LocalSGD(period=4, delay=2), num_workers=2)
    machine.handle(Arrived(worker=0, clock=4, num_steps=4))
    assert machine.handle(Arrived(worker=1, clock=4, num_steps=4)) == (
        mean_of((0, 4), (1, 4), version=1),
        Grant(worker=0, clock=10),
        Grant(worker=1, clock=10),
    )


def test_with_a_whole_period_of_delay_the_next_contribution_waits_its_turn():
    machine = start(LocalSGD(period=2, delay=2), num_workers=2)
    machine.handle(Arrived(worker=0, clock=2, num_steps=2))
    assert machine.handle(Arrived(worker=0, clock=4, num_steps=2)) == ()
    assert machine.handle(Left(worker=1, reason=LeaveReason.LOST)) == (
        mean_of((0, 2), version=1),
        Grant(worker=0, clock=6),
        mean_of((0, 4), version=2),
        Grant(worker=0, clock=8),
    )


@pytest.mark.parametrize(
    "events",
    [
        [Arrived(worker=9, clock=1)],
        [Left(worker=9, reason=LeaveReason.LOST)],
        [Joined(worker=0)],
        [Arrived(worker=0, clock=2)],
        [Arrived(worker=0, clock=1), Arrived(worker=0, clock=1)],
        [Arrived(worker=0, clock=1), Arrived(worker=0, clock=2)],
    ],
)
def test_what_no_world_may_send_is_a_bug(events: list[Arrived | Left | Joined]):
    machine = start(BSP(), num_workers=2)
    for event in events[:-1]:
        machine.handle(event)
    with pytest.raises(AssertionError):
        machine.handle(events[-1])


def test_a_worker_exchanges_and_merges_by_its_own_clock():
    policy = LocalSGD(period=4, delay=2)
    assert [clock for clock in range(12) if policy.exchanges_at(clock)] == [4, 8]
    assert {clock: policy.merges_at(clock) for clock in range(12) if policy.merges_at(clock) is not None} == {
        6: 4,
        10: 8,
    }
    assert [BSP().merges_at(clock) for clock in (0, 1, 2)] == [None, 1, 2]
