"""The payloads of an island's ranks, put together to one of a shard's slices, and a shard's slices, taken apart."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from plesio.protocol.bulk import BlockRow, Initial
from plesio.runtime.parameters.blocks import TensorBlock
from plesio.runtime.parameters.layout import Slice, slices_of

__all__ = ["IslandPayloads", "initial_of", "put_together", "taken_apart"]


IslandPayloads = Sequence[tuple[NDArray[np.uint8], Sequence[int] | None, Sequence[BlockRow]]]
"""Payload, the slices in it (None: all), and part of every slice's tensor, of each rank of an island."""


def initial_of(initial: Initial, parts: IslandPayloads) -> NDArray[np.uint8]:
    """Return the initial values that an island's ranks have sent, as one worker would have sent them."""
    return put_together(slices_of(initial.slices), parts)[1]


def put_together(slices: Sequence[Slice], parts: IslandPayloads) -> tuple[list[int], NDArray[np.uint8]]:
    """Make one payload of those of an island's ranks.

    Args:
        slices: The shard's.
        parts: What the ranks have sent.

    Returns:
        The slices of which any rank has a part, and all of them packed; what no rank has is zero.
    """
    have = [range(len(slices)) if present is None else present for _, present, _ in parts]
    indices = sorted({index for one in have for index in one})
    begins, num_bytes = {}, 0
    for index in indices:
        begins[index] = num_bytes
        num_bytes += slices[index].num_bytes
    whole = np.zeros(num_bytes, np.uint8)
    for (payload, _, blocks), present in zip(parts, have, strict=True):
        packed, position = torch.from_numpy(payload), 0
        for index in present:
            piece = slices[index]
            target = whole[begins[index] : begins[index] + piece.num_bytes]
            for view in _views(torch.from_numpy(target), piece, blocks[index]):
                end = position + view.numel()
                view.copy_(packed[position:end].view_as(view))
                position = end
    return indices, whole


def taken_apart(flat: torch.Tensor, piece: Slice, block: BlockRow) -> list[torch.Tensor]:
    """Return the bytes of a block's elements in a slice, whose bytes are ``flat`` (uint8), in order."""
    return [view.reshape(-1) for view in _views(flat, piece, block)]


def _views(flat: torch.Tensor, piece: Slice, row: BlockRow) -> Iterator[torch.Tensor]:
    """Yield the bytes of the block's elements: a payload need not lie on its dtype's boundary."""
    size = piece.torch_dtype.itemsize
    width, first, num_rows, column, num_columns = row
    block = TensorBlock(width * size, first, num_rows, column * size, num_columns * size)
    yield from block.views(flat, start=piece.start * size, stop=piece.stop * size)
