"""The step at which a worker stops so that others can join: agreed on while all work, so that no step is done twice.

    Hold --> reports the step it has begun, begins none beyond it --Stop--> goes on to the named step, waits there

The heartbeat's thread answers the first half at once, whatever the training thread does; that one begins no other step
before all agree on the last. All come to the same steps in a collective, so the furthest step that any worker has begun
is one that all can finish.
"""

import threading
from typing import Literal

from plesio.protocol.to_worker import Stop

__all__ = ["StopPoint"]


class StopPoint:
    """The stop point of one worker in one run.

    Args:
        clock: Steps that are finished when the run begins: the next one is begun.
    """

    def __init__(self, *, clock: int) -> None:
        self._lock = threading.Lock()
        self._begun = clock + 1
        self._asked = 0
        """The generation of the last `Hold`."""
        self._stop = Stop(generation=0, clock=0)

    def hold(self, generation: int) -> int:
        """Begin no further step for now; returns the last one that has been begun."""
        with self._lock:
            self._asked = generation
            return self._begun

    def stop(self, stop: Stop) -> None:
        """Take note of the step at which all stop."""
        self._stop = stop

    def begin(self, step: int, *, generation: int) -> Literal["begins", "stops", "holds"]:
        """Begin this step, if this worker neither holds nor stops before it.

        Args:
            step: Its number.
            generation: The generation of the group that the worker is in; requests to an earlier one are over.
        """
        with self._lock:
            if self._asked > generation:
                if self._stop.generation != self._asked:
                    return "holds"
                if step > self._stop.clock:
                    return "stops"
            self._begun = step
            return "begins"
