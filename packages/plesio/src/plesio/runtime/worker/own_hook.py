"""A hook of the session's on the user's model."""

from collections.abc import Callable
from typing import Any

__all__ = ["OwnHook"]


class OwnHook:
    """Calls ``action``; a copy or a pickle of the model has a hook that does nothing in its place.

    Without that, ``copy.deepcopy(model)`` and ``torch.save(model, ...)`` would try to take the session along.
    """

    def __init__(self, action: Callable[..., Any]) -> None:
        self._action = action

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Do what the hook is for."""
        return self._action(*arguments, **named)

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _no_hook, ()


def _ignore(*_arguments: object, **_named: object) -> None:
    """Stand in for a hook in a model that was copied or pickled."""


def _no_hook() -> Callable[..., None]:
    return _ignore
