"""A worker's clock: the steps that it has finished, or the place in the run from which it was let go on."""

__all__ = ["StepClock"]


class StepClock:
    """Read by all parts of a worker; moved by its session at the end of a step, and by whoever admits it.

    >>> clock = StepClock()
    >>> clock.go_on_from(7)
    >>> clock.finish(clock.finished + 1)
    >>> clock.finished
    8
    """

    __slots__ = ("_finished",)

    def __init__(self) -> None:
        self._finished = 0

    @property
    def finished(self) -> int:
        """The last step that is finished."""
        return self._finished

    def finish(self, clock: int) -> None:
        """Step ``clock`` is finished."""
        assert clock == self._finished + 1, f"step {clock} follows step {self._finished}"
        self._finished = clock

    def go_on_from(self, clock: int) -> None:
        """The worker is admitted, or all go on together, at ``clock``."""
        self._finished = clock
