"""A clock that a test sets: time passes only while somebody sleeps."""


class FakeClock:
    """Time passes only while somebody sleeps, and every sleep ends late by a fixed amount.

    >>> clock = FakeClock()
    >>> clock.sleep_s(2.5); clock.now_s()
    2.5

    Args:
        start_s: The time at the beginning.
        late_s: By how much every sleep ends late.
    """

    def __init__(self, *, start_s: float = 0.0, late_s: float = 0.0) -> None:
        self.at_s = start_s
        self.late_s = late_s
        self.num_sleeps = 0
        """Sleeps so far, of more than no time."""

    def now_s(self) -> float:
        """Return the seconds."""
        return self.at_s

    def unix_s(self) -> float:
        """Return the same."""
        return self.at_s

    def sleep_s(self, duration_s: float) -> None:
        """Let the time pass; zero or less changes nothing."""
        if duration_s > 0:
            self.num_sleeps += 1
            self.at_s += duration_s + self.late_s

    def sleep_until_s(self, deadline_s: float, *, share: float = 1.0) -> None:
        """Let the time pass until then, or until a sleep that ends late has ended."""
        self.sleep_s(deadline_s - self.at_s)
