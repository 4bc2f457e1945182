"""Notices what a script writes into parameters by itself, between two steps of its session.

A write in place moves a parameter's version, which costs nothing to read, but says not whether the value is another
now: averaged weights that are swapped in for an evaluation, and out again, leave everything as it was. And one through
``parameter.data`` moves none. So values are compared too: with a copy that is kept after step 1, 2, 4, 8 ..., and after
every step once a version has moved.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

__all__ = ["OwnChanges"]


class OwnChanges:
    """Notices the script's own writes into the parameters of one worker.

    Args:
        parameters: Tells them by name; the session writes to them only within `ours`.
    """

    def __init__(self, parameters: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        self._parameters = parameters
        self._watches = False
        self._moved = False
        self._version = 0
        self._num_left = 0
        self._copies: dict[str, torch.Tensor] | None = None
        self._found: str | None = None
        self.seen = False
        """True once the script has changed a parameter."""
        self.unsure = False
        """True once the script has written to a parameter with no copy left to compare with."""

    def watch(self) -> None:
        """Somebody has to know of them, now or later."""
        self._watches = True

    def begin(self) -> None:
        """From here on it is the script that writes, but for `ours`."""
        if self._watches:
            self._leave()

    def found(self, name: str) -> None:
        """Something has been changed."""
        self._found, self.seen = name, True

    def take(self) -> str | None:
        """Return the name of the tensor changed since the last call, if there is one."""
        found, self._found = self._found, None
        return found

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Within, it is the session that writes."""
        if not self._watches:
            yield
            return
        self._look()
        try:
            yield
        finally:
            if self._written() != self._version or self._copies is None:
                self._leave()

    def _written(self) -> int:
        return sum(parameter._version for parameter in self._parameters().values())

    def _leave(self) -> None:
        self._version = self._written()
        self._num_left += 1
        keeps = self._moved or self._num_left & (self._num_left - 1) == 0
        self._copies = {name: p.detach().clone() for name, p in self._parameters().items()} if keeps else None

    def _look(self) -> None:
        moved, self._version = self._written() != self._version, self._written()
        if self._copies is not None:
            for name, copy in self._copies.items():
                if not _equal(copy, self._parameters()[name].detach()):
                    self.found(f'"{name}"')
                    break
        elif moved:
            self.unsure = True
        self._moved |= moved


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Compare all values; NaN equals itself."""
    return torch.equal(one, other) or not ((one != other) & ~(one.isnan() & other.isnan())).any()
