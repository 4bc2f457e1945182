import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from plesio.core.errors import PolicySpecError
from plesio.policies import (
    ASP,
    SSP,
    UNLIMITED,
    Admit,
    Apply,
    Arrived,
    Cap,
    Grant,
    Inverse,
    Joined,
    LeaveReason,
    Left,
    Policy,
    Refuse,
    RefuseReason,
)
from support.machines import start


def test_workers_are_admitted_with_credit_for_the_bound():
    assert SSP(bound=4).start().handle(Joined(worker=3)) == (Admit(worker=3, clock=0), Grant(worker=3, clock=5))


def test_credit_follows_the_slowest_worker():
    machine = start(SSP(bound=1), num_workers=2)
    assert machine.handle(Arrived(worker=0, clock=1)) == (
        Apply(updates=((0, 1),), weight=0.5, version=1, staleness=(0,), share=0.5),
    )
    assert machine.handle(Arrived(worker=1, clock=1, base_version=0)) == (
        Apply(updates=((1, 1),), weight=0.5, version=2, staleness=(1,), share=0.5, age=0.5),
        Grant(worker=0, clock=3),
        Grant(worker=1, clock=3),
    )


def test_departure_of_the_slowest_frees_the_others():
    machine = start(SSP(bound=1), num_workers=2)
    machine.handle(Arrived(worker=0, clock=1))
    machine.handle(Arrived(worker=0, clock=2, base_version=1))
    assert machine.handle(Left(worker=1, reason=LeaveReason.LOST)) == (Grant(worker=0, clock=4),)


def test_update_counts_no_more_because_others_have_no_samples_left():
    machine = start(SSP(bound=4, period=1), num_workers=4)
    for worker in (1, 2, 3):
        machine.handle(Left(worker=worker, reason=LeaveReason.RESTING))
    [apply, *_] = machine.handle(Arrived(worker=0, clock=1))
    assert isinstance(apply, Apply)
    assert apply.weight == 0.25
    # who is gone for good takes no samples any more, whether it rested or not
    assert machine.handle(Left(worker=1, reason=LeaveReason.LOST)) == ()
    machine.handle(Joined(worker=2))
    machine.handle(Left(worker=2, reason=LeaveReason.CLOSED))
    [apply, *_] = machine.handle(Arrived(worker=0, clock=2, base_version=1))
    assert isinstance(apply, Apply)
    assert apply.weight == 0.5


def test_newcomer_starts_where_the_slowest_was_last_heard():
    machine = start(SSP(bound=4, period=2), num_workers=2)
    machine.handle(Arrived(worker=0, clock=4, num_steps=2))
    machine.handle(Arrived(worker=1, clock=2, num_steps=2))
    assert machine.handle(Joined(worker=2)) == (Admit(worker=2, clock=2), Grant(worker=2, clock=7))


def test_after_everyone_has_left_a_newcomer_goes_on_where_the_last_one_stood():
    machine = start(SSP(bound=1), num_workers=1)
    machine.handle(Arrived(worker=0, clock=1))
    machine.handle(Left(worker=0, reason=LeaveReason.CLOSED))
    assert machine.handle(Joined(worker=1)) == (Admit(worker=1, clock=1), Grant(worker=1, clock=3))


def test_without_a_bound_credit_is_given_once_for_all():
    machine = ASP().start()
    assert machine.handle(Joined(worker=0)) == (Admit(worker=0, clock=0), Grant(worker=0, clock=UNLIMITED))
    assert machine.handle(Arrived(worker=0, clock=1)) == (
        Apply(updates=((0, 1),), weight=1.0, version=1, staleness=(0,)),
    )


def test_gradient_counts_for_the_steps_it_covers_and_a_delta_holds_them_already():
    update = Arrived(worker=0, clock=3, num_steps=3)
    applied = {
        kind: start(SSP(bound=4, update=kind), num_workers=2).handle(update)[0] for kind in ("gradient", "delta")
    }
    assert applied["gradient"] == Apply(updates=((0, 3),), weight=1.5, version=1, staleness=(0,), share=1.5)
    assert applied["delta"] == Apply(updates=((0, 3),), weight=0.5, version=1, staleness=(0,))


@pytest.mark.parametrize("num_workers", [1, 3, 8])
def test_one_step_of_every_worker_weighs_one_synchronous_step(num_workers: int):
    machine = start(ASP(), num_workers=num_workers)
    applied = [machine.handle(Arrived(worker=worker, clock=1))[0] for worker in range(num_workers)]
    assert sum(action.weight for action in applied if isinstance(action, Apply)) == pytest.approx(1.0)


@pytest.mark.parametrize("policy", [ASP(rate="undivided"), SSP(bound=4, rate="undivided")])
def test_an_undivided_update_is_a_whole_step_of_the_stock_optimizer(policy: Policy):
    machine = start(policy, num_workers=4)
    for worker in (0, 1, 2):
        machine.handle(Arrived(worker=worker, clock=1))
    assert machine.handle(Arrived(worker=3, clock=1))[0] == Apply(
        updates=((3, 1),), weight=1.0, version=4, staleness=(3,), share=1.0, age=0.0
    )


