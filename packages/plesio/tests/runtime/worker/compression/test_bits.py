import hypothesis.strategies as st
import torch
from hypothesis import given, settings

from plesio.policies.compression import place_bits
from plesio.runtime.parameters.codecs.top_k import pack_bits, pack_places, unpack_bits, unpack_places


@settings(deadline=None)
@given(st.lists(st.integers(0, 1), max_size=70))
def test_bits_come_back(bits: list[int]):
    packed = pack_bits(torch.tensor(bits, dtype=torch.uint8))
    assert packed.dtype == torch.uint8
    assert len(packed) == -(-len(bits) // 8)
    assert unpack_bits(packed, num_bits=len(bits)).tolist() == bits


@settings(deadline=None)
@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_places_come_back_from_as_many_bytes_as_their_bits_need(case: tuple[int, set[int]]):
    among, places = case
    packed = pack_places(torch.tensor(sorted(places)), among=among)
    assert len(packed) == -(-place_bits(len(places), among=among) // 8)
    assert unpack_places(packed, num_places=len(places), among=among).tolist() == sorted(places)


def test_all_places_first_places_and_last_places():
    for among in (1, 2, 7, 8, 9, 1000, 4096):
        for number in {1, 2, among // 100 + 1, among // 2 + 1, among}:
            if number <= among:
                for places in (torch.arange(number), torch.arange(among - number, among)):
                    packed = pack_places(places, among=among)
                    assert torch.equal(unpack_places(packed, num_places=number, among=among), places)
