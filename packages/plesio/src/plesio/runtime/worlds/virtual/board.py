"""Notes between the threads of the virtual world; they are there at once."""

from collections.abc import Sequence

from plesio.runtime.worlds.virtual.scheduler import Scheduler, ThreadTurn


class Notes:
    """The notes that the workers of a simulation share."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.texts: dict[str, str] = {}
        self.waiting: list[ThreadTurn] = []


class VirtualBoard:
    """One worker's view."""

    def __init__(self, notes: Notes, *, turn: ThreadTurn) -> None:
        self._notes = notes
        self._turn = turn

    def post(self, key: str, text: str) -> None:
        self._notes.texts[key] = text
        waiting, self._notes.waiting = self._notes.waiting, []
        for turn in waiting:
            self._notes.scheduler.wake(turn)

    def read(self, key: str) -> str | None:
        return self._notes.texts.get(key)

    def await_any(self, keys: Sequence[str], *, timeout_s: float | None = None) -> str | None:
        """Wait for a note of one of these keys and return the first such key."""
        scheduler = self._notes.scheduler
        until_s = None if timeout_s is None else scheduler.now_s(self._turn) + timeout_s
        while True:
            for key in keys:
                if key in self._notes.texts:
                    return key
            left_s = None if until_s is None else until_s - scheduler.now_s(self._turn)
            if left_s is not None and left_s <= 0:
                return None
            self._notes.waiting.append(self._turn)
            scheduler.wait(self._turn, left_s)
            self._notes.waiting = [turn for turn in self._notes.waiting if turn is not self._turn]
