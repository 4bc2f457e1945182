"""Fragments: whole tensors, each in one of them, and none much larger than the others."""

import hypothesis.strategies as st
from hypothesis import given

from plesio.runtime.worker.exchange.fragments import fragments_of

SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=12)


@given(SIZES, st.data())
def test_each_tensor_is_in_one_fragment_and_none_exceeds_another_by_more_than_a_tensor(
    sizes: list[int], data: st.DataObject
):
    number = data.draw(st.integers(1, len(sizes)))
    fragments = fragments_of(sizes, num_fragments=number)
    assert len(fragments) == number
    assert all(fragments), "a fragment without a tensor"
    assert sorted(place for fragment in fragments for place in fragment) == list(range(len(sizes)))
    totals = [[sizes[place] for place in fragment] for fragment in fragments]
    for one in totals:
        assert all(sum(one) - min(one) <= sum(other) for other in totals), "its last tensor belonged elsewhere"


def test_the_largest_goes_first_and_ties_to_the_first():
    assert fragments_of([3, 3, 2, 2, 2], num_fragments=2) == [[0, 2, 4], [1, 3]]
