import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.policies import ASP, SSP, Apply, Arrived, Grant, Joined
from plesio.sim.kernel import Kernel
from plesio_planning.sim.recurrences import simulate_bound
from plesio_planning.sim.store import simulate_store


class StoreOnKernel:
    """The same on the kernel, with the policy's own machine behind the server's queue."""

    def __init__(self, step_s: Any, *, service_s: float, latency_s: float, bound: float) -> None:
        self.step_s, self.service_s, self.latency_s = step_s, service_s, latency_s
        self.kernel = Kernel()
        self.machine = (ASP() if math.isinf(bound) else SSP(bound=bound, period=1)).start()
        num_workers, self.num_steps = step_s.shape
        self.begin_s, self.arrived_s, self.applied_s = np.full((3, *step_s.shape), math.nan)
        self.staleness = np.full(step_s.shape, -1)
        self.clock, self.credit, self.read = [0] * num_workers, [0] * num_workers, [0] * num_workers
        self.waits = [False] * num_workers
        self.free_s, self.version = 0.0, 0
        for worker in range(num_workers):
            self.take(self.machine.handle(Joined(worker=worker)))
        for worker in range(num_workers):
            self.begin(worker)
        self.kernel.run()

    def begin(self, worker: int) -> None:
        clock = self.clock[worker]
        self.begin_s[worker, clock] = self.kernel.now_s
        self.kernel.after(
            self.step_s[worker, clock],
            # A worker's number decides between updates that arrive together.
            lambda: self.kernel.after(self.latency_s, lambda: self.arrive(worker), priority=1 + worker),
        )

    def arrive(self, worker: int) -> None:
        """First come, first served: the update's turn ends when those before it and itself have been served."""
        self.arrived_s[worker, self.clock[worker]] = self.kernel.now_s
        self.free_s = max(self.free_s, self.kernel.now_s) + self.service_s
        # Before the arrivals of the same moment, in the order of arrival.
        self.kernel.at(self.free_s, lambda: self.apply(worker), priority=-1)

    def apply(self, worker: int) -> None:
        self.applied_s[worker, self.clock[worker]] = self.kernel.now_s
        self.clock[worker] += 1
        self.waits[worker] = True
        actions = self.machine.handle(Arrived(worker=worker, clock=self.clock[worker], base_version=self.read[worker]))
        self.take(actions)
        for other, waits in enumerate(self.waits):
            if waits and self.clock[other] < min(self.credit[other], self.num_steps):
                self.waits[other], self.read[other] = False, self.version
                self.kernel.after(self.latency_s, lambda other=other: self.begin(other))

    def take(self, actions: Any) -> None:
        for action in actions:
            if isinstance(action, Grant):
                self.credit[action.worker] = action.clock
            if isinstance(action, Apply):
                self.version = action.version
                for (worker, clock), staleness in zip(action.updates, action.staleness, strict=True):
                    self.staleness[worker, clock - 1] = staleness


@settings(deadline=None)  # the first call compiles
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 7),
    st.integers(1, 9),
    st.sampled_from([0.01, 0.3, 2.0]),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0, 1, 3, math.inf]),
)
def test_store_is_that_of_the_policy_on_the_kernel_to_the_bit(
    seed: int, num_workers: int, num_steps: int, service_s: float, latency_s: float, bound: float
):
    step_s = np.random.default_rng(seed).lognormal(0.0, 0.7, (num_workers, num_steps))
    found = simulate_store(step_s, service_s=service_s, latency_s=latency_s, bound=bound)
    # The machine of SSP(0) counts rounds, in which nothing is stale; the loop counts updates. Times agree all the same.
    twin = StoreOnKernel(step_s, service_s=service_s, latency_s=latency_s, bound=bound)
    assert found.begin_s.tolist() == twin.begin_s.tolist()
    assert found.arrived_s.tolist() == twin.arrived_s.tolist()
    assert found.applied_s.tolist() == twin.applied_s.tolist()
    if bound > 0:
        assert found.staleness.tolist() == twin.staleness.tolist()


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 6), st.sampled_from([0, 1, 4, math.inf]))
def test_the_server_takes_updates_in_the_order_of_time_and_worker(
    seed: int, num_workers: int, num_steps: int, bound: float
):
    """Whole times, so that many updates arrive together."""
    step_s = np.random.default_rng(seed).integers(0, 4, (num_workers, num_steps))
    found = simulate_store(step_s, service_s=1.0, bound=bound)
    by_application = np.argsort(found.applied_s, axis=None)
    workers = by_application // num_steps
    keys = list(zip(found.arrived_s.ravel()[by_application].tolist(), workers.tolist(), strict=True))
    assert keys == sorted(keys)
    assert (np.diff(found.applied_s.ravel()[by_application]) >= 1.0).all()


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 9), st.sampled_from([0, 2, math.inf]))
def test_a_server_that_takes_no_time_leaves_the_recurrence(seed: int, num_workers: int, num_steps: int, bound: float):
    step_s = np.random.default_rng(seed).lognormal(0.0, 0.7, (num_workers, num_steps))
    found = simulate_store(step_s, service_s=0.0, latency_s=0.25, bound=bound)
    recurrence = simulate_bound(step_s, bound=bound, exchange_s=0.5)
    assert found.begin_s == pytest.approx(recurrence.begin_s, rel=1e-13)


@pytest.mark.parametrize(("num_workers", "seconds_per_update"), [(1, 5.0), (2, 2.5), (4, 1.25), (8, 1.0), (32, 1.0)])
def test_throughput_is_that_of_the_closed_queue(num_workers: int, seconds_per_update: float):
    """Computing 3 s, serving 1 s, half a second each way: one server is the limit from 5 workers on."""
    found = simulate_store(np.full((num_workers, 50), 3.0), service_s=1.0, latency_s=0.5)
    applied_s = np.sort(found.applied_s, axis=None)
    settled = num_workers * 25
    assert (applied_s[-1] - applied_s[-1 - settled]) / settled == seconds_per_update
    if num_workers > 1:
        assert (found.staleness[:, 5:] == num_workers - 1).all()


def test_bound_limits_the_lead_at_a_slow_worker():
    step_s = np.ones((3, 20))
    step_s[2] = 4.0
    found = simulate_store(step_s, service_s=0.125, bound=2)
    for k in range(3, 20):
        assert (found.begin_s[:, k] >= found.applied_s[:, k - 3].max()).all()


@pytest.mark.parametrize(
    "wrong", [{"step_s": [1.0]}, {"step_s": [[math.nan]]}, {"service_s": -1.0}, {"latency_s": math.inf}, {"bound": 0.5}]
)
def test_impossible_arguments_are_refused(wrong: Any):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        simulate_store(**({"step_s": [[1.0]], "service_s": 1.0} | wrong))
