import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.sim.kernel import Kernel
from plesio.sim.sharing import ProcessorSharing


def ends(jobs: list[tuple[float, float]], *, capacity: float) -> list[float]:
    """End of every job of (begin, work)."""
    kernel = Kernel()
    host = ProcessorSharing(kernel, capacity=capacity)
    ended = [math.nan] * len(jobs)

    def submit(number: int, work_s: float) -> None:
        host.submit(work_s, lambda: ended.__setitem__(number, kernel.now_s))

    for number, (begin_s, work_s) in enumerate(jobs):
        kernel.at(begin_s, lambda number=number, work_s=work_s: submit(number, work_s))
    kernel.run()
    assert not any(map(math.isnan, ended))
    return ended


@pytest.mark.parametrize(
    ("jobs", "capacity", "expected"),
    [
        ([(0.0, 1.0)], 4.0, [1.0]),  # nobody uses more than one core
        ([(0.0, 1.0)] * 4, 4.0, [1.0] * 4),
        ([(0.0, 1.0)] * 4, 2.0, [2.0] * 4),
        ([(0.0, 1.0)] * 3, 1.5, [2.0] * 3),
        ([(0.0, 2.0), (1.0, 2.0)], 1.0, [3.0, 4.0]),  # the second arrives when the first has one second left
        ([(0.0, 1.0), (0.0, 3.0)], 1.0, [2.0, 4.0]),  # the longer one has the core to itself at the end
        ([(0.0, 1.0), (5.0, 1.0), (5.0, 0.0)], 1.0, [1.0, 6.0, 5.0]),  # idle in between; no work takes no time
    ],
)
def test_known_ends(jobs: Any, capacity: float, expected: list[float]):
    assert ends(jobs, capacity=capacity) == expected


def time_sliced_ends(jobs: list[tuple[float, float]], *, capacity: float) -> list[float]:
    """The same from the differential equation: from one arrival or end to the next."""
    left_s = [work_s for _, work_s in jobs]
    ended = [math.nan] * len(jobs)
    now_s = 0.0
    while any(math.isnan(end_s) for end_s in ended):
        present = [i for i, (begin_s, _) in enumerate(jobs) if begin_s <= now_s and math.isnan(ended[i])]
        later_s = min((begin_s for begin_s, _ in jobs if begin_s > now_s), default=math.inf)
        if not present:
            now_s = later_s
            continue
        rate = min(1.0, capacity / len(present))
        first = min(present, key=lambda i: left_s[i])
        next_s = min(now_s + left_s[first] / rate, later_s)
        for i in present:
            left_s[i] -= (next_s - now_s) * rate
        if next_s < later_s or left_s[first] <= 0:
            ended[first] = next_s
        now_s = next_s
    return ended


JOBS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12)), min_size=1, max_size=12)


@given(JOBS, st.sampled_from([0.5, 1.0, 2.0, 3.0, 4.0]))
def test_jobs_end_as_the_differential_equation_says(jobs: Any, capacity: float):
    # Rounding: some 30 sums and quotients of numbers up to 1e3, each within 1e-16 of itself.
    assert ends(jobs, capacity=capacity) == pytest.approx(time_sliced_ends(jobs, capacity=capacity), abs=1e-10)


@given(JOBS)
def test_a_core_is_never_idle_while_there_is_work(jobs: Any):
    """Work conserving: the last end is that of first come, first served."""
    free_s = 0.0
    for begin_s, work_s in sorted(jobs):
        free_s = max(free_s, begin_s) + work_s
    assert max(ends(jobs, capacity=1.0)) == pytest.approx(free_s, abs=1e-10)


def test_jobs_that_end_together_end_in_the_order_of_submission():
    kernel = Kernel()
    host = ProcessorSharing(kernel, capacity=2)
    order: list[int] = []
    for number in range(5):
        host.submit(1.0, lambda number=number: order.append(number))
    kernel.run()
    assert order == [0, 1, 2, 3, 4]


def test_a_job_may_submit_the_next():
    kernel = Kernel()
    host = ProcessorSharing(kernel, capacity=1)
    host.submit(1.0, lambda: host.submit(1.0, lambda: None))
    kernel.run()
    assert kernel.now_s == 2.0


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_capacity_is_refused(capacity: float):
    with pytest.raises(ValueError, match="capacity"):
        ProcessorSharing(Kernel(), capacity=capacity)


@pytest.mark.parametrize("work_s", [-1.0, math.inf, math.nan])
def test_impossible_work_is_refused(work_s: float):
    with pytest.raises(ValueError, match="job of"):
        ProcessorSharing(Kernel(), capacity=1).submit(work_s, lambda: None)
