"""A worker's clock: the steps that it has finished, or the place in the run from which it was let go on."""

__all__ = ["StepClock"]


class StepClock:
    """Read by all parts of a worker; moved by its session at the end of a step, and when it is admitted.

    >>> clock = StepClock()
    >>> clock.go_on_from(7)
    >>> clock.finish(clock.finished + 1)
    >>> clock.finished
    8
    """

    __slots__ = ("finished",)

    def __init__(self) -> None:
        self.finished = 0
        """The last step that is finished; only the clock's methods move it."""

    def finish(self, clock: int) -> None:
        """Step ``clock`` is finished."""
        assert clock == self.finished + 1, f"step {clock} follows step {self.finished}"
        self.finished = clock

    def go_on_from(self, clock: int) -> None:
        """Go on at ``clock``: the worker is admitted, or all go on together."""
        self.finished = clock
