"""The interface by which a session has its checkpoints taken."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch.amp import GradScaler

from plesio.core.errors import ConfigError
from plesio.runtime.worker.registered import Stateful, check

__all__ = ["Keeper", "register"]


class Keeper(Protocol):
    """Takes the session's checkpoints."""

    def adds(self, session: Callable[[], dict[str, Any]]) -> None:
        """Add the session's plain values to each checkpoint."""
        ...

    def register(self, name: str, one: Stateful) -> None:
        """Save ``one`` with the rest, and have it go on from what was saved."""
        ...

    def take(self) -> None:
        """Take the checkpoint that is due, if one is; called between two steps."""
        ...

    def close(self, *, failed: bool = False) -> None:
        """Return when what is being written has been, not for long if the run has failed; take no more."""
        ...


class _Registry(Protocol):
    """Save objects, or return their states."""

    def register(self, name: str, one: Stateful) -> None: ...


def register(objects: Mapping[str, Stateful], keepers: Sequence[_Registry]) -> None:
    """Have every keeper save the objects, each by its name.

    Raises:
        ConfigError: One is a loss scaler: a session that only saved it would train with scaled gradients; or it cannot
            be saved.
    """
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
            keeper.register(name, one)
