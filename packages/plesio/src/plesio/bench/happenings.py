"""Plans for moments of a run of real workers: at a time since it began, or once it has done so many steps."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from plesio.protocol.figures import RunFigures

__all__ = ["Happening", "Happenings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that is done to a run.

    Attributes:
        at_s: When, in seconds since the run began.
        at_step: Or once its workers have done so many steps together.
        after_s: So much later.
    """

    at_s: float | None = None
    at_step: int | None = None
    after_s: float = 0.0
    happen: Callable[[], None]


class Happenings:
    """Has all that is planned for a run happen; what has not happened when the context ends never does.

    Args:
        planned: Happenings, and their moments.
    """

    def __init__(self, planned: Sequence[Happening]) -> None:
        self._by_time = [one for one in planned if one.at_s is not None]
        self._by_step = [one for one in planned if one.at_s is None]
        self._timers: list[threading.Timer] = []

    def look(self, figures: RunFigures) -> None:
        """Act on the figures of the run; called a few times a second."""
        by_time, self._by_time = self._by_time, []
        for one in by_time:
            assert one.at_s is not None, "sorted so"
            self._after(one.at_s + one.after_s - figures.elapsed_s, one)
        due = [one for one in self._by_step if one.at_step is not None and figures.steps >= one.at_step]
        for one in due:
            self._by_step.remove(one)
            self._after(one.after_s, one)

    def _after(self, wait_s: float, one: Happening) -> None:
        timer = threading.Timer(max(0.0, wait_s), one.happen)
        self._timers.append(timer)
        timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
