"""How a model's tensors lie in the store: which bytes of which tensor are on which server.

The tensors are laid end to end in name order (parameters, floating-point buffers, then what no step moves: frozen
parameters and other buffers, which all pull at the start) and the line is cut into as many equal parts as there are
servers, so that every server holds the same number of bytes to within one element. A tensor that a cut goes through is
kept as two slices: the optimizers that a server runs work element by element, so nothing is lost.

Each server keeps its slices in one block of bytes, every slice on a `ALIGNMENT` boundary; pushes and pulls carry the
present slices in the same order, tightly packed.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import msgspec
import torch

from plesio.core.errors import ExchangeError
from plesio.protocol.bulk import SliceRow

ALIGNMENT = 64

TensorKind = Literal["parameter", "buffer", "still"]


class Slice(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Elements ``start`` to ``stop`` of the flattened tensor ``name``, kept at ``offset`` of a server's block.

    Attributes:
        group: Index of the optimizer's parameter group; -1 for all but parameters that it steps.
    """

    name: str
    kind: TensorKind
    dtype: str
    group: int
    start: int
    stop: int
    offset: int

    @property
    def torch_dtype(self) -> torch.dtype:
        return _dtype(self.dtype)

    @property
    def num_bytes(self) -> int:
        return (self.stop - self.start) * _dtype(self.dtype).itemsize

    def view(self, block: torch.Tensor) -> torch.Tensor:
        """View the slice's elements in a server's block (shape ``[stop - start]``), sharing its memory."""
        return block[self.offset : self.offset + self.num_bytes].view(self.torch_dtype)

    def cut(self, flat: torch.Tensor) -> torch.Tensor:
        """Cut the slice's elements out of the whole tensor, flattened; sharing its memory."""
        return flat if self.stop - self.start == flat.numel() else flat[self.start : self.stop]


@cache
def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


@dataclass(frozen=True, slots=True)
class SliceLayout:
    """The slices of every server, in order of offset."""

    servers: tuple[tuple[Slice, ...], ...]

    @classmethod
    def of(cls, tensors: Sequence[tuple[str, torch.Tensor, TensorKind, int]], *, num_servers: int) -> "SliceLayout":
        """Cut (name, tensor, kind, group) into ``num_servers`` parts of equal bytes.

        Raises:
            ExchangeError: There are fewer elements than servers.
        """
        total = sum(tensor.numel() * tensor.element_size() for _, tensor, _, _ in tensors)
        if sum(tensor.numel() for _, tensor, _, _ in tensors) < num_servers:
            raise ExchangeError(f"the model has fewer elements than the {num_servers} servers; ask for fewer servers")
        parts: list[list[Slice]] = [[] for _ in range(num_servers)]
        ends = [0] * num_servers
        position, server = 0, 0
        for name, tensor, kind, group in tensors:
            size, start, count = tensor.element_size(), 0, tensor.numel()
            while start < count:
                cut = -(-total * (server + 1) // num_servers)  # the byte at which this server's part ends, rounded up
                room = -(-(cut - position) // size)
                if room <= 0 and server < num_servers - 1:
                    server += 1
                    continue
                stop = count if server == num_servers - 1 else min(count, start + room)
                dtype = str(tensor.dtype).removeprefix("torch.")
                offset = -(-ends[server] // ALIGNMENT) * ALIGNMENT
                piece = Slice(name=name, kind=kind, dtype=dtype, group=group, start=start, stop=stop, offset=offset)
                parts[server].append(piece)
                ends[server] = offset + piece.num_bytes
                position += piece.num_bytes
                start = stop
        return cls(tuple(tuple(part) for part in parts))

    def block_bytes(self, server: int) -> int:
        last = self.servers[server][-1] if self.servers[server] else None
        return 0 if last is None else last.offset + last.num_bytes

    def payload_bytes(self, server: int, present: Iterable[int] | None = None) -> int:
        """Return the bytes on the wire for the slices ``present`` (all when None) of one server."""
        slices = self.servers[server]
        return sum(slices[index].num_bytes for index in (range(len(slices)) if present is None else present))

    def digest(self) -> str:
        """Return a short name for this layout: equal on every rank whose model and server count are the same."""
        text = json.dumps([self.rows(server) for server in range(len(self.servers))])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def rows(self, server: int) -> tuple[SliceRow, ...]:
        rows: tuple[SliceRow, ...] = msgspec.to_builtins(self.servers[server])
        return rows


def slices_of(rows: tuple[SliceRow, ...]) -> tuple[Slice, ...]:
    return msgspec.convert(rows, type=tuple[Slice, ...])


def view_packed(payload: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """View the elements in a part of a packed payload (uint8), sharing its memory where it is aligned."""
    # a packed slice need not lie on its dtype's boundary (mixed dtypes): copy only then
    return (payload if payload.data_ptr() % dtype.itemsize == 0 else payload.clone()).view(dtype)


def write_slice(tensor: torch.Tensor, piece: Slice, source: torch.Tensor) -> None:
    if tensor.is_contiguous():
        tensor.view(-1)[piece.start : piece.stop].copy_(source)
    else:  # channels_last and the like: the slice counts elements in the tensor's logical order
        flat = tensor.contiguous().view(-1)
        flat[piece.start : piece.stop].copy_(source)
        tensor.copy_(flat.view_as(tensor))
