"""The kernel of a discrete-event simulation: a heap of events and a virtual clock.

Theory of operation. An event is a call to be made at a moment of virtual time. Events happen in a total order:

    (time_s, priority, number)      number: how many events had been scheduled before this one

by time, then by priority (smaller first), then in the order in which they were scheduled. Nothing else, such as the
hash of an object or the machine's time, matters, so a simulation is a function of its inputs.

Invariants:

- Virtual time never falls: what is scheduled is never before now.
- An event happens at most once, and never after it was cancelled.
- Moments are compared as they are, without a tolerance: two that differ in the last bit are two moments.

A cancelled event stays in the heap without its action until its time has come, and is then dropped uncounted; searching
the heap for it would take longer. Few events are ever cancelled, so what can be is the exception: an action wrapped in
`Cancellable`. An object for every event, to cancel it by, would cost every event a sixth of its time.

A moment that changes often, as the end of a transfer does with its rate, is that of a `Movable`. One that is put off
stays where it is in the heap, and goes to its later place only when its turn there has come: of ten moves nine put off
or take back what the one before did. The order is that of an event that is cancelled and scheduled anew at every move.
"""

import math
from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]
"""The action of an event; may schedule others, at the same moment too."""

_NEVER_S = math.inf


class Cancellable:
    """An action that can be cancelled until it happens, which it does once: schedule it in the action's place.

    >>> kernel = Kernel()
    >>> alarm = Cancellable(lambda: print("too late"))
    >>> kernel.after(2.0, alarm)
    >>> kernel.after(1.0, alarm.cancel)
    >>> kernel.run()
    >>> kernel.now_s
    1.0
    """

    __slots__ = ("_action",)

    def __init__(self, action: Action) -> None:
        self._action: Action | None = action

    def cancel(self) -> None:
        """Make sure that it does not happen; harmless when it has happened already."""
        self._action = None

    def __call__(self) -> None:
        """Let it happen; the kernel does."""
        action, self._action = self._action, None
        assert action is not None
        action()


class Movable:
    """An action that happens once, at the moment to which `Kernel.move` has moved it last.

    >>> kernel = Kernel()
    >>> end = Movable(lambda: print("at", kernel.now_s))
    >>> for delay_s in (1.0, 5.0, 3.0):
    ...     kernel.move(end, delay_s)
    >>> kernel.run()
    at 3.0
    """

    __slots__ = ("_action", "_due_number", "_due_s", "_queued_number", "_queued_s")

    def __init__(self, action: Action) -> None:
        self._action = action
        self._due_s = self._queued_s = _NEVER_S
        """When it happens, and where in the heap it is: there or before."""
        self._due_number = self._queued_number = 0

    def __call__(self) -> None:
        """Let it happen; the kernel does."""
        self._queued_s = _NEVER_S
        self._action()


class Kernel:
    """Virtual time and what happens in it.

    An action may raise: the error leaves `step` or `run`, the event counts as processed, and the kernel can go on.

    >>> kernel = Kernel()
    >>> kernel.after(2.0, lambda: print("second at", kernel.now_s))
    >>> kernel.after(1.0, lambda: print("first at", kernel.now_s))
    >>> kernel.run()
    first at 1.0
    second at 2.0
    """

    __slots__ = ("_heap", "_num_cancelled", "_num_scheduled", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        """Virtual seconds since the beginning; only the kernel sets it."""
        self._heap: list[tuple[float, int, int, Action]] = []
        self._num_scheduled = 0
        self._num_cancelled = 0
        """Cancelled events among those that have left the heap."""

    @property
    def num_events(self) -> int:
        """Events processed, the one that is happening included."""
        return self._num_scheduled - self._num_cancelled - len(self._heap)

    def at(self, time_s: float, action: Action, priority: int = 0) -> None:
        """Have ``action`` called at a moment of virtual time, a finite one that is not past; else raise `ValueError`.

        Among the events of one moment, those of a smaller ``priority`` happen first.
        """
        if not self.now_s <= time_s < _NEVER_S:
            raise ValueError(f"an event at {time_s} s, now {self.now_s} s; write a finite time that is not past")
        self._num_scheduled = number = self._num_scheduled + 1
        heappush(self._heap, (time_s, priority, number, action))

    def after(self, delay_s: float, action: Action, priority: int = 0) -> None:
        """Have ``action`` called ``delay_s`` virtual seconds from now; as `at` otherwise."""
        # Not by way of `at`: a second call would slow every event down, as an argument that is keyword-only does.
        time_s = self.now_s + delay_s
        if not self.now_s <= time_s < _NEVER_S:
            raise ValueError(f"an event in {delay_s} s, now {self.now_s} s; write a finite delay of 0 s or more")
        self._num_scheduled = number = self._num_scheduled + 1
        heappush(self._heap, (time_s, priority, number, action))

    def move(self, event: Movable, delay_s: float) -> None:
        """Have ``event`` happen ``delay_s`` virtual seconds from now, and not when it was to happen before.

        Raises `ValueError` for a delay below 0, infinite or not a number; the event stays where it was.
        """
        time_s = self.now_s + delay_s
        if not self.now_s <= time_s < _NEVER_S:
            raise ValueError(f"an event in {delay_s} s, now {self.now_s} s; write a finite delay of 0 s or more")
        self._num_scheduled = number = self._num_scheduled + 1
        event._due_s, event._due_number = time_s, number
        if time_s < event._queued_s:
            event._queued_s, event._queued_number = time_s, number
            self._push(time_s, number, event)
        else:
            self._num_cancelled += 1  # the place that it has in the heap is scheduled already

    def _push(self, time_s: float, number: int, action: Action) -> None:
        heappush(self._heap, (time_s, 0, number, action))

    def _is_void(self, number: int, event: Movable) -> bool:
        """Check if an event that left the heap as ``number`` must not happen now; put it back if it was put off."""
        if number != event._queued_number:
            self._num_cancelled += 1
            return True
        if number == event._due_number:
            return False
        event._queued_s, event._queued_number = event._due_s, event._due_number
        self._push(event._due_s, event._due_number, event)
        return True

    def step(self) -> bool:
        """Let the next event happen; False if there is none."""
        heap = self._heap
        while heap:
            time_s, _, number, action = heappop(heap)
            if type(action) is Cancellable and action._action is None:
                self._num_cancelled += 1
                continue
            if type(action) is Movable and self._is_void(number, action):
                continue
            self.now_s = time_s
            action()
            return True
        return False

    def run(self) -> None:
        """Let events happen until there are none left."""
        heap = self._heap
        while heap:
            time_s, _, number, action = heappop(heap)
            if type(action) is Cancellable and action._action is None:
                self._num_cancelled += 1
                continue
            if type(action) is Movable and self._is_void(number, action):
                continue
            self.now_s = time_s
            action()
