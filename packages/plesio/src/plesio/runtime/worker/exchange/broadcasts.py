"""Broadcasts of plain values among the ranks of a group."""

import json

import torch

from plesio.core.results import Found
from plesio.runtime.worker.exchange.group import Group

__all__ = ["broadcast_bytes", "broadcast_metric", "broadcast_text"]


def broadcast_text(text: str, *, group: Group, source: int) -> str:
    """Return the source's text on all of the group; all call it."""
    return broadcast_bytes(text.encode(), group=group, source=source).decode()


def broadcast_bytes(data: bytes, *, group: Group, source: int) -> bytes:
    """Return the source's bytes on all of the group; all call it."""
    length = torch.tensor([len(data)])
    group.broadcast(length, source=source)
    tensor = torch.empty(int(length), dtype=torch.uint8)
    if group.rank == source:
        tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    group.broadcast(tensor, source=source)
    return tensor.numpy().tobytes()


def broadcast_metric(found: Found, group: Group) -> Found:
    """Broadcast rank 0's result to the group; all of it call this."""
    several = json.dumps(found).encode() if isinstance(found, dict) else b""
    single = float("nan") if found is None or isinstance(found, dict) else found
    value = torch.tensor([single, len(several)], dtype=torch.float64)
    group.broadcast(value)
    if not value[1]:
        return float(value[0])
    text = (
        torch.zeros(int(value[1]), dtype=torch.uint8)
        if not several
        else torch.frombuffer(bytearray(several), dtype=torch.uint8)
    )
    group.broadcast(text)
    numbers: dict[str, float] = json.loads(text.numpy().tobytes())
    return numbers