def test_an_undivided_update_counts_for_its_steps_and_by_its_staleness():
    machine = start(ASP(rate="undivided", weighting=Inverse()), num_workers=2)
    machine.handle(Arrived(worker=0, clock=1))
    assert machine.handle(Arrived(worker=1, clock=3, num_steps=3))[0] == Apply(
        updates=((1, 3),), weight=1.5, version=2, staleness=(1,)
    )


def test_weighting_counts_versions_since_the_base():
    machine = start(ASP(weighting=Inverse()), num_workers=2)
    for clock in (1, 2, 3):
        machine.handle(Arrived(worker=0, clock=clock, base_version=clock - 1))
    assert machine.handle(Arrived(worker=1, clock=1, base_version=0)) == (
        Apply(updates=((1, 1),), weight=0.125, version=4, staleness=(3,), share=0.5, age=1.5),
    )


def test_update_beyond_the_cap_is_refused_but_its_clock_counts():
    machine = start(SSP(bound=1, weighting=Cap(limit=0)), num_workers=2)
    machine.handle(Arrived(worker=0, clock=1))
    assert machine.handle(Arrived(worker=1, clock=1, base_version=0)) == (
        Refuse(worker=1, clock=1, reason=RefuseReason.TOO_STALE),
        Grant(worker=0, clock=3),
        Grant(worker=1, clock=3),
    )
    assert machine.handle(Arrived(worker=1, clock=2, base_version=1)) == (
        Apply(updates=((1, 2),), weight=0.5, version=2, staleness=(0,), share=0.5),
    )


def test_what_was_kept_back_counts_as_a_step_more_and_its_clock_stays():
    machine = start(SSP(bound=2), num_workers=2)
    machine.handle(Arrived(worker=0, clock=2, num_steps=2))
    rest = Arrived(worker=0, clock=2, num_steps=0, base_version=1)
    assert machine.handle(rest) == (Apply(updates=((0, 2),), weight=0.5, version=2, staleness=(0,), share=0.5),)


def test_update_that_is_not_finite_is_refused_but_its_clock_counts():
    machine = start(SSP(bound=1), num_workers=1)
    assert machine.handle(Arrived(worker=0, clock=1, finite=False)) == (
        Refuse(worker=0, clock=1, reason=RefuseReason.NOT_FINITE),
        Grant(worker=0, clock=3),
    )


@pytest.mark.parametrize(
    "event",
    [
        Arrived(worker=9, clock=1),
        Left(worker=9, reason=LeaveReason.LOST),
        Joined(worker=0),
        Arrived(worker=0, clock=0),
        Arrived(worker=0, clock=1, num_steps=2),
        Arrived(worker=0, clock=6),
        Arrived(worker=0, clock=1, base_version=1),
    ],
)
def test_what_no_world_may_send_is_a_bug(event: Arrived | Left | Joined):
    machine = start(SSP(bound=4), num_workers=1)
    with pytest.raises(AssertionError):
        machine.handle(event)


@given(
    bound=st.integers(1, 5),
    period=st.integers(1, 6),
    schedule=st.lists(st.integers(0, 2), max_size=120),
)
def test_cached_parameters_hold_all_updates_up_to_clock_minus_bound_minus_period(
    bound: int, period: int, schedule: list[int]
):
    """The read guarantee at the head of ssp.py: parameters are pulled at each exchange, and only there."""
    policy = SSP(bound=bound, period=min(period, bound + 1))
    machine = start(policy, num_workers=3)
    clocks, heard = [0, 0, 0], [0, 0, 0]
    credit = [bound + 1] * 3
    in_cache = [[0, 0, 0] for _ in range(3)]
    version, cached_version = 0, [0, 0, 0]
    for worker in schedule:
        if clocks[worker] >= credit[worker]:
            continue
        assert min(in_cache[worker]) >= clocks[worker] - policy.bound - policy.period
        clocks[worker] += 1
        if not policy.exchanges_at(clocks[worker]):
            continue
        heard[worker] = clocks[worker]
        event = Arrived(
            worker=worker, clock=clocks[worker], num_steps=policy.period, base_version=cached_version[worker]
        )
        for action in machine.handle(event):
            if isinstance(action, Grant):
                credit[action.worker] = action.clock
            elif isinstance(action, Apply):
                version = action.version
        in_cache[worker], cached_version[worker] = list(heard), version


@pytest.mark.parametrize("bound", [0, 1, 4, math.inf])
def test_every_step_is_sent_unless_told_otherwise(bound: float):
    policy = SSP(bound=bound)
    assert all(policy.exchanges_at(clock) for clock in range(1, 10))


@pytest.mark.parametrize("bound", [-1, 2.5, math.nan, -math.inf, True, "4"])
def test_bound_must_be_a_whole_number_or_infinite(bound: float):
    with pytest.raises(PolicySpecError, match="bound is"):
        SSP(bound=bound)


def test_period_that_would_stop_everyone_is_refused():
    assert SSP(bound=4, period=5).period == 5
    with pytest.raises(PolicySpecError, match="write a period of 5 or less, or a bound of 5 or more"):
        SSP(bound=4, period=6)
