"""Packing many slices by one call, against a copy one by one."""

import pytest
import torch

from plesio.runtime.parameters.layout import Slice, SliceLayout
from plesio.runtime.worker.exchange.stored_state import pack, unpack

MIXED = (torch.float32, torch.float16, torch.float64)
"""After an odd number of half-precision values the next slice of a payload is not where its dtype's numbers may be."""


def tensors_of(dtypes: tuple[torch.dtype, ...]) -> dict[str, torch.Tensor]:
    """Some of five, some of six elements, one of a single one, one with its axes swapped."""
    found = {f"t{number}": torch.arange(5 + number % 2).to(dtype) + 1 for number, dtype in enumerate(dtypes)}
    found["scalar"] = torch.tensor(7.0, dtype=dtypes[0])
    found["swapped"] = torch.arange(6).to(dtypes[0]).view(2, 3).t()
    return found


def pieces_of(tensors: dict[str, torch.Tensor], *, num_servers: int) -> tuple[tuple[Slice, ...], ...]:
    named = [(name, tensors[name], "parameter", 0) for name in sorted(tensors)]
    return SliceLayout.of(named, num_servers=num_servers).servers  # type: ignore[arg-type]


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 4, (torch.bfloat16,) * 3, MIXED])
@pytest.mark.parametrize("num_servers", [1, 3])
def test_what_is_packed_is_unpacked(dtypes: tuple[torch.dtype, ...], num_servers: int):
    tensors = tensors_of(dtypes)
    targets = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    for pieces in pieces_of(tensors, num_servers=num_servers):
        parts = [piece.cut(tensors[piece.name].reshape(-1)) for piece in pieces]
        payload = torch.zeros(sum(part.nbytes for part in parts), dtype=torch.uint8)
        pack(parts, payload)
        assert payload.numpy().tobytes() == b"".join(part.view(torch.uint8).numpy().tobytes() for part in parts)
        unpack(torch.cat([payload, torch.full((9,), 3, dtype=torch.uint8)]), [(targets[p.name], p) for p in pieces])
    for name, tensor in tensors.items():
        assert torch.equal(targets[name], tensor), name


def test_a_graph_that_needs_what_is_overwritten_says_so():
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    piece = Slice(name="weight", kind="parameter", dtype="float32", group=0, start=0, stop=3, offset=0)
    unpack(torch.zeros(12, dtype=torch.uint8), [(weight.detach(), piece)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_nothing_is_packed_into_nothing():
    pack([], torch.empty(0, dtype=torch.uint8))
    unpack(torch.empty(0, dtype=torch.uint8), [])
