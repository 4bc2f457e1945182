"""A worker's whole training state, kept to go back to, or made equal on all ranks.

Between two averagings every rank's optimizer has a state of its own. Bulk synchronous training needs it equal, or the
replicas would drift apart under equal gradients; so a change to it averages the state, as the parameters are averaged.

Going back (the guard's alarm): a state is known to be good one review after it was kept, so two are kept, and every
rank loads the older one. It was kept at one clock by all, perhaps between two averagings, so parameters and optimizer
state are then averaged. The residual of a compression is not in it. The copies take twice the memory of the parameters
and the optimizer's state. On the store each keeps the parameters that it pulled last, of versions about as old; the
optimizer's state is the servers', so a return to such a copy begins without.
"""

from typing import Any, Self

import torch

from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.replica import Replica

__all__ = ["StateCopy", "average_state"]


class StateCopy:
    """Parameters, buffers and the optimizer's state, as they were when it was made.

    Args:
        replica: The worker's.
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
        """Make the copy that `state` was taken of, for a replica of the same model."""
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
    for dtype in dict.fromkeys(tensor.dtype for tensor in (tensors + held if alike else tensors)):
        same = [tensor for tensor in (tensors + held if alike else tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensor.detach().reshape(-1).to(device) for tensor in same])
        group.all_reduce(flat).wait()
        flat.div_(group.size)
        for tensor, part in zip(same, torch.split(flat, [tensor.numel() for tensor in same]), strict=True):
            tensor.copy_(part.view_as(tensor))
    replica.stepper.sparse_momentum()
    return alike


def _tensors(replica: Replica) -> list[torch.Tensor]:
    return [*replica.parameters.values(), *replica.model.buffers()]
