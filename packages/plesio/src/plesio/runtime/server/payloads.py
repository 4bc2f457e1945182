"""The payloads of a worker or of an island's ranks, read as the values of a shard's slices; and slices, taken apart."""

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plesio.core.errors import ExchangeError, PolicySpecError
from plesio.policies.compression import parse_compression
from plesio.protocol.bulk import BlockRow
from plesio.runtime.parameters.blocks import TensorBlock
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.parameters.layout import Slice, view_packed


class Payload(NamedTuple):
    """A payload of a worker, or of one rank of an island.

    Attributes:
        present: Indices of the slices in it; None for all.
        compressed: The compression of those of parameters, which come first, encoded together; None: none is.
        blocks: The part of every slice's tensor that the rank sends; None: all of it.
    """

    content: NDArray[np.uint8]
    present: Sequence[int] | None = None
    compressed: str | None = None
    blocks: Sequence[BlockRow] | None = None


def values_of(
    payloads: Sequence[Payload], slices: Sequence[Slice], *, of: str, num_steps: int = 1
) -> dict[int, torch.Tensor]:
    """Return the values of the slices that the payloads have, flat, by index.

    One worker's are views of its payload, if that is not compressed. An island's are put together of its ranks'; what
    no rank has is zero.

    Args:
        payloads: One worker's, or those of an island's ranks.
        slices: The shard's.
        of: Name of what was sent, for errors.
        num_steps: Divisor of compressed values, which are sums over so many steps.

    Raises:
        ExchangeError: A payload is not as long as its slices, or cannot be read.
    """
    read = [_read(payload, slices, of=of, num_steps=num_steps) for payload in payloads]
    if payloads[0].blocks is None:
        return read[0]
    values = {}
    for index in sorted({index for one in read for index in one}):
        ranks = zip(read, payloads, strict=True)
        parts = [(one[index], rank.blocks[index]) for one, rank in ranks if rank.blocks is not None and index in one]
        values[index] = put_together(slices[index], parts)
    return values


def _read(payload: Payload, slices: Sequence[Slice], *, of: str, num_steps: int) -> dict[int, torch.Tensor]:
    packed, position = torch.from_numpy(payload.content), 0
    indices: Sequence[int] = range(len(slices)) if payload.present is None else payload.present
    blocks = payload.blocks
    sizes = {index: _num_elements(slices[index], None if blocks is None else blocks[index]) for index in indices}
    values: dict[int, torch.Tensor] = {}
    if payload.compressed is not None:
        coded = {index: size for index, size in sizes.items() if slices[index].kind == "parameter"}
        numbers, position = _decoded(packed, sum(coded.values()), payload.compressed, of=of)
        if num_steps > 1:
            numbers.div_(num_steps)
        values.update(zip(coded, torch.split(numbers, list(coded.values())), strict=True))
    for index in (index for index in indices if index not in values):
        dtype = slices[index].torch_dtype
        end = position + sizes[index] * dtype.itemsize
        values[index] = view_packed(packed[position:end], dtype)
        position = end
    if position != packed.numel():
        raise ExchangeError(f"{of} has {packed.numel()} bytes; its slices make {position}")
    return values


def _num_elements(piece: Slice, block: BlockRow | None) -> int:
    if block is None:
        return piece.stop - piece.start
    start, stop = TensorBlock(*block).within(piece.start, piece.stop)
    return stop - start


def _decoded(packed: torch.Tensor, num_elements: int, compressed: str, *, of: str) -> tuple[torch.Tensor, int]:
    """Return the numbers with which ``packed`` begins, and how many bytes they take."""
    if num_elements == 0:
        return torch.empty(0), 0
    try:
        compression = parse_compression(compressed)
        if not compression.on_store:
            raise PolicySpecError("it is added up among workers")
        num_bytes = -(-compression.payload_bits(num_elements) // 8)
        codec = make_codec(compression, num_elements=num_elements, seed=0, rank=0)
        return codec.decode(view_packed(packed[:num_bytes], codec.payload_dtype), clock=0), num_bytes
    except (PolicySpecError, RuntimeError, IndexError) as error:
        line = str(error).splitlines()[0]
        raise ExchangeError(f"{of} cannot be read as {compressed}: {line}") from error


def put_together(piece: Slice, parts: Sequence[tuple[torch.Tensor, BlockRow]]) -> torch.Tensor:
    """Return the elements of a slice of which blocks are there; what none has is zero."""
    dtype = reduce(torch.promote_types, (part.dtype for part, _ in parts))  # some may be compressed, others in full
    whole = torch.zeros(piece.stop - piece.start, dtype=dtype)
    for part, block in parts:
        position = 0
        for view in views_of(whole, piece, block):
            end = position + view.numel()
            view.copy_(part[position:end].view_as(view))
            position = end
    return whole


def taken_apart(flat: torch.Tensor, piece: Slice, block: BlockRow) -> list[torch.Tensor]:
    """Return the bytes of a block's elements in a slice, whose bytes are ``flat`` (uint8), in order."""
    # bytes, as a payload need not lie on its dtype's boundary
    views = views_of(flat, piece, block, item=piece.torch_dtype.itemsize)
    return [view.reshape(-1) for view in views]


def views_of(flat: torch.Tensor, piece: Slice, row: BlockRow, *, item: int = 1) -> Iterator[torch.Tensor]:
    """Yield a block's elements in the flattened slice, in order, sharing its memory; of each, ``item`` numbers."""
    width, first, num_rows, column, num_columns = row
    block = TensorBlock(width * item, first, num_rows, column * item, num_columns * item)
    yield from block.views(flat, start=piece.start * item, stop=piece.stop * item)
