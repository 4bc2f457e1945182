"""The part of a tensor that this rank holds: of a `DTensor` its local one, else all of it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from plesio.core.errors import TaskError
from plesio.runtime.parameters.blocks import TensorBlock


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of ``tensor`` that is here, sharing its memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def whole_tensor(like: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor that is placed as ``like``, of which ``part`` is here; all ranks that share it call it."""
    return _placed(part.to(like.device), like).full_tensor() if isinstance(like, DTensor) else part


def _placed(part: torch.Tensor, like: DTensor) -> DTensor:
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def part_kept(value: Any) -> Any:
    """Copy what is here of a tensor to the CPU, in the form of which `part_placed` makes it again; return others."""
    if not isinstance(value, torch.Tensor):
        return value
    copied = local_part(value).detach().to("cpu", copy=True)
    return {"part": copied} if isinstance(value, DTensor) else copied


def part_placed(kept: Any, like: torch.Tensor) -> Any:
    """Return what `part_kept` gave of a tensor that was placed as ``like``; anything else is returned as it is."""
    if isinstance(kept, dict) and "part" in kept and isinstance(like, DTensor):
        return _placed(kept["part"].to(like.device, copy=True), like)
    return kept


def placed_like(whole: torch.Tensor, like: DTensor) -> DTensor:
    """Return ``whole``, which this process has all of, placed as ``like``: a copy of the part that belongs here."""
    box = box_held(like)
    assert box is not None, "placed as something that islands exchange"
    own = whole[tuple(slice(begin, begin + size) for begin, size in zip(*box, strict=True))]
    return _placed(own.to(like.device, copy=True, memory_format=torch.contiguous_format), like)


def block_of(tensor: torch.Tensor, *, name: str) -> TensorBlock:
    """Return the part of ``tensor`` that this rank holds.

    Raises:
        TaskError: It cannot be exchanged: a part of a sum, or of dimensions that do not lie next to each other.
    """
    if not isinstance(tensor, DTensor):
        return TensorBlock(width=1, row=0, num_rows=tensor.numel(), column=0, num_columns=1)
    box, block = box_held(tensor), None
    if box is not None and tuple(box[1]) == tuple(local_part(tensor).shape):
        block = TensorBlock.of_box(tensor.shape, offsets=box[0], sizes=box[1])
    if block is None:
        raise TaskError(
            f'"{name}" is placed as {", ".join(map(str, tensor.placements))}, of which islands exchange no parts; use '
            "Replicate, Shard of one dimension, or of the first and one more; or rows that divide among all ranks"
        )
    return block


def box_held(tensor: DTensor) -> tuple[list[int], list[int]] | None:
    """Return offsets and sizes of the part of ``tensor`` that this rank holds; None if that is no box."""
    mesh = tensor.device_mesh
    return box_of(tensor.shape, mesh=mesh.shape, at=mesh.get_coordinate() or (), placements=tensor.placements)


def box_of(
    shape: Sequence[int], *, mesh: Sequence[int], at: Sequence[int], placements: Sequence[Placement]
) -> tuple[list[int], list[int]] | None:
    """Return offsets and sizes of the part of a tensor that a rank holds; None if that is no box."""
    offsets, sizes = [0] * len(shape), list(shape)
    # FSDP2 over a column-wise layer cuts what a rank has of that, though its dimension of the mesh comes first
    in_order = sorted(zip(placements, mesh, at, strict=True), key=lambda one: isinstance(one[0], _StridedShard))
    num_parts = dict.fromkeys(range(len(shape)), 1)
    for placement, size, number in in_order:
        if isinstance(placement, Shard | _StridedShard):
            dim, before = placement.dim, num_parts[placement.dim]
            if isinstance(placement, _StridedShard) and (
                placement.split_factor != before or shape[dim] % (size * before)
            ):
                return None  # where it does not divide, torch takes other rows for these when it puts them together
            step = -(-sizes[dim] // size)
            begin, end = (min(which * step, sizes[dim]) for which in (number, number + 1))
            offsets[dim], sizes[dim], num_parts[dim] = offsets[dim] + begin, end - begin, before * size
        elif not placement.is_replicate():
            return None
    return offsets, sizes
