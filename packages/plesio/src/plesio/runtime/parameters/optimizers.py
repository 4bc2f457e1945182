"""Several optimizers of one model, seen as one: ``plesio.join(model, [adamw, muon])``.

Groups and states stay those of the optimizers, which the script and its schedulers go on using: here they are only
looked at one after the other.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from plesio.core.errors import TaskError
from plesio.core.units import listed


class _States(MutableMapping[torch.Tensor, Any]):
    """State of each parameter in the optimizer that holds it; made on demand, as theirs are."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers

    def _of(self, parameter: torch.Tensor) -> MutableMapping[torch.Tensor, Any]:
        for optimizer in self._optimizers:
            if parameter in optimizer.state:
                return optimizer.state
        for optimizer in self._optimizers:
            if any(parameter is held for group in optimizer.param_groups for held in group["params"]):
                return optimizer.state
        raise KeyError(parameter)

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in optimizer.state for optimizer in self._optimizers)

    def __getitem__(self, parameter: torch.Tensor) -> Any:
        return self._of(parameter)[parameter]

    def get(self, parameter: torch.Tensor, default: Any = None) -> Any:
        """Return the parameter's state, or the default; make none."""
        return next((one.state[parameter] for one in self._optimizers if parameter in one.state), default)

    def __setitem__(self, parameter: torch.Tensor, state: Any) -> None:
        self._of(parameter)[parameter] = state

    def __delitem__(self, parameter: torch.Tensor) -> None:
        del self._of(parameter)[parameter]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (parameter for optimizer in self._optimizers for parameter in list(optimizer.state))

    def __len__(self) -> int:
        return sum(len(optimizer.state) for optimizer in self._optimizers)


class Optimizers(Optimizer):
    """Steps several optimizers, in their order, as one.

    Args:
        parts: The optimizers, which share no parameter.
    """

    state: Any

    def __init__(self, parts: Sequence[Optimizer]) -> None:  # what torch's own would make is the parts'
        self.parts = tuple(parts)
        self.state = _States(self.parts)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Groups of all optimizers, themselves and not copies."""
        return [group for optimizer in self.parts for group in optimizer.param_groups]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for optimizer in self.parts:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:  # torch's signature
        for optimizer in self.parts:
            optimizer.zero_grad(set_to_none=set_to_none)

    def register_step_pre_hook(self, hook: Any) -> RemovableHandle:
        """Have ``hook`` called before the first of them steps."""
        return self.parts[0].register_step_pre_hook(hook)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.parts))}]"


def parts_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Return the optimizers that the script has made."""
    return optimizer.parts if isinstance(optimizer, Optimizers) else (optimizer,)


def clear_state(optimizer: Optimizer) -> None:
    """Empty the state as the session does it, of which no mapping that notices the script's changes is told."""
    for one in parts_of(optimizer):
        dict.clear(one.state)


def kind_of(optimizer: Optimizer) -> str:
    """Name the class of the script's optimizer, or those of its list.

    >>> kind_of(torch.optim.SGD([torch.zeros(1)]))
    'SGD'
    """
    kinds = [_kind(one) for one in parts_of(optimizer)]
    return kinds[0] if len(kinds) == 1 else f"list of {listed(kinds)}"


def as_one(model: object, optimizer: object) -> Optimizer:
    """Combine the optimizers that `plesio.join` was given into one.

    Raises:
        TaskError: It is none, no model comes with it, or two of them hold the same parameter.
    """
    if isinstance(model, Optimizer) and isinstance(optimizer, torch.nn.Module):
        raise TaskError("model and optimizer are swapped; write plesio.join(model, optimizer)")
    if not isinstance(model, torch.nn.Module):
        raise TaskError(f"plesio.join(model, optimizer) takes a torch.nn.Module as model, not a {_kind(model)}")
    several = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    parts = [one for one in several if isinstance(one, Optimizer)]
    if not parts or len(parts) < len(several):
        wrong = next((f"a {_kind(one)}" for one in several if not isinstance(one, Optimizer)), "an empty list")
        raise TaskError(
            f"plesio.join(model, optimizer) takes an optimizer of torch.optim, or a list of them, not {wrong}"
        )
    _check_disjoint(parts)
    return parts[0] if len(parts) == 1 else Optimizers(parts)


def _check_disjoint(parts: Sequence[Optimizer]) -> None:
    owners: dict[int, Optimizer] = {}
    if len(parts) > len(set(map(id, parts))):
        raise TaskError("the list of optimizers has one of them twice, which would step twice; leave it out once")
    for one in parts:
        for parameter in (parameter for group in one.param_groups for parameter in group["params"]):
            if (owner := owners.setdefault(id(parameter), one)) is not one:
                raise TaskError(
                    f"two optimizers, {_kind(owner)} and {_kind(one)}, hold the same parameter, of shape "
                    f"{tuple(parameter.shape)}; give each parameter to one of them"
                )


def _kind(value: object) -> str:
    return type(value).__name__
