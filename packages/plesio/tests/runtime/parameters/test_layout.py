import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import ExchangeError
from plesio.runtime.parameters.layout import ALIGNMENT, SliceLayout, TensorKind, slices_of

DTYPES = (torch.float32, torch.float64, torch.float16)

Parts = list[tuple[tuple[int, ...], torch.dtype]]

shapes = st.lists(
    st.tuples(st.lists(st.integers(0, 9), max_size=3).map(tuple), st.sampled_from(DTYPES)), min_size=1, max_size=8
)


def tensors_of(parts: Parts) -> list[tuple[str, torch.Tensor, TensorKind, int]]:
    return [(f"t{i}", torch.zeros(shape, dtype=dtype), "parameter", 0) for i, (shape, dtype) in enumerate(parts)]


@given(shapes, st.integers(1, 5))
def test_slices_cover_every_element_once_and_bytes_are_balanced(parts: Parts, num_servers: int):
    tensors = tensors_of(parts)
    if sum(tensor.numel() for _, tensor, _, _ in tensors) < num_servers:
        with pytest.raises(ExchangeError, match="fewer elements"):
            SliceLayout.of(tensors, num_servers=num_servers)
        return
    layout = SliceLayout.of(tensors, num_servers=num_servers)
    assert len(layout.servers) == num_servers
    for name, tensor, _, _ in tensors:
        spans = sorted((s.start, s.stop) for server in layout.servers for s in server if s.name == name)
        assert all(start < stop for start, stop in spans)
        assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])][: len(spans)]
        assert (spans[-1][1] if spans else 0) == tensor.numel()
    sizes = [layout.payload_bytes(server) for server in range(num_servers)]
    total = sum(tensor.numel() * tensor.element_size() for _, tensor, _, _ in tensors)
    assert sum(sizes) == total
    element = max(tensor.element_size() for _, tensor, _, _ in tensors)
    assert all(abs(size - total / num_servers) <= element for size in sizes)


@given(shapes, st.integers(1, 3))
def test_slices_lie_aligned_and_apart_in_a_servers_block(parts: Parts, num_servers: int):
    tensors = tensors_of(parts)
    if sum(tensor.numel() for _, tensor, _, _ in tensors) < num_servers:
        return
    layout = SliceLayout.of(tensors, num_servers=num_servers)
    for number, slices in enumerate(layout.servers):
        block = torch.zeros(layout.block_bytes(number), dtype=torch.uint8)
        for fill, piece in enumerate(slices, start=1):
            assert piece.offset % ALIGNMENT == 0
            view = piece.view(block)
            assert view.numel() == piece.stop - piece.start
            assert not view.any(), "two slices share memory"
            view.fill_(fill)
        assert slices_of(layout.rows(number)) == slices


def test_digest_tells_models_and_numbers_of_servers_apart():
    one = [("a", torch.zeros(4, 3), "parameter", 0)]
    digests = {
        SliceLayout.of(one, num_servers=1).digest(),
        SliceLayout.of(one, num_servers=2).digest(),
        SliceLayout.of([("b", torch.zeros(4, 3), "parameter", 0)], num_servers=1).digest(),
        SliceLayout.of([("a", torch.zeros(4, 3, dtype=torch.float64), "parameter", 0)], num_servers=1).digest(),
        SliceLayout.of([("a", torch.zeros(4, 3), "parameter", 1)], num_servers=1).digest(),
    }
    assert len(digests) == 5
    assert SliceLayout.of(one, num_servers=2).digest() == SliceLayout.of(one, num_servers=2).digest()
