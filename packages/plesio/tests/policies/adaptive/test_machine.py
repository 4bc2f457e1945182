import itertools
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from plesio.policies import (
    Adaptive,
    Event,
    Joined,
    LeaveReason,
    Left,
    PolicyMachine,
    Resumed,
    Reviewed,
    Steer,
    parse_policy,
    replay,
)
from plesio.policies.review_clocks import FIRST_CLOCK, FIRST_REVIEW, next_review
from plesio.policies.steered import LEAD


def review(
    worker: int, clock: int, *, steps: int, step_s: float = 0.02, blocked_s: float = 0.0, loss: float = 1.0
) -> Reviewed:
    return Reviewed(
        worker=worker,
        clock=clock,
        samples=(8,) * steps,
        compute_s=(step_s,) * steps,
        blocked_s=(blocked_s,) * steps,
        loss=loss,
        learning_rate=0.1,
        exchanges=((float(clock - 4), blocked_s),),
    )


def drive(
    machine: PolicyMachine, *, workers: int, reviews: int, blocked_s: float = 0.08
) -> tuple[list[Event], list[Steer]]:
    """Let workers join and report as they are told."""
    events: list[Event] = [Joined(worker=worker) for worker in range(workers)]
    for event in events:
        machine.handle(event)
    clock, since, answers = FIRST_REVIEW, 0, []
    for number in range(reviews):
        for worker in range(workers):
            loss = 2.0 * 0.9**number
            event = review(worker, clock, steps=clock - since, blocked_s=blocked_s, loss=loss)
            events.append(event)
            actions = machine.handle(event)
            machine.validate()
            assert (len(actions) == 1) == (worker == workers - 1)
        [steer] = actions
        assert isinstance(steer, Steer)
        since = steer.clock
        clock = steer.next_review
        answers.append(steer)
    return events, answers


@given(
    st.integers(1, 500),
    st.integers(0, 5).map(lambda k: 2**k).flatmap(lambda h: st.tuples(st.just(h), st.integers(0, h))),
    st.integers(4, 64),
)
def test_reviews_are_where_nobody_need_wait_for_their_answer(since: int, period_delay: tuple[int, int], every: int):
    period, delay = period_delay
    review_clock, holds = next_review(since, period=period, delay=delay, every=every)
    assert since < review_clock <= holds - LEAD
    assert holds - since >= every
    assert (holds - delay) % period == 0
    if delay >= LEAD:  # when its averaging is merged all have reported
        assert review_clock <= holds - delay


def test_workers_are_steered_alike_when_all_have_reported():
    _, answers = drive(Adaptive().start(), workers=4, reviews=5)
    assert answers[0].clock == FIRST_CLOCK
    for before, after in itertools.pairwise(answers):
        assert after.clock == before.next_clock


def test_it_begins_with_bsp():
    adaptive = Adaptive()
    assert adaptive.first.spec == "bsp"
    events, [steer] = drive(adaptive.start(), workers=2, reviews=1)
    assert steer.before == "bsp"
    assert replay(adaptive, events)[-1] == (steer,)


def test_a_slow_network_ends_in_local_sgd_and_a_fast_one_in_bsp():
    _, slow = drive(Adaptive().start(), workers=4, reviews=6)
    _, fast = drive(Adaptive().start(), workers=4, reviews=6, blocked_s=0.0)
    assert parse_policy(slow[-1].policy).period > 1
    assert {steer.policy for steer in fast} == {"bsp"}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 8), st.floats(0.0, 0.3))
def test_the_same_events_give_the_same_actions(workers: int, reviews: int, blocked_s: float):
    machine = Adaptive().start()
    events, answers = drive(machine, workers=workers, reviews=reviews, blocked_s=blocked_s)
    assert [
        action for actions in replay(Adaptive(), events) for action in actions if isinstance(action, Steer)
    ] == answers


def test_who_leaves_is_not_waited_for():
    machine = Adaptive().start()
    for worker in range(2):
        machine.handle(Joined(worker=worker))
    assert machine.handle(review(0, FIRST_REVIEW, steps=4)) == ()
    [steer] = machine.handle(Left(worker=1, reason=LeaveReason.CLOSED))
    assert isinstance(steer, Steer)


def test_only_finite_figures_are_inputs():
    _, answers = drive(Adaptive().start(), workers=2, reviews=4)
    assert all(math.isfinite(value) for steer in answers for _, value in steer.inputs)


@pytest.mark.parametrize("lost", [False, True])
def test_a_group_that_is_new_before_the_first_answer_goes_on_under_bsp_however_it_began(*, lost: bool):
    machine = Adaptive().start()
    for worker in range(2):
        machine.handle(Joined(worker=worker))
    began = [replace(review(worker, FIRST_REVIEW, steps=FIRST_REVIEW), began_slow=True) for worker in range(2)]
    machine.handle(began[0])
    if lost:
        machine.handle(Left(worker=1, reason=LeaveReason.REPLACED))
        [steer] = machine.handle(Resumed(clock=FIRST_REVIEW))
        assert (steer.before, steer.policy) == ("bsp", "bsp")
    else:
        [steer] = machine.handle(began[1])
        assert steer.before == "bsp,compress=qsgd:8"
