import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.policies import ASP, BSP, SSP, Arrived, Grant, Joined, LocalSGD, Policy
from plesio.sim.kernel import Kernel
from plesio_planning.sim.recurrences import simulate_barrier, simulate_bound


class PolicyOnKernel:
    """Workers on the kernel under the policy's own machine; the twin of every recurrence here.

    A collective exchange begins when all have contributed and the one before is over; workers go on meanwhile as far as
    their credit reaches. An exchange with the store is each worker's own, and it waits for it.
    """

    def __init__(self, policy: Policy, step_s: Any, *, exchange_s: float) -> None:
        self.policy, self.step_s, self.exchange_s = policy, step_s, exchange_s
        self.collective = policy.exchange == "collective"
        self.kernel = Kernel()
        self.machine = policy.start()
        num_workers, self.num_steps = step_s.shape
        self.begin_s = np.full(step_s.shape, math.nan)
        self.clock, self.credit = [0] * num_workers, [0] * num_workers
        self.idle = [True] * num_workers
        self.link_free_s = 0.0
        for worker in range(num_workers):
            self.grant(self.machine.handle(Joined(worker=worker)))
        self.kernel.run()

    def grant(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, Grant):
                self.credit[action.worker] = action.clock
                self.begin(action.worker)

    def begin(self, worker: int) -> None:
        clock = self.clock[worker]
        if self.idle[worker] and clock < min(self.credit[worker], self.num_steps):
            self.idle[worker] = False
            self.begin_s[worker, clock] = self.kernel.now_s
            self.kernel.after(self.step_s[worker, clock], lambda: self.finish(worker))

    def finish(self, worker: int) -> None:
        self.clock[worker] += 1
        if not self.collective:
            self.kernel.after(self.exchange_s, lambda: self.arrive(worker))
            return
        self.idle[worker] = True
        clock = self.clock[worker]
        exchanges = self.policy.exchanges_at(clock)
        if exchanges and (actions := self.machine.handle(Arrived(worker=worker, clock=clock))):
            self.link_free_s = max(self.link_free_s, self.kernel.now_s) + self.exchange_s
            self.kernel.at(self.link_free_s, lambda: self.grant(actions))
        self.begin(worker)

    def arrive(self, worker: int) -> None:
        self.idle[worker] = True
        self.grant(self.machine.handle(Arrived(worker=worker, clock=self.clock[worker])))
        self.begin(worker)


def step_times(*, seed: int, num_workers: int, num_steps: int) -> Any:
    """Random times; half of the seeds give whole ones, with many ties."""
    random = np.random.default_rng(seed)
    step_s = random.lognormal(0.0, 0.7, (num_workers, num_steps))
    return np.round(step_s) if seed % 2 else step_s


MATRICES = st.builds(
    step_times, seed=st.integers(0, 2**32 - 1), num_workers=st.integers(1, 5), num_steps=st.integers(1, 14)
)
EXCHANGES = st.sampled_from([0.0, 0.1, 1.0, 10.0])


@settings(deadline=None)  # the first call compiles
@given(MATRICES, EXCHANGES, st.integers(1, 5), st.data())
def test_barrier_is_local_sgd_on_the_kernel_to_the_bit(step_s: Any, exchange_s: float, period: int, data: Any):
    delay = data.draw(st.integers(0, period))
    found = simulate_barrier(step_s, exchange_s=exchange_s, period=period, delay=delay)
    twin = PolicyOnKernel(LocalSGD(period=period, delay=delay), step_s, exchange_s=exchange_s)
    assert found.begin_s.tolist() == twin.begin_s.tolist()
    assert found.end_s == twin.kernel.now_s


@settings(deadline=None)
@given(MATRICES, EXCHANGES)
def test_barrier_of_period_one_is_bsp_on_the_kernel_to_the_bit(step_s: Any, exchange_s: float):
    twin = PolicyOnKernel(BSP(), step_s, exchange_s=exchange_s)
    assert simulate_barrier(step_s, exchange_s=exchange_s).begin_s.tolist() == twin.begin_s.tolist()


