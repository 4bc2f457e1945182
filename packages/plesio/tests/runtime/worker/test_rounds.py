import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from plesio.runtime.worker.rounds import RoundRecords, divide


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(st.integers(n, 200), st.lists(st.floats(0.01, 1), min_size=n, max_size=n))
    )
)
def test_parts_add_up_and_none_is_empty(case: tuple[int, list[float]]):
    total, weights = case
    shares = [weight / sum(weights) for weight in weights]
    parts = divide(total, shares)
    assert sum(parts) == total
    assert min(parts) >= 1


@settings(deadline=None)  # it goes through all divisions
@given(st.integers(8, 200))
def test_no_other_division_has_a_shorter_round(total: int):
    """Against all divisions among three: the largest part over its share is as small as can be."""
    shares = [0.5, 0.3, 0.2]
    longest = max(part / share for part, share in zip(divide(total, shares), shares, strict=True))
    for first in range(1, total - 1):
        for second in range(1, total - first):
            other = (first, second, total - first - second)
            assert longest <= max(part / share for part, share in zip(other, shares, strict=True)) + 1e-9


def test_shares_hold_from_the_first_round_that_nobody_can_have_drawn():
    book = RoundRecords(0, 2, warn=pytest.fail)
    book.draw_ahead(2)
    assert book.draw([4, 4]) == [4, 4]
    book.taken(4)
    book.trained(4)
    book.change([0.75, 0.25])
    assert [book.draw([4, 4]) for _ in range(3)] == [[4, 4], [4, 4], [6, 2]]


def test_a_step_counts_what_it_is_made_of():
    book = RoundRecords(1, 2, warn=pytest.fail)
    book.change([0.75, 0.25])
    for _ in range(2):
        book.draw([4, 4])
    book.taken(2)
    book.taken(2)  # two batches make one step
    assert book.weight() == pytest.approx(4 * 2 / 16)
    assert book.relative_size == pytest.approx(0.5)
    book.trained(4)
    assert book.weight() == pytest.approx(0.5), "the step's, until the next batch is taken"
    assert book.global_samples == 16


def test_equal_shares_weigh_nothing_even_in_a_short_round():
    book = RoundRecords(0, 2, warn=pytest.fail)
    book.draw([3, 2])
    book.taken(3)
    assert book.weight() == 1.0


def test_what_was_drawn_and_left_is_not_counted():
    book = RoundRecords(0, 2, warn=pytest.fail)
    book.draw([4, 4])
    book.draw([4, 4])
    book.taken(4)
    book.trained(4)
    book.abandon()
    book.change([0.75, 0.25])
    assert book.draw([4, 4]) == [6, 2]
    assert book.global_samples == 8
