"""The part of a tensor that this rank holds: of a `DTensor` its local one, else all of it."""

import torch
from torch.distributed.tensor import DTensor

__all__ = ["local_part", "whole_tensor"]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of ``tensor`` that is here, sharing its memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def whole_tensor(like: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor that is placed as ``like``, of which ``part`` is here; all ranks that share it call it."""
    if not isinstance(like, DTensor):
        return part
    mesh, placements = like.device_mesh, like.placements
    on_device = part.to(like.device)
    return DTensor.from_local(on_device, mesh, placements, shape=like.shape, stride=like.stride()).full_tensor()
