"""`plesio.testing.play`: schedules come out as policies promise, and a machine that breaks a law is found out."""

import random
from functools import partial

import pytest

from plesio.policies import Action, Admit, Apply, Arrived, Event, Grant, Joined, Left, parse_policy, replay
from plesio.testing import Fault, play


def steady(seconds: float):
    return lambda: seconds


def scattered(seed: int):
    return partial(random.Random(seed).lognormvariate, 0.0, 0.5)


@pytest.mark.parametrize(
    "spec", ["bsp,exchange=store", "ssp:0,period=1", "ssp:3,period=1", "asp", "asp,weight=inverse"]
)
def test_no_policy_breaks_a_law_with_workers_that_come_and_go(spec: str):
    policy = parse_policy(spec)
    faults = [
        Fault(at_s=5.0, kind="lose", worker=1),
        Fault(at_s=9.0, kind="join"),
        Fault(at_s=20.0, kind="lose", worker=0),
    ]
    played = play(policy.start(), step_s=[scattered(rank) for rank in range(3)], num_steps=200, faults=faults)
    assert sum(played.steps) == 200
    assert len(played.steps) == 4
    assert played.largest_lead <= policy.bound
    assert replay(policy, played.events) == list(played.answers)


def test_a_barrier_waits_for_the_slowest():
    played = play(parse_policy("bsp").start(), step_s=[steady(1.0), steady(1.0), steady(3.0)], num_steps=30)
    assert (played.steps, played.time_s) == ((10, 10, 10), 30.0)
    assert played.waited_share == pytest.approx(40 / 90)
    assert set(played.staleness) == {0}


def test_without_a_bound_nobody_waits():
    played = play(parse_policy("asp").start(), step_s=[steady(1.0), steady(4.0)], num_steps=50)
    assert played.waited_s == 0.0
    assert played.steps == (40, 10)
    assert max(played.staleness) == 4  # the slow one's: what the fast one made meanwhile


def test_an_update_covers_the_steps_since_the_last_one():
    policy = parse_policy("asp,period=4")
    played = play(policy.start(), step_s=[steady(1.0)], num_steps=12, exchanges_at=policy.exchanges_at)
    updates = [event for event in played.events if isinstance(event, Arrived)]
    assert [(update.clock, update.num_steps) for update in updates] == [(4, 4), (8, 4), (12, 4)]


class Broken:
    """Admits, gives credit for one step each time, and breaks one law."""

    def __init__(self, law: str) -> None:
        self.law = law

    def handle(self, event: Event) -> tuple[Action, ...]:
        match event:
            case Joined(worker=worker):
                return (Admit(worker=worker, clock=0), Grant(worker=worker, clock=1))
            case Arrived(worker=worker, clock=clock):
                version = 7 if self.law == "version" else clock
                apply = Apply(updates=((worker, clock),), weight=1.0, version=version, staleness=(0,))
                if self.law == "credit":
                    return (apply, Grant(worker=worker, clock=clock))
                if self.law == "twice":
                    return (apply, Apply(updates=((worker, clock),), weight=1.0, version=clock + 1, staleness=(0,)))
                return (apply,)
            case Left():
                return ()
        raise AssertionError(event)

    def validate(self) -> None:
        pass


@pytest.mark.parametrize(
    ("law", "message"),
    [
        ("deadlock", r"nobody goes on: workers \[0\] wait for credit for ever"),
        ("version", "version 7 follows version 0"),
        ("credit", "credit of worker 0 goes from 1 to 1"),
        ("twice", "no update of worker 0 at clock 1 waits"),
    ],
)
def test_a_machine_that_breaks_a_law_is_found_out(law: str, message: str):
    with pytest.raises(AssertionError, match=message):
        play(Broken(law), step_s=[steady(1.0)], num_steps=5)
