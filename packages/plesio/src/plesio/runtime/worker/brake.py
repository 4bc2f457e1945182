"""Where a worker stops so that others can join: agreed on by all while they work, so that no step is done twice.

    Hold --> says which step it has begun, and begins none beyond --Stop--> goes on to the step that is named, stands

The first half is answered by the heartbeat's thread at once, in whatever the training thread is; it is then this one's
matter not to begin another step before it knows where all stop. All come to the same steps in a collective, so the
furthest that anybody has begun is one that all can finish.
"""

import threading
from typing import Literal

from plesio.protocol.to_worker import Stop

__all__ = ["Brake"]


class Brake:
    """Of one worker in one run.

    Args:
        clock: Steps that are finished when the run begins: the next one is begun.
    """

    def __init__(self, *, clock: int) -> None:
        self._lock = threading.Lock()
        self._begun = clock + 1
        self._asked = 0
        """Of which generation the last `Hold` was."""
        self._stop = Stop(generation=0, clock=0)

    def hold(self, generation: int) -> int:
        """Begin no further step for now; returns the last one that has been begun."""
        with self._lock:
            self._asked = generation
            return self._begun

    def stop(self, stop: Stop) -> None:
        """Where all stop is known."""
        self._stop = stop

    def begin(self, step: int, *, generation: int) -> Literal["begins", "stops", "holds"]:
        """Begin this step, if this worker neither holds nor stops before it.

        Args:
            step: Which.
            generation: Of the group that the worker is in; what was asked of an earlier one is over.
        """
        with self._lock:
            if self._asked > generation:
                if self._stop.generation != self._asked:
                    return "holds"
                if step > self._stop.clock:
                    return "stops"
            self._begun = step
            return "begins"
