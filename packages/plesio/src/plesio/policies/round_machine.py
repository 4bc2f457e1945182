"""The admission of workers to rounds, which all machines share whose workers contribute to rounds.

A worker that left after contributing and is back before that round completes would count twice in one mean, if it were
let in at once. So it is admitted when the round completes; everybody else at once.
"""

from collections.abc import Collection, Sequence

from plesio.policies.events import (
    Action,
    Apply,
    Arrived,
    Event,
    Joined,
    LeaveReason,
    Left,
)


class RoundMachine:
    """Lets workers in and out; a subclass defines a round."""

    _live: Collection[int]
    """Workers that take part now."""
    _contributed: Collection[int]
    """Workers, also departed ones, of which an incomplete round holds an update."""

    def __init__(self) -> None:
        self._version = 0
        self._returning: list[int] = []
        """Workers to be admitted when the round that holds their earlier update completes."""
        self._resting: set[int] = set()

    def _admit(self, worker: int) -> tuple[Action, ...]:
        raise NotImplementedError

    def _depart(self, worker: int) -> tuple[Action, ...]:
        raise NotImplementedError

    def _arrive(self, event: Arrived) -> tuple[Action, ...]:
        """Count an update that is complete at the exchange."""
        raise NotImplementedError

    def handle(self, event: Event) -> tuple[Action, ...]:
        match event:
            case Joined(worker=worker):
                return self._join(worker)
            case Left():
                return self._leave(event)
            case Arrived():
                return self._arrive(event)
            case _:
                raise AssertionError(f"{event} is for policies that change")

    def _mean_of(self, updates: Sequence[tuple[int, int]]) -> Apply:
        """Make a version of the mean of these updates, which were computed from the one before."""
        self._version += 1
        zeros = (0,) * len(updates)
        return Apply(updates=tuple(updates), weight=1.0, version=self._version, staleness=zeros)

    def _join(self, worker: int) -> tuple[Action, ...]:
        assert worker not in self._live, f"worker {worker} has joined already"
        assert worker not in self._returning, f"worker {worker} has joined already"
        self._resting.discard(worker)
        if worker in self._contributed:
            self._returning.append(worker)
            return ()
        return self._admit(worker)

    def _leave(self, event: Left) -> tuple[Action, ...]:
        worker = event.worker
        if worker in self._resting:
            self._resting.remove(worker)
            return ()
        if event.reason is LeaveReason.RESTING:
            self._resting.add(worker)
        if worker in self._returning:
            self._returning.remove(worker)
            return ()
        assert worker in self._live, f"worker {worker} has not joined"
        return self._depart(worker)
