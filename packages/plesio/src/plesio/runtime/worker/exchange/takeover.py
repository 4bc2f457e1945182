"""How workers that go on in a new group come to the same state: what is staged here is applied when all of it is there.

Nothing of a replica changes before that, so a worker that is cut off once more is where it was.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from plesio.runtime.worker.exchange.broadcasts import broadcast_text
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.replica import Replica

__all__ = ["Apply", "copied_optimizer", "copied_replica", "mean_replica"]

Apply = Callable[[], None]
"""Makes what was staged the replica's."""


@torch.no_grad()
def copied_replica(replica: Replica, group: Group, *, source: int, frozen: bool = False) -> Apply:
    """Fetch the source's parameters and buffers; with ``frozen`` also the parameters that are not trained."""
    of = replica.tensors.all() if frozen else _tensors(replica)
    flats = [(tensors, _flat(tensors)) for tensors in _alike(of)]
    for _, flat in flats:
        group.broadcast(flat, source=source)
    return lambda: _write(flats)


@torch.no_grad()
def mean_replica(replica: Replica, group: Group, *, weight: float) -> Apply:
    """Compute the weighted mean of parameters and floating-point buffers; a worker with nothing to give weighs 0."""
    floating = [tensor for tensor in _tensors(replica) if tensor.is_floating_point()]
    total = torch.tensor([weight], dtype=torch.float64, device=floating[0].device)
    group.all_reduce(total).wait()
    share = weight / float(total.item())
    flats = [(tensors, _flat(tensors)) for tensors in _alike(floating)]
    for _, flat in flats:
        if share == 0.0:
            flat.zero_()
        flat.mul_(share)
        group.all_reduce(flat).wait()
    return lambda: _write(flats)


@torch.no_grad()
def copied_optimizer(replica: Replica, group: Group, *, source: int) -> Apply:
    """Fetch the state of the source's optimizer; learning rates and other options stay each worker's own."""
    state = replica.optimizer.state
    own = [[_row(key, value) for key, value in state.get(p, {}).items()] for p in replica.parameters.values()]
    table: list[list[list[Any]]] = json.loads(broadcast_text(json.dumps(own), group=group, source=source))
    copies: list[dict[str, Any]] = []
    for parameter, rows in zip(replica.parameters.values(), table, strict=True):
        copies.append(copy := {})
        for key, kind, dtype, shape, device in rows:
            if kind == "value":
                copy[key] = shape
                continue
            if group.rank == source:
                value = state[parameter][key].detach().to_dense().clone()
            else:
                where = parameter.device if device == "same" else torch.device("cpu")
                value = torch.empty(shape, dtype=getattr(torch, dtype), device=where)
            group.broadcast(value, source=source)
            copy[key] = value
    return lambda: _set_state(replica, copies)


def _row(key: str, value: Any) -> list[Any]:
    """Describe a key of a parameter's state: its kind, and what it takes to make room for it."""
    if not isinstance(value, Tensor):
        return [key, "value", None, value, None]
    where = "cpu" if value.device.type == "cpu" else "same"
    return [key, "tensor", str(value.dtype).removeprefix("torch."), list(value.shape), where]


def _set_state(replica: Replica, copies: Sequence[dict[str, Any]]) -> None:
    state = replica.optimizer.state
    state.clear()
    for parameter, copy in zip(replica.parameters.values(), copies, strict=True):
        if copy:
            state[parameter] = copy
    replica.stepper.sparse_momentum()


def _tensors(replica: Replica) -> list[Tensor]:
    return [*(p.detach() for p in replica.parameters.values()), *replica.model.buffers()]


def _alike(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group the tensors by dtype."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        yield [tensor for tensor in tensors if tensor.dtype == dtype]


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@torch.no_grad()
def _write(flats: Sequence[tuple[Sequence[Tensor], Tensor]]) -> None:
    for tensors, flat in flats:
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))
