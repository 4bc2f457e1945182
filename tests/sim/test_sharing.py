import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.sim.kernel import Kernel
from plesio.sim.sharing import ProcessorSharing


def ends(plan: list[tuple[float, float]], *, capacity: float) -> list[float]:
    kernel = Kernel()
    cores = ProcessorSharing(kernel, capacity=capacity)
    found = [float("nan")] * len(plan)

    def submit(number: int) -> None:
        cores.submit(plan[number][1], lambda: found.__setitem__(number, kernel.now_s))

    for number, (start_s, _) in enumerate(plan):
        kernel.at(start_s, lambda number=number: submit(number))
    kernel.run()
    assert cores.num_jobs == 0
    return found


def test_as_many_cores_as_jobs_share_nothing():
    assert ends([(0.0, 3.0), (1.0, 4.0)], capacity=2) == [3.0, 5.0]


def test_four_jobs_on_two_cores_take_twice_as_long():
    assert ends([(0.0, 1.0)] * 4, capacity=2) == [2.0] * 4


def test_a_job_that_comes_later_slows_the_others_from_then_on():
    # the first has done 2 of 4 at t=2; then both run at half speed
    assert ends([(0.0, 4.0), (2.0, 1.0)], capacity=1) == [5.0, 4.0]


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 5)), min_size=1, max_size=10), st.integers(1, 3))
def test_work_is_conserved(plan: list[tuple[float, float]], capacity: int):
    found = ends(plan, capacity=capacity)
    assert max(found) - min(start_s for start_s, _ in plan) >= sum(work_s for _, work_s in plan) / capacity - 1e-6
    for (start_s, work_s), end_s in zip(plan, found, strict=True):
        assert start_s + work_s - 1e-6 <= end_s <= start_s + sum(work for _, work in plan) + 10 + 1e-6


@pytest.mark.parametrize("capacity", [0, -1])
def test_no_cores_are_refused(capacity: int):
    with pytest.raises(ValueError, match="cores"):
        ProcessorSharing(Kernel(), capacity=capacity)
