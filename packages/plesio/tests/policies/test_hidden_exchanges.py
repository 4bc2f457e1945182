"""Exchanges with the store behind the training: what a worker reads is as new as without, and no worker is stuck."""

import math
import random
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given

from plesio.core.errors import PolicySpecError
from plesio.policies import ASP, SSP, Apply, Arrived, Grant, Joined, parse_policy


@dataclass
class Worker:
    """One worker's way: it pushes and asks after an exchange, and merges the answer a delay later."""

    credit: int
    clock: int = 0
    read: dict[int, int] = field(default_factory=dict)
    """By worker, the clock up to which its updates are in the parameters."""
    base_version: int = 0
    version: int = 0
    pushed: int = 0
    """The clock of its last update."""
    asked: int | None = None
    """The clock after which the answer under way is merged."""


class Store:
    """The machine of a policy, and workers that take turns at random."""

    def __init__(self, policy: SSP | ASP, *, num_workers: int) -> None:
        self.policy = policy
        self.machine = policy.start()
        self.applied = dict.fromkeys(range(num_workers), 0)
        self.version = 0
        self.credit: dict[int, int] = {}
        for worker in range(num_workers):
            self.tell(Joined(worker=worker))
        self.workers = [Worker(credit=self.credit[one], read=dict(self.applied)) for one in range(num_workers)]

    def tell(self, event: Joined | Arrived) -> None:
        for action in self.machine.handle(event):
            match action:
                case Grant(worker=worker, clock=clock):
                    self.credit[worker] = clock
                case Apply(updates=((worker, clock),), version=version, staleness=staleness):
                    assert isinstance(event, Arrived)
                    assert staleness == (version - 1 - event.base_version,)
                    self.applied[worker], self.version = clock, version
        self.machine.validate()

    def may_go_on(self, number: int) -> bool:
        """Tell whether a worker can begin its next step: it has the answer that it needs for it."""
        worker = self.workers[number]
        return worker.asked is None or worker.clock < worker.asked or self.credit[number] > worker.asked

    def step(self, number: int) -> None:
        worker, bound = self.workers[number], self.policy.bound
        if worker.asked == worker.clock:
            self.merge(number)
            if worker.pushed == worker.clock:  # a new exchange begins where the one before ends
                self.ask(number)
        assert worker.clock < worker.credit
        slowest = min(one.clock for one in self.workers)
        assert worker.clock - slowest <= bound, "the lead is above the bound"
        for other, clock in worker.read.items():
            expected = min(worker.clock - bound - self.policy.period, self.workers[other].clock)
            assert other == number or clock >= expected, f"read up to {clock} of {other} at clock {worker.clock}"
        if worker.pushed == worker.clock:
            worker.base_version = worker.version
        worker.clock += 1
        if self.policy.exchanges_at(worker.clock) or (worker.asked is None and worker.clock == worker.credit):
            self.push(number)
            if worker.asked is None:
                self.ask(number)

    def push(self, number: int) -> None:
        worker = self.workers[number]
        num_steps, worker.pushed = worker.clock - worker.pushed, worker.clock
        base = worker.base_version
        self.tell(Arrived(worker=number, clock=worker.clock, num_steps=num_steps, base_version=base))

    def ask(self, number: int) -> None:
        worker = self.workers[number]
        worker.asked = min(worker.clock + self.policy.delay, max(worker.clock, worker.credit))
        if worker.asked == worker.clock and self.credit[number] > worker.clock:
            self.merge(number)

    def merge(self, number: int) -> None:
        worker = self.workers[number]
        worker.asked, worker.credit = None, self.credit[number]
        worker.read, worker.version = dict(self.applied), self.version


@st.composite
def policies(draw: st.DrawFn) -> SSP | ASP:
    bound = draw(st.integers(1, 5))
    period = draw(st.integers(1, bound + 1))
    delay = draw(st.integers(0, min(period, bound)))
    if draw(st.booleans()):
        return SSP(bound=bound, period=period, delay=delay, update=draw(st.sampled_from(["gradient", "delta"])))
    return ASP(period=period, delay=delay)


@given(policies(), st.integers(1, 4), st.integers(0, 2**32))
def test_neither_lead_nor_staleness_is_ever_above_the_bound(policy: SSP | ASP, num_workers: int, seed: int):
    store, chance = Store(policy, num_workers=num_workers), random.Random(seed)
    weights = [chance.choice((1, 2, 10)) for _ in range(num_workers)]
    for _ in range(80):
        ready = [number for number in range(num_workers) if store.may_go_on(number)]
        assert ready, "all wait for each other"
        store.step(chance.choices(ready, [weights[number] for number in ready])[0])


def test_hiding_counts_as_staleness_within_the_bound():
    """A worker beside one that stands still gets no further with a delay than without."""
    for delay in (0, 1):
        store = Store(SSP(bound=2, delay=delay), num_workers=2)
        while store.may_go_on(0):
            store.step(0)
        assert store.workers[0].clock == 3, delay


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ssp:4,delay=2", "delay 2 is above period 1"),
        ("ssp:1,period=2,delay=2", "older than bound 1 allows; write a delay of 1 or less"),
        ("ssp:0,delay=1", "takes 1 step .* older than bound 0 allows; leave delay out, or write a bound of 1 or more"),
        ("asp,period=2,delay=3", "delay 3 is above period 2"),
        ("asp,delay=-1", "0 or more"),
        ("hier:bsp/ssp:4,delay=1", "leave delay out"),
    ],
)
def test_what_cannot_be_hidden_is_refused_in_one_line(text: str, line: str):
    with pytest.raises(PolicySpecError, match=line) as error:
        parse_policy(text)
    assert "\n" not in str(error.value)


def test_a_delay_of_any_bound_is_written_and_read():
    for text in ("ssp:4,delay=1", "asp,period=4,delay=2", "ssp:inf,period=3,delay=3,update=delta"):
        policy = parse_policy(text)
        assert (policy.spec, policy.delay > 0) == (text, True)
        assert isinstance(policy, SSP | ASP)
        assert math.isinf(policy.bound) or policy.delay <= policy.bound
