"""Notices workers that have stopped where no server does: each has a sign of life in the job's key-value store.

A killed process closes its connections, and workers that wait for it notice that at once. One that sleeps (SIGSTOP, a
suspended machine, a host cut off) closes nothing. So each worker counts up a number in the store, from a thread of its
own; one whose number has stood still for a lease is given up. Who gives a worker up writes that into the store first,
as leases differ a little by worker: a sleeper that wakes reads there whether the others still count on it.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from plesio.runtime.coordinator.members import lease_s

_BEATS_PER_LEASE = 5
_LONGEST_INTERVAL_S = 1.0
_LEFT = -(2**62)
"""Added to the number of a worker that has left in good order."""
_GIVEN_UP = -(2**40)
"""Added to the number of a worker by each that gives it up."""
_MOST_WORKERS = 2**20
_ASKING_S = 0.02
"""Interval at which who asks looks whether anyone is there to answer."""

_log = logging.getLogger(__name__)


class Watch:
    """A watch that notices workers that have stopped; this one is of workers that cannot without the others' notice."""

    def is_given_up(self) -> bool:
        """Tell whether the others have given this worker up, or may have: it has shown no sign of life for a lease."""
        return False

    def close(self) -> None: ...


class PeerWatch(Watch):
    """One worker's thread; it begins at once.

    Args:
        store: Where the signs of life are. No other thread uses this connection.
        step_s: Tells the mean seconds of a step, of which the lease is a multiple; 0 before the first.
        give_up: Called from the thread with the number of each worker that has stopped.
        store_host: The worker in whose process the store is; None for a launcher's.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        others: Sequence[int],
        step_s: Callable[[], float],
        give_up: Callable[[int], None],
        store_host: int | None,
    ) -> None:
        self._store, self._rank, self._step_s = store, rank, step_s
        self._give_up, self._store_host = give_up, store_host
        self._lease_s = lease_s(step_s())
        """The lease as it was before the present turn: a sleep lengthens the mean step, and is not judged by that."""
        self._beaten_s = self._looked_s = time.monotonic()
        self._heard = dict.fromkeys(others, (0, 0.0))
        """Number of each peer's latest sign of life, and the seconds for which it has not changed."""
        self._questions = queue.SimpleQueue[threading.Event]()
        """Set when a sign of life that began after them is given."""
        self._stop = threading.Event()
        self._slept = False
        self._store_lost = False
        threading.Thread(target=self._guard, name="plesio-peer-guard", daemon=True).start()
        self._thread = threading.Thread(target=self._run, name="plesio-peer-watch", daemon=True)
        self._thread.start()

    def is_given_up(self) -> bool:
        """Tell it by the store.

        It asks the store, so it takes a moment, and a lease if the store does not answer. Without a store no sign of
        life arrives, and so no worker is given up for its absence.
        """
        if not self._silent():
            self._beat_now()
            if self._rank == self._store_host:  # the store may have slept too: what waits to be written comes first
                self._stop.wait(self._interval_s)
                self._beat_now()
        return self._silent()

    def close(self) -> None:
        self._stop.set()
        self._questions.put(threading.Event())  # so that the thread wakes
        self._thread.join(_LONGEST_INTERVAL_S)  # longer only if the store answers no more

    def _silent(self) -> bool:
        return self._slept or (time.monotonic() - self._beaten_s > self._lease_s and not self._store_lost)

    def _beat_now(self) -> None:
        """Wait for a sign of life that begins now; at most for a lease."""
        question, deadline_s = threading.Event(), time.monotonic() + self._lease_s
        self._questions.put(question)
        while self._thread.is_alive() and not self._store_lost and time.monotonic() < deadline_s:
            if question.wait(_ASKING_S):
                return

    @property
    def _interval_s(self) -> float:
        return min(_LONGEST_INTERVAL_S, self._lease_s / _BEATS_PER_LEASE)

    def _run(self) -> None:
        try:
            while True:
                question = self._await_turn()
                if self._stop.is_set():
                    break
                began_s = time.monotonic()
                if self._silent():
                    self._slept = True
                    return
                number = self._store.add(_key(self._rank), 1)
                if self._store_lost:  # it has answered after all, but to an age that is over
                    if (host := self._store_host) is not None and host in self._heard:
                        self._store.add(_key(host), _GIVEN_UP)
                    return
                if number < 0 or self._silent():  # the process was stopped in the middle of this sign of life
                    self._slept = True
                    return
                self._beaten_s = began_s
                self._lease_s = lease_s(self._step_s())
                if question is not None:
                    question.set()
                if not self._stop.is_set():
                    self._look()
            self._store.add(_key(self._rank), _LEFT)
        except dist.DistNetworkError as error:  # gone with its host: who else is, is heard from the connections
            self._store_lost = True
            self._stop.set()
            _log.info("the job's store is gone, so workers that stop are not noticed any more: %s", error)

    def _await_turn(self) -> threading.Event | None:
        """Wait until the next sign of life is due, or asked for; returns the question."""
        try:
            return self._questions.get(timeout=self._interval_s)
        except queue.Empty:
            return None

    def _guard(self) -> None:
        """Notice what `_run` cannot: that this process has slept, and that the store does not answer."""
        looked_s = time.monotonic()
        while not self._stop.wait(self._interval_s):
            now_s = time.monotonic()
            if now_s - looked_s > self._lease_s:
                self._slept = True
                return
            looked_s = now_s
            if now_s - self._beaten_s > self._lease_s:
                self._lose_store()
                return

    def _look(self) -> None:
        # While the store did not answer, nobody could give a sign of life: that time is not held against anyone.
        passed_s = min((now_s := time.monotonic()) - self._looked_s, self._interval_s)
        self._looked_s = now_s
        for other, (number, still_s) in list(self._heard.items()):
            latest = self._store.add(_key(other), 0)
            if latest < _GIVEN_UP * _MOST_WORKERS:
                del self._heard[other]
            elif latest < 0:  # another has given it up
                del self._heard[other]
                self._give_up(other)
            elif latest != number:
                self._heard[other] = latest, 0.0
            elif still_s + passed_s > self._lease_s:
                del self._heard[other]
                self._store.add(_key(other), _GIVEN_UP)
                self._lose(other)
            else:
                self._heard[other] = latest, still_s + passed_s

    def _lose_store(self) -> None:
        """Give up the store that does not answer: its process has stopped, or this worker is cut off."""
        self._store_lost = True
        if self._store_host is not None and self._store_host in self._heard:
            self._lose(self._store_host)
            return
        self._slept = True
        _log.warning("the job's store has not answered for %.1f s: this worker is cut off", self._lease_s)
        for other in list(self._heard):
            self._give_up(other)

    def _lose(self, other: int) -> None:
        _log.warning("worker %d has shown no sign of life for %.1f s and is given up", other, self._lease_s)
        self._give_up(other)


def _key(rank: int) -> str:
    return f"alive/{rank}"
