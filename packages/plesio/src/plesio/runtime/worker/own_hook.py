"""A hook of the session's on the user's model."""

import contextlib
from collections.abc import Callable
from typing import Any


class OwnHook:
    """Calls ``action`` as a hook, and ``on_copy`` when the model is copied or pickled.

    The copy has a hook that does nothing in its place. Otherwise ``copy.deepcopy(model)`` and
    ``torch.save(model, ...)`` would try to take the session along, and Plesio would be needed to load the model.
    """

    def __init__(self, action: Callable[..., Any], *, on_copy: Callable[[], None] | None = None) -> None:
        self._action, self._on_copy = action, on_copy

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._action(*arguments, **named)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._on_copy is not None:
            self._on_copy()
        # a method that takes whatever a hook is given, does nothing, and is there where Plesio is not
        return getattr, (contextlib.nullcontext(), "__exit__")
