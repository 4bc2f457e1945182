"""The optimizer's state of a shard, put together of the parts that an island's ranks send, and taken apart for them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from plesio.protocol.bulk import BlockRow, Initial, Table
from plesio.runtime.parameters.layout import Slice, slices_of, view_packed
from plesio.runtime.parameters.optimizer_state import dtype_named
from plesio.runtime.server.payloads import Payload, put_together, values_of, views_of


def initial_of(initials: Sequence[Initial], payloads: Sequence[Payload]) -> tuple[Table | None, NDArray[np.uint8]]:
    """Return the table of the optimizer's state, and the payload, that an island's ranks send as one worker would."""
    slices = slices_of(initials[0].slices)
    tables = [initial.state for initial in initials if initial.state is not None]
    ends = [payload.content.size - (_num_bytes(tables[rank]) if tables else 0) for rank, payload in enumerate(payloads)]
    heads = [payload._replace(content=payload.content[:end]) for payload, end in zip(payloads, ends, strict=True)]
    values = values_of(heads, slices, of="the initial state")
    tails = [torch.from_numpy(payload.content)[end:] for payload, end in zip(payloads, ends, strict=True)]
    table, state = _together(slices, tables, tails, [payload.blocks or () for payload in payloads])
    parts = [*(value for _, value in sorted(values.items())), *state]
    whole: NDArray[np.uint8] = torch.cat([part.view(torch.uint8) for part in parts]).numpy()
    return table if tables else None, whole


def _num_bytes(table: Table) -> int:
    entries = (entry for row in table for entry in row)
    return sum(value * dtype_named(name).itemsize for _, kind, name, value in entries if kind == "tensor")


def _together(
    slices: Sequence[Slice], tables: Sequence[Table], tails: list[torch.Tensor], blocks: Sequence[Sequence[BlockRow]]
) -> tuple[Table, list[torch.Tensor]]:
    """Return the table of whole slices, and their tensors, flat; ``tails`` have those of each rank, packed."""
    whole: Table = []
    tensors: list[torch.Tensor] = []
    for index, *rows in zip(_trained(slices), *tables, strict=True) if tables else ():
        whole.append([])
        for key, kind, name, value in rows[0]:
            whole[-1].append([key, kind, name, value])
        for column, entry in enumerate(whole[-1]):
            if entry[1] != "tensor":
                continue
            dtype, parts = dtype_named(entry[2]), []
            for rank, row in enumerate(rows):
                num_bytes = row[column][3] * dtype.itemsize
                parts.append((view_packed(tails[rank][:num_bytes], dtype), blocks[rank][index]))
                tails[rank] = tails[rank][num_bytes:]
            tensors.append(put_together(slices[index], parts))
            entry[3] = tensors[-1].numel()
    return whole, tensors


def state_in(
    blocks: Sequence[BlockRow], slices: Sequence[Slice], table: Table, tensors: Sequence[torch.Tensor]
) -> tuple[Table, list[torch.Tensor]]:
    """Return what belongs to the blocks of whole slices' state."""
    here: Table = []
    cut: list[torch.Tensor] = []
    left = iter(tensors)
    for row, index in zip(table, _trained(slices), strict=True) if table else ():
        here.append([])
        for key, kind, name, value in row:
            own = []
            if kind == "tensor":
                own = [view.reshape(-1) for view in views_of(next(left), slices[index], blocks[index])]
            here[-1].append([key, kind, name, sum(part.numel() for part in own) if kind == "tensor" else value])
            cut += own
    return here, cut


def _trained(slices: Sequence[Slice]) -> list[int]:
    return [index for index, piece in enumerate(slices) if piece.kind == "parameter"]
