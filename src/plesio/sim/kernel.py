"""The kernel of a discrete-event simulation: a heap of events and a virtual clock.

Events happen in a total order: by time, then by priority (smaller first), then in the order in which they were
scheduled. Nothing else, such as the hash of an object or the machine's time, has a say in it, so a simulation is a
function of its inputs.
"""

import heapq
import itertools
import math
from collections.abc import Callable

__all__ = ["Event", "Kernel"]

Action = Callable[[], None]


class Event:
    """Something that will happen; `cancel` it and it will not."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """Harmless when it has happened already."""
        self.action = None


class Kernel:
    """Virtual time and what happens in it.

    >>> kernel = Kernel()
    >>> _ = kernel.after(2.0, lambda: print("second at", kernel.now_s))
    >>> _ = kernel.after(1.0, lambda: print("first at", kernel.now_s))
    >>> kernel.run()
    first at 1.0
    second at 2.0
    """

    __slots__ = ("_heap", "_numbers", "now_s", "num_events")

    def __init__(self) -> None:
        self.now_s = 0.0
        """Virtual seconds since the beginning."""
        self.num_events = 0
        """Events that have happened."""
        self._heap: list[tuple[float, int, int, Event]] = []
        self._numbers = itertools.count()

    def at(self, time_s: float, action: Action, *, priority: int = 0) -> Event:
        """Have ``action`` called at a moment of virtual time, now at the earliest.

        Raises:
            ValueError: The moment is past, infinite or no number.
        """
        if not self.now_s <= time_s < math.inf:
            raise ValueError(f"an event at {time_s} s cannot be scheduled at {self.now_s} s")
        event = Event(action)
        heapq.heappush(self._heap, (time_s, priority, next(self._numbers), event))
        return event

    def after(self, delay_s: float, action: Action, *, priority: int = 0) -> Event:
        """Have ``action`` called ``delay_s`` virtual seconds from now."""
        return self.at(self.now_s + delay_s, action, priority=priority)

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        heap = self._heap
        while heap:
            time_s, _, _, event = heapq.heappop(heap)
            action = event.action
            if action is not None:
                event.action = None
                self.now_s = time_s
                self.num_events += 1
                action()
                return True
        return False

    def run(self, until_s: float = math.inf) -> None:
        """Let events happen until there are none, or until the next one would be after ``until_s``."""
        while self._heap:
            if self._heap[0][0] > until_s:
                self.now_s = until_s
                return
            self.step()
