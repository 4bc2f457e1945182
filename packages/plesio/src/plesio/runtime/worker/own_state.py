"""An optimizer's state on a worker while the servers have the true one."""

from collections import defaultdict
from collections.abc import Callable, Mapping, ValuesView
from typing import Any

import torch


class OwnState(defaultdict[torch.Tensor, Any]):
    """Calls ``action`` when the script empties it, or sets a parameter's state; copied or pickled it is plain.

    It calls ``asked`` when the script asks for a state that is not here.
    """

    def __init__(
        self, state: Mapping[torch.Tensor, Any], *, action: Callable[[], None], asked: Callable[[], None]
    ) -> None:
        super().__init__(dict, state)
        self._action, self._asked = action, asked

    def __missing__(self, parameter: torch.Tensor) -> Any:
        self._asked()
        return self.setdefault(parameter, {})

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        if not any(super().values()):
            self._asked()
        return super().values()

    def plain(self) -> defaultdict[torch.Tensor, Any]:
        return defaultdict(dict, self)

    copy = __copy__ = plain  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (dict, dict(self))

    def clear(self) -> None:
        self._action()
        super().clear()

    def pop(self, *arguments: Any) -> Any:
        self._action()
        return super().pop(*arguments)

    def popitem(self) -> tuple[torch.Tensor, Any]:
        self._action()
        return super().popitem()

    def __setitem__(self, parameter: torch.Tensor, state: Any) -> None:
        self._action()
        super().__setitem__(parameter, state)

    def __delitem__(self, parameter: torch.Tensor) -> None:
        self._action()
        super().__delitem__(parameter)
