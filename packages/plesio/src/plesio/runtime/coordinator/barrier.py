"""The barrier at which all workers of a collective's group stop, so that they can form a new one.

    open --one is ready to join--> holding --all have reported their step--> stopping
     ^ ^                               |                                        |
     | |                               v  lost, or a worker was cut off         |  all have stopped
     | +--all have stopped-- gathering <----------------------------------------+
     +--------------------------------------------------------------------------+

Invariant: a generation is of one group, or of one attempt to form it.
"""

from collections.abc import Collection
from typing import Literal

from plesio.protocol.to_server import PositionReport

MOST_IN_VAIN = 5
"""Generations in a row without a loss, a join or a step: then they cannot meet at all."""


class Barrier:
    """The barrier of one run."""

    def __init__(self) -> None:
        self.generation = 0
        """Generation of the group, or of the one that is being formed."""
        self.phase: Literal["open", "holding", "stopping", "gathering"] = "open"
        self.stopped: dict[int, PositionReport] = {}
        """Workers that have stopped, or are ready to join, with what they have reported."""
        self._begun: dict[int, int] = {}
        """The step that each holding worker is in."""
        self._clock = -1
        self._num_in_vain = 0

    def begin(self, phase: Literal["holding", "gathering"]) -> None:
        """Have the workers hold or gather, for the next generation unless one is being formed."""
        if self.phase == "open":
            self.generation += 1
            self.stopped.clear()
            self._begun.clear()
        self.phase = phase

    def hold(self, worker: int, *, begun: int, group: Collection[int]) -> int | None:
        """Enter the step that a worker has begun; when all of the group hold, return the one after which they stop."""
        self._begun[worker] = begun
        if not self._begun.keys() >= set(group):
            return None
        self.phase = "stopping"
        return max(self._begun.values())

    def forget(self, worker: int) -> None:
        """Forget a lost worker: others may meet now that could not before."""
        self.stopped.pop(worker, None)
        self._num_in_vain = 0

    def is_complete(self, group: Collection[int]) -> bool:
        """Tell whether all of the group, and at least one worker, have come."""
        return self.phase in ("stopping", "gathering") and bool(group) and self.stopped.keys() >= set(group)

    def cross(self, clock: int, *, joined: bool) -> bool:
        """Let all go on from ``clock``, with workers that have ``joined`` or without.

        Returns:
            False if they came here too often without a step in between.
        """
        self._num_in_vain = self._num_in_vain + 1 if clock == self._clock and not joined else 0
        self._clock = clock
        self.phase = "open"
        return self._num_in_vain <= MOST_IN_VAIN

    def open_again(self) -> None:
        self.phase = "open"
