"""What a session needs of what takes its checkpoints."""

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Keeper", "Stateful"]


class Stateful(Protocol):
    """Anything that torch's schedulers are like: its state can be taken and given back."""

    def state_dict(self) -> dict[str, Any]:
        """Its state, as plain values and tensors."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        ...


class Keeper(Protocol):
    """Takes the session's checkpoints."""

    def adds(self, session: Callable[[], dict[str, Any]]) -> None:
        """The session adds this to each: plain values."""
        ...

    def register(self, name: str, one: Stateful) -> None:
        """Save ``one`` with the rest, and have it go on from what was saved."""
        ...

    def take(self) -> None:
        """Take the checkpoint that is due, if one is; called between two steps."""
        ...

    def wait(self, *, failed: bool = False) -> None:
        """Return when what is being written has been; not for long if the run has failed."""
        ...
