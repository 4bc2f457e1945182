"""Every policy, under random schedules of workers that join, run, send late, send NaN, leave and are lost."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from plesio.policies import Arrived, Grant, Joined, LeaveReason, parse_policy
from support.schedules.machine_laws import CATALOGUE, NUM_WORKERS, Laws

WORKERS = st.integers(0, NUM_WORKERS - 1)


class LawsOfPolicy(RuleBasedStateMachine):
    """Has Hypothesis choose what happens next."""

    spec = ""

    def __init__(self) -> None:
        super().__init__()
        self.laws = Laws(parse_policy(self.spec))

    @rule(worker=WORKERS)
    def join(self, worker: int) -> None:
        self.laws.join(worker)

    @precondition(lambda self: self.laws.live)
    @rule(worker=WORKERS, num_steps=st.integers(1, 7), finite=st.sampled_from([True, True, True, False]))
    def run(self, worker: int, num_steps: int, finite: bool) -> None:
        self.laws.run(worker, num_steps=num_steps, finite=finite)

    @precondition(lambda self: any(worker.in_flight for worker in self.laws.live.values()))
    @rule(worker=WORKERS)
    def deliver(self, worker: int) -> None:
        self.laws.deliver(worker)

    @precondition(lambda self: self.laws.live or self.laws.asking)
    @rule(worker=WORKERS, reason=st.sampled_from(LeaveReason))
    def leave(self, worker: int, reason: LeaveReason) -> None:
        self.laws.leave(worker, reason)

    @precondition(lambda self: self.laws.resting)
    @rule(worker=WORKERS, reason=st.sampled_from([LeaveReason.CLOSED, LeaveReason.LOST]))
    def leave_while_resting(self, worker: int, reason: LeaveReason) -> None:
        self.laws.leave_while_resting(worker, reason)

    def teardown(self) -> None:
        self.laws.end()


@pytest.mark.parametrize("spec", CATALOGUE)
def test_policy_keeps_its_laws_under_any_schedule(spec: str):
    class Chosen(LawsOfPolicy):
        pass

    Chosen.spec = spec
    run_state_machine_as_test(Chosen, settings=settings(max_examples=12, stateful_step_count=40, deadline=None))


@pytest.mark.parametrize("spec", [spec for spec in CATALOGUE if "backup" not in spec])
def test_lead_reaches_the_bound(spec: str):
    """The bound is no tighter than it says: a worker beside one that never runs gets exactly that far."""
    policy = parse_policy(spec)
    machine = policy.start()
    machine.handle(Joined(worker=0))
    credit = max(action.clock for action in machine.handle(Joined(worker=1)) if isinstance(action, Grant))
    for clock in range(1, min(credit, 20) + 1):
        if policy.exchanges_at(clock):
            event = Arrived(worker=1, clock=clock, num_steps=policy.period)
            for action in machine.handle(event):
                assert not isinstance(action, Grant), "nothing new is known of worker 0"
    if math.isinf(policy.bound):
        assert credit > 2**60
    else:
        assert credit - 1 == policy.bound
