"""Objects that the program has registered: checkpoints contain their states, and a resumed run loads them.

A state is kept as plain values and tensors (`plesio.core.exact`), copied, and comes back equal and of the same types.
One that holds anything else is refused when it is registered, by its name and place.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
import torch
from torch.amp import GradScaler

from plesio.core.errors import ConfigError, DataError
from plesio.core.exact import KIND, decoded, encoded
from plesio.protocol.to_worker import ServerState
from plesio.runtime.worker.quiescent_point import QuiescentPoint

_OF_TORCH = (torch.Size, torch.dtype, torch.device, torch.layout)
"""Are written as they are."""
_LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr)


class Stateful(Protocol):
    """Anything that torch's schedulers are like: its state can be taken and given back."""

    def state_dict(self) -> dict[str, Any]:
        """Return its state, as plain values and tensors."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass(slots=True)
class Registered:
    """Objects of the program's, by name, and the states that they had where this run goes on from.

    Args:
        before: These states, as `states` gave them; None for a run that begins.
    """

    before: dict[str, Any] | None = None
    objects: dict[str, Stateful] = field(default_factory=dict)

    def add(self, name: str, one: Stateful) -> None:
        """Keep ``one`` from now on; it goes on from the state that it had, if there is one."""
        if name in self.objects:
            raise ConfigError(f'two objects are registered as "{name}"; give each a name of its own')
        self.objects[name] = one
        self._give_back(name)

    def states(self) -> dict[str, Any]:
        """Copy the present states, by name; ConfigError if one holds by now a value that cannot be kept."""
        return {name: kept(name, one.state_dict()) for name, one in self.objects.items()}

    def go_on(self) -> None:
        """Have all go on from the states that they had, whatever has been done to them since."""
        for name in self.objects:
            self._give_back(name)

    def _give_back(self, name: str) -> None:
        if self.before is None or name not in self.before:
            return
        try:
            self.objects[name].load_state_dict(restored(self.before[name]))
        except Exception as error:  # whatever the object's own code raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise DataError(
                f'"{name}" ({_type_name(self.objects[name])}) does not take the state that was saved of it: {reason}; '
                "register what was registered then, or leave it out"
            ) from error


def check(name: str, one: Stateful) -> None:
    """Refuse what has no state, or one that holds what `kept` would refuse: ConfigError."""
    if not all(callable(getattr(one, method, None)) for method in ("state_dict", "load_state_dict")):
        raise ConfigError(
            f'"{name}" is a {_type_name(one)}: only what has state_dict and load_state_dict can be registered'
        )
    kept(name, one.state_dict(), copies=False)


def kept(name: str, state: Any, *, copies: bool = True) -> Any:
    """Copy ``state`` as plain values and tensors on the CPU; without ``copies`` only check that it can be kept.

    Raises:
        ConfigError: It holds something else; the message tells where.
    """

    def other(value: Any, path: str) -> Any:
        if isinstance(value, _OF_TORCH):
            return value
        if not _can_be_copied(value):
            where = f"its state at {path}" if path else "its state"
            raise ConfigError(
                f'"{name}" cannot be saved: {where} is of the type {_type_name(value)}; {_instead(value)}'
            )
        return _copied(value) if copies else None

    try:
        return encoded(state, other=other)
    except RecursionError:
        raise ConfigError(f'"{name}" cannot be saved: its state holds itself') from None


def restored(state: Any) -> Any:
    return decoded(state, other=_of_ours)


def _of_ours(table: dict[str, Any], kind: str) -> Any:
    if kind == "tensor":
        try:
            return table["tensor"].to(table["device"])
        except (RuntimeError, AssertionError):  # no such device here: the object's own code says where it goes
            return table["tensor"]
    assert kind in ("array", "number"), kind
    array = np.load(io.BytesIO(table["npy"].numpy().tobytes()), allow_pickle=False)
    return array if kind == "array" else array[()]


def _can_be_copied(value: Any) -> bool:
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return not value.dtype.hasobject
    return type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_meta and value.layout in _LAYOUTS


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {KIND: kind, "npy": torch.frombuffer(file.getbuffer(), dtype=torch.uint8)}
    copied = value.detach().to("cpu", copy=True).requires_grad_(value.requires_grad)
    if type(value) is torch.nn.Parameter:
        copied = torch.nn.Parameter(copied.detach(), requires_grad=value.requires_grad)
    return copied if value.device.type == "cpu" else {KIND: "tensor", "device": str(value.device), "tensor": copied}


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _instead(value: Any) -> str:
    special: list[tuple[Callable[[Any], bool], str]] = [
        (lambda it: isinstance(it, Enum), "have state_dict give its value"),
        (lambda it: is_dataclass(it), "have state_dict give dataclasses.asdict of it"),
        (lambda it: isinstance(it, tuple), "have state_dict give tuple(...) of it"),
        (lambda it: isinstance(it, np.random.RandomState | torch.Generator), "have state_dict give its get_state()"),
        (lambda it: isinstance(it, np.random.Generator), "have state_dict give its bit_generator.state"),
        (lambda it: hasattr(it, "state_dict"), "have state_dict give its state_dict()"),
    ]
    return next(
        (text for fits, text in special if fits(value)),
        "have state_dict give numbers, texts, tensors, NumPy arrays, and Python's own lists, tables and sets of them",
    )


class Keeper(Protocol):
    """Takes the session's checkpoints."""

    def save(self, point: QuiescentPoint, *, server_state: Callable[[], ServerState]) -> None:
        """Prepare to take a checkpoint of this worker, at the common position, before its next step.

        ``server_state`` is called by the worker that writes what is common to all.
        """
        ...

    def adds(self, session: Callable[[], dict[str, Any]]) -> None:
        """Add the session's plain values to each checkpoint."""
        ...

    def register(self, name: str, one: Stateful) -> None: ...

    def take(self) -> bool:
        """Take the checkpoint that is due, if one is, and return whether one was; called between two steps."""
        ...

    def close(self, *, failed: bool = False) -> None:
        """Return when what is being written has been, not for long if the run has failed; take no more."""
        ...


def register(objects: Mapping[str, Stateful], keepers: Sequence[Callable[[str, Stateful], None]]) -> None:
    """Have every keeper save the objects, each by its name; ConfigError if one cannot be saved, or is a loss scaler."""
    if not objects:
        raise ConfigError(
            "session.register(): write an object by its name, as in session.register(scheduler=scheduler)"
        )
    for name, one in objects.items():
        if isinstance(one, GradScaler):
            raise ConfigError(
                f'"{name}" is a GradScaler: give it to plesio.join(..., scaler={name}), which also saves it'
            )
        check(name, one)
        for keeper in keepers:
            keeper(name, one)
