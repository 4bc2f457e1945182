"""The program's callbacks, which are told what happens to one worker (`plesio.Session.add_callback`).

All are called by the training thread, in the order in which they were added. Other threads leave word, which is told
with the next event.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plesio.core.errors import ConfigError, nearest
from plesio.policies import Policy

EVENTS = ("on_step", "on_evaluation", "on_transition", "on_members", "on_checkpoint", "on_close")
"""Methods of an object that are called with the event."""
_BEGIN = "on_begin"


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersChanged:
    """Workers were lost, or joined; workers of the store learn of losses alone."""

    lost: tuple[int, ...] = ()
    joined: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten:
    """A checkpoint is whole; the worker that leads is told."""

    clock: int
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of policy in a running job.

    Attributes:
        clock: The last step under ``before``.
        before: The policy up to there.
        after: The policy from there on.
        restored: Whether the worker has gone back to an earlier state.
    """

    clock: int
    before: Policy
    after: Policy
    restored: bool


class Callbacks:
    """The callbacks of one session."""

    def __init__(self) -> None:
        self.called = False
        self._all: list[Callable[[str, Any], object]] = []
        self._left: deque[tuple[str, Any]] = deque()

    def add(self, callback: Any, *, session: Any = None) -> None:
        """Add a function, which is called with every event, or an object with methods for some of them."""
        methods = {name: getattr(callback, name) for name in EVENTS if callable(getattr(callback, name, None))}
        unknown = [name for name in dir(callback) if name.startswith("on_") and name not in (*EVENTS, _BEGIN)]
        if unknown:
            raise ConfigError(
                f"session.add_callback({callback!r:.60}): no event calls {unknown[0]}; {nearest(unknown[0], EVENTS)}"
            )
        if methods:
            self._all.append(lambda name, event: methods[name](event) if name in methods else None)
        elif callable(callback):
            self._all.append(lambda _, event: callback(event))
        else:
            raise ConfigError(
                f"session.add_callback({callback!r:.60}): give a function, or an object with one of the methods "
                f"{', '.join(EVENTS)}"
            )
        self.called = True
        if session is not None and callable(begin := getattr(callback, _BEGIN, None)):
            begin(session)

    def tell(self, name: str, event: Any) -> None:
        """Call all, by the training thread: with what other threads have left, and with this event."""
        while self._left:
            self._call(*self._left.popleft())
        self._call(name, event)

    def _call(self, name: str, event: Any) -> None:
        for callback in self._all:
            callback(name, event)

    def later(self, name: str, event: Any) -> None:
        """Leave an event, by any thread, to be told with the next one."""
        if self.called:
            self._left.append((name, event))
