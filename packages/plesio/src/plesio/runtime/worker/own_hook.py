"""A hook of the session's on the user's model."""

import contextlib
from collections.abc import Callable
from typing import Any

__all__ = ["OwnHook"]


class OwnHook:
    """Calls ``action``; a copy or a pickle of the model has a hook that does nothing in its place.

    Without that, ``copy.deepcopy(model)`` and ``torch.save(model, ...)`` would try to take the session along, and what
    was saved could not be loaded without Plesio.
    """

    def __init__(self, action: Callable[..., Any]) -> None:
        self._action = action

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Do what the hook is for."""
        return self._action(*arguments, **named)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # a method that takes whatever a hook is given, does nothing, and is there where Plesio is not
        return getattr, (contextlib.nullcontext(), "__exit__")
