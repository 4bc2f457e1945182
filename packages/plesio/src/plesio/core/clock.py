"""Time as an argument: code that needs the time gets a clock, which a test or a virtual world can replace."""

import time
from typing import Protocol

_WAKE_UP_S = 1e-4
"""How late a sleep usually ends (timer slack, wake-up): sleep that much less."""

_SHORTEST_SLEEP_S = 1e-6


class Clock(Protocol):
    """Seconds on a scale that never goes back."""

    def now_s(self) -> float:
        """Return the seconds since an arbitrary origin."""
        ...

    def unix_s(self) -> float:
        """Return the moment that every process writes down: Unix time, or a virtual world's own."""
        ...

    def sleep_s(self, duration_s: float) -> None:
        """Let ``duration_s`` seconds pass; zero or less returns at once."""
        ...

    def sleep_until_s(self, deadline_s: float, *, share: float = 1.0) -> None:
        """Return at ``deadline_s``, as punctually as the clock can; at once if that is past.

        Args:
            deadline_s: When what is computed meanwhile is to be over.
            share: How much of a training step that is; a virtual clock charges at least the least cost of a step.
        """
        ...


class MonotonicClock:
    """The machine's monotonic clock, the same for every process of one host."""

    __slots__ = ()

    def now_s(self) -> float:
        """Return the seconds since the host started."""
        return time.perf_counter()

    def unix_s(self) -> float:
        """Return Unix time."""
        return time.time()

    def sleep_s(self, duration_s: float) -> None:
        """Sleep; zero or less returns at once."""
        if duration_s > 0:
            time.sleep(duration_s)

    def sleep_until_s(self, deadline_s: float, *, share: float = 1.0) -> None:
        """Sleep for most of it, and the rest in the shortest sleeps there are: a sleep usually ends late."""
        while (left_s := deadline_s - self.now_s()) > 0:
            self.sleep_s(max(left_s - _WAKE_UP_S, _SHORTEST_SLEEP_S))


class TrainingClock:
    """Seconds spent training: starts at the first step and stands still while the run is evaluated.

    >>> class Fake:
    ...     t = 10.0
    ...     def now_s(self): return self.t
    ...     def sleep_s(self, duration_s): self.t += duration_s
    >>> fake = Fake()
    >>> clock = TrainingClock(fake)
    >>> clock.start(); fake.sleep_s(2.0); clock.pause(); fake.sleep_s(5.0); clock.resume(); fake.sleep_s(1.0)
    >>> clock.elapsed_s()
    3.0

    Args:
        already_s: Seconds that others had trained before the start, if they had begun earlier.
    """

    def __init__(self, clock: Clock, *, already_s: float = 0.0) -> None:
        self._clock = clock
        self._already_s = already_s
        self._started_s: float | None = None
        self._paused_at_s: float | None = None
        self._paused_s = 0.0

    def start(self) -> None:
        """Start counting; later calls change nothing."""
        if self._started_s is None:
            self._started_s = self._clock.now_s()

    def pause(self) -> None:
        """Stop counting until `resume`."""
        assert self._paused_at_s is None, "the training clock is paused already"
        self._paused_at_s = self._clock.now_s()

    def resume(self) -> None:
        """Go on counting after `pause`."""
        assert self._paused_at_s is not None, "the training clock is not paused"
        if self._started_s is not None:
            self._paused_s += self._clock.now_s() - max(self._paused_at_s, self._started_s)
        self._paused_at_s = None

    def elapsed_s(self) -> float:
        """Return the seconds of training so far; 0 before the start."""
        if self._started_s is None:
            return 0.0
        until_s = self._clock.now_s() if self._paused_at_s is None else self._paused_at_s
        return self._already_s + max(0.0, until_s - self._started_s - self._paused_s)
