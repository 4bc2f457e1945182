"""Slices on their way between tensors and the packed payloads of messages, in a few calls for many slices.

A model has many small tensors, and a call of torch takes longer than it takes to copy one of them. So all slices of a
payload are copied by one call where they are numbers of one type; only others are copied one by one. All tensors are
detached: turning autograd off for each payload would take as long as the copy.
"""

from collections.abc import Sequence

import torch

from plesio.runtime.parameters.layout import Slice, view_packed, write_slice

__all__ = ["pack", "unpack"]


def pack(parts: Sequence[torch.Tensor], payload: torch.Tensor) -> None:
    """Copy flat tensors into ``payload`` (uint8, of exactly their bytes), one after the other."""
    if _alike(parts, payload):
        torch.cat(list(parts), out=payload.view(parts[0].dtype))
        return
    position = 0
    for part in parts:
        source = part.contiguous().view(torch.uint8)
        payload[position : position + source.numel()].copy_(source)
        position += source.numel()


def unpack(payload: torch.Tensor, pieces: Sequence[tuple[torch.Tensor, Slice]]) -> None:
    """Overwrite slices, each of a whole tensor, with what ``payload`` (uint8) has of them, one after the other.

    What else may follow in the payload is left alone.
    """
    tensors = [tensor for tensor, _ in pieces]
    if _alike(tensors, payload) and all(tensor.is_contiguous() for tensor in tensors):
        counts = [piece.stop - piece.start for _, piece in pieces]
        numbers = payload[: sum(counts) * tensors[0].itemsize].view(tensors[0].dtype)
        targets = [piece.cut(tensor.view(-1)) for tensor, piece in pieces]
        torch._foreach_copy_(targets, torch.split(numbers, counts))
        return
    position = 0
    for tensor, piece in pieces:
        part = payload[position : position + piece.num_bytes]
        write_slice(tensor, piece, view_packed(part, piece.torch_dtype))
        position += piece.num_bytes


def _alike(tensors: Sequence[torch.Tensor], payload: torch.Tensor) -> bool:
    """Tell whether one call can copy them all: numbers of one type, in the same kind of memory, and aligned."""
    if not tensors or payload.data_ptr() % tensors[0].itemsize:
        return False
    dtype, device = tensors[0].dtype, payload.device
    return all(tensor.dtype == dtype and tensor.device == device for tensor in tensors)
