"""A worker's whole training state, kept to go back to, or made equal on all ranks.

Between two averagings every rank's optimizer has a state of its own. Bulk synchronous training needs it equal, or the
replicas would drift apart under equal gradients; so a change to it averages the state, as the parameters are averaged.

Going back (the guard's alarm): a state is known to be good one review after it was kept, so two are kept, and every
rank loads the older one. It was kept at one clock by all, perhaps between two averagings, so parameters and optimizer
state are then averaged. The residual of a compression is not in it. The copies take twice the memory of the parameters
and the optimizer's state. On the store each keeps the parameters that it pulled last, of versions about as old; the
optimizer's state is the servers', so a return to such a copy begins without.

Workers that go on in a new group come to the same state in two moves: what is staged (an `Apply`) is applied when all
of it is there. Nothing of a replica changes before that, so a worker that is cut off once more is where it was.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from plesio.runtime.parameters.optimizers import clear_state
from plesio.runtime.worker.exchange.flat import by_dtype, flat_of, write_parts
from plesio.runtime.worker.exchange.group import Group, broadcast_text
from plesio.runtime.worker.exchange.local_part import local_part
from plesio.runtime.worker.exchange.replica import Replica


class StateCopy:
    """Parameters, buffers and the optimizer's state, as they were when it was made.

    Args:
        optimizer_state: Whether the replica's optimizer has the state; if not, a return begins with none.
    """

    @torch.no_grad()
    def __init__(self, replica: Replica, *, optimizer_state: bool = True) -> None:
        self._replica = replica
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in _tensors(replica)]
        self._state = {
            parameter: {
                key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()
            }
            for parameter, state in (replica.optimizer.state.items() if optimizer_state else ())
        }

    def state(self) -> dict[str, Any]:
        """Return the copy as plain values: tensors in the replica's order, and the optimizer's state by that order."""
        order: dict[torch.Tensor, int] = {p: number for number, p in enumerate(self._replica.parameters.values())}
        return {
            "tensors": [copy for _, copy in self._tensors],
            "optimizer": {order[parameter]: dict(state) for parameter, state in self._state.items()},
        }

    @classmethod
    def of(cls, replica: Replica, state: dict[str, Any]) -> Self:
        copy = cls(replica)
        parameters = list(replica.parameters.values())
        copy._tensors = list(zip(_tensors(replica), state["tensors"], strict=True))
        copy._state = {parameters[number]: values for number, values in state["optimizer"].items()}
        return copy

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to it; learning rates and other options stay as they are now."""
        for tensor, copy in self._tensors:
            tensor.copy_(copy)
        state = self._replica.optimizer.state
        state.clear()
        for parameter, values in self._state.items():
            state[parameter] = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in values.items()}


@torch.no_grad()
def average_state(replica: Replica, group: Group, *, parameters: bool) -> bool:
    """Make the optimizer's state the mean over the ranks, and with ``parameters`` the replica as well.

    Returns:
        False where some ranks have a state and others have none (they have made no step): it is then forgotten on all.
    """
    state = replica.optimizer.state
    tensors = [tensor for tensor in _tensors(replica) if tensor.is_floating_point()] if parameters else []
    for parameter in replica.sparse.values():  # SGD's momentum of sparse gradients: ranks have it in different rows
        for key, value in state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor) and value.is_sparse:
                state[parameter][key] = value.to_dense()
    held = [
        value
        for parameter in replica.parameters.values()
        for _, value in sorted(state.get(parameter, {}).items())
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    device = replica.device
    count = torch.tensor([float(sum(value.numel() for value in held))], dtype=torch.float64, device=device)
    own = count.item()
    group.all_reduce(count).wait()
    alike = count.item() == own * group.size
    if not alike:
        state.clear()
    for same in by_dtype(tensors + held if alike else tensors):
        flat = flat_of([tensor.detach().to(device) for tensor in same])
        group.all_reduce(flat).wait()
        write_parts(flat.div_(group.size), same)
    replica.stepper.sparse_momentum()
    return alike


def _tensors(replica: Replica) -> list[torch.Tensor]:
    return [*map(local_part, replica.parameters.values()), *replica.model.buffers()]


Apply = Callable[[], None]
"""Makes what was staged the replica's."""


@torch.no_grad()
def copied_replica(replica: Replica, group: Group, *, source: int, frozen: bool = False) -> Apply:
    """Fetch the source's parameters and buffers; with ``frozen`` also the parameters that are not trained."""
    of = replica.tensors.all() if frozen else [tensor.detach() for tensor in _tensors(replica)]
    flats = [(tensors, flat_of(tensors)) for tensors in by_dtype(of)]
    for _, flat in flats:
        group.broadcast(flat, source=source)
    return lambda: _write(flats)


@torch.no_grad()
def mean_replica(replica: Replica, group: Group, *, weight: float) -> Apply:
    """Compute the weighted mean of parameters and floating-point buffers; a worker with nothing to give weighs 0."""
    floating = [tensor.detach() for tensor in _tensors(replica) if tensor.is_floating_point()]
    total = torch.tensor([weight], dtype=torch.float64, device=floating[0].device)
    group.all_reduce(total).wait()
    share = weight / float(total.item())
    flats = [(tensors, flat_of(tensors)) for tensors in by_dtype(floating)]
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
    clear_state(replica.optimizer)
    for parameter, copy in zip(replica.parameters.values(), copies, strict=True):
        if copy:
            state[parameter] = copy
    replica.stepper.sparse_momentum()


def _write(flats: Sequence[tuple[Sequence[Tensor], Tensor]]) -> None:
    for tensors, flat in flats:
        write_parts(flat, tensors)