@settings(deadline=None)
@given(MATRICES, EXCHANGES, st.sampled_from([0, 1, 2, 5, math.inf]))
def test_bound_is_ssp_on_the_kernel_to_the_bit(step_s: Any, exchange_s: float, bound: float):
    policy = ASP() if math.isinf(bound) else SSP(bound=bound, period=1)
    found = simulate_bound(step_s, bound=bound, exchange_s=exchange_s)
    twin = PolicyOnKernel(policy, step_s, exchange_s=exchange_s)
    assert found.begin_s.tolist() == twin.begin_s.tolist()
    assert found.end_s == twin.kernel.now_s


@settings(deadline=None)
@given(MATRICES, EXCHANGES)
def test_bound_zero_is_bsp_and_a_large_bound_is_asp(step_s: Any, exchange_s: float):
    bsp, zero = simulate_barrier(step_s, exchange_s=exchange_s), simulate_bound(step_s, bound=0, exchange_s=exchange_s)
    assert (bsp.begin_s == zero.begin_s).all()
    assert bsp.end_s == zero.end_s
    asp = simulate_bound(step_s, bound=math.inf, exchange_s=exchange_s)
    assert (asp.begin_s == simulate_bound(step_s, bound=step_s.shape[1], exchange_s=exchange_s).begin_s).all()
    alone_s = np.cumsum(step_s + exchange_s, axis=1)[:, :-1]
    assert asp.begin_s[:, 1:] == pytest.approx(alone_s, rel=1e-13)


@settings(deadline=None)
@given(MATRICES, EXCHANGES, st.integers(0, 6))
def test_no_step_begins_at_a_lead_above_the_bound_and_a_larger_one_is_never_slower(
    step_s: Any, exchange_s: float, bound: int
):
    found = simulate_bound(step_s, bound=bound, exchange_s=exchange_s)
    for k in range(bound + 1, step_s.shape[1]):
        assert (found.begin_s[:, k] >= found.finish_s[:, k - bound - 1].max()).all()
    larger = simulate_bound(step_s, bound=bound + 1, exchange_s=exchange_s)
    assert (larger.begin_s <= found.begin_s).all()


def test_closed_forms_of_equal_and_of_slow_workers():
    step_s = np.full((4, 12), 2.0)
    assert simulate_barrier(step_s, exchange_s=0.5).end_s == 12 * 2.5
    assert simulate_barrier(step_s, exchange_s=0.5, period=4).end_s == 12 * 2.0 + 3 * 0.5
    assert simulate_barrier(step_s, exchange_s=0.5, period=4, delay=1).end_s == 12 * 2.0 + 0.5  # hidden, but the last
    step_s[3] = 5.0
    # A persistent straggler sets everyone's pace whatever the bound (what SSP cannot remove).
    assert simulate_bound(step_s, bound=3).end_s == 12 * 5.0
    assert simulate_bound(step_s, bound=3).begin_s[0, 11] == 8 * 5.0
    assert simulate_bound(step_s, bound=math.inf).finish_s[:3, -1].tolist() == [24.0] * 3


def test_a_stall_that_the_bound_covers_costs_the_others_nothing():
    step_s = np.ones((2, 10))
    step_s[0, 3] = 4.0
    assert simulate_barrier(step_s).blocked_s.tolist() == [0.0, 3.0]
    assert simulate_bound(step_s, bound=3).blocked_s.tolist() == [0.0, 0.0]


def test_exchange_times_may_differ():
    assert simulate_barrier(np.ones((2, 4)), exchange_s=[1.0, 3.0], period=2).end_s == 4 + 4


@pytest.mark.parametrize("step_s", [[1.0], [[]], [[-1.0]], [[math.nan]], [[math.inf]]])
def test_impossible_step_times_are_refused(step_s: Any):
    with pytest.raises(ValueError, match="step_s"):
        simulate_barrier(step_s)
    with pytest.raises(ValueError, match="step_s"):
        simulate_bound(step_s, bound=1)


@pytest.mark.parametrize("options", [{"period": 0}, {"period": 2, "delay": 3}, {"exchange_s": -1.0}])
def test_an_impossible_barrier_is_refused(options: Any):
    with pytest.raises(ValueError, match=r"write"):
        simulate_barrier([[1.0, 1.0]], **options)


@pytest.mark.parametrize(
    "options", [{"bound": -1}, {"bound": 1.5}, {"bound": math.nan}, {"bound": 1, "exchange_s": -1}]
)
def test_an_impossible_bound_is_refused(options: Any):
    with pytest.raises(ValueError, match=r"write"):
        simulate_bound([[1.0, 1.0]], **options)
