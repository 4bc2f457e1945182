"""A worker's sign of life, sent from a thread of its own so that a long step is not taken for death.

The same connection brings the news that cannot wait for the training thread: a worker is lost, or this one was counted
lost. Where a collective cannot go on, the thread aborts the process group, which wakes the training thread out of it.

A process may sleep (SIGSTOP, a suspended machine) past its lease and not know that it was counted lost. So a beat that
was answered is what proves that the worker takes part, from when it was sent on, for a lease. The thread notices that
it has slept: a turn of its loop has taken a lease. If the server is gone by then, it is the worker that was lost, and
the same if no beat is answered soon.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence

from plesio.core.errors import PlesioError, TransportError, WorkerLostError
from plesio.protocol.message import decode, encode
from plesio.protocol.to_server import Heartbeat as Beat
from plesio.protocol.to_server import Holding
from plesio.protocol.to_worker import Alive, Expelled, Hold, Lost, Regrouping
from plesio.runtime.coordinator.members import FIRST_LEASE_S, MIN_LEASE_S
from plesio.runtime.transport import ControlClient
from plesio.runtime.transport.failover import FailoverControl
from plesio.runtime.transport.sockets import can_connect
from plesio.runtime.worker.environment import IslandPlace
from plesio.runtime.worker.meter import Meter

BEATS_PER_LEASE = 5
LONGEST_INTERVAL_S = 1.0
REACH_S = 5.0
"""How long the job's meeting place may take to answer."""
_News = Alive | Lost | Regrouping | Hold | Expelled
WOKEN_S = 10.0
"""How long after it woke up a worker waits for a beat to be answered, beside its lease."""
POLL_S = 0.05
"""Longest nap of the thread: so late may a beat be, and so long may `HeartbeatSender.stop` take."""


class Attendance:
    """Tells whether this worker still takes part, by the beats that were answered and the sleeps of its process."""

    def __init__(self) -> None:
        self.lease_s = FIRST_LEASE_S
        self._round_s = time.monotonic()
        """When the thread's loop began its present round."""
        self.begin()

    def begin(self) -> None:
        """Begin with a run, in which this worker takes part now."""
        self._sure_s = time.monotonic()
        """Until a lease after this moment the worker takes part."""
        self._asked_s: float | None = None
        """When the beat was sent that is to be answered."""
        self.woke_s = -math.inf

    def next_round(self) -> float:
        """Begin a round of the loop, and notice if the last one was a sleep; returns the time."""
        now_s = time.monotonic()
        if now_s > self._round_s + self._sleep_s:
            self.woke_s = now_s
        self._round_s = now_s
        return now_s

    def end(self) -> None:
        """Begin the last round: the thread ends."""
        self.next_round()
        self._round_s = math.inf

    def asked(self, now_s: float) -> None:
        # an answer proves that the worker took part when the oldest unanswered beat was sent
        self._asked_s = now_s if self._asked_s is None else self._asked_s

    def answered(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._sure_s = self._sure_s if self._asked_s is None else self._asked_s
        self._asked_s = None

    @property
    def unproved(self) -> bool:
        """True if nothing has proved for a lease that this worker takes part."""
        return time.monotonic() > self._sure_s + self.lease_s

    @property
    def overslept(self) -> bool:
        return self._sure_s < self.woke_s or time.monotonic() > self._round_s + self._sleep_s

    @property
    def _sleep_s(self) -> float:
        """Seconds from which a round of the loop is a sleep: a lease, or the least one if it may be shorter by now."""
        return MIN_LEASE_S if self.lease_s == FIRST_LEASE_S else self.lease_s


class HeartbeatSender:
    """Beats for one run after another, on one connection for the whole job.

    Args:
        client: A connection of its own; closed by `stop`.
        meeting_place: Address and port of the job's key-value store, which is on the server's host.
        island: The worker's, if it is one: so are all others.
    """

    def __init__(
        self,
        client: ControlClient | FailoverControl,
        *,
        rank: int,
        meeting_place: tuple[str, int],
        island: IslandPlace | None,
    ) -> None:
        self._client = client
        self._rank, self._island = rank, island
        self._meeting_place = meeting_place
        self._meter: Meter | None = None
        self._abort: Callable[[], None] = lambda: None
        self._hold: Callable[[int], int] = lambda generation: 0
        self._lost: Callable[[Sequence[int]], None] = lambda workers: None
        self._on_server_lost: Callable[[], None] | None = None
        self.server_lost = False
        self.failure: PlesioError | None = None
        self._failed = threading.Event()
        self.generation = 0
        self._attendance = Attendance()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plesio-heartbeat", daemon=True)
        self._thread.start()

    @property
    def doubtful(self) -> bool:
        # without a server nobody counts any more
        return not self.server_lost and (self.failure is not None or self._attendance.unproved)

    @property
    def overslept(self) -> bool:
        return self._attendance.overslept

    def goes_on(self) -> bool:
        """Tell whether the job goes on for this worker; the thread asks while it looks for the server's backup."""
        self._attendance.next_round()
        return not self._stop.is_set()

    def begin(
        self,
        meter: Meter,
        *,
        abort: Callable[[], None],
        hold: Callable[[int], int],
        lost: Callable[[Sequence[int]], None],
        on_server_lost: Callable[[], None] | None,
    ) -> None:
        """Beat for a run, and call the callbacks of `Pulse` from the thread; TransportError if the server is gone."""
        if not self._thread.is_alive():
            raise TransportError("the job's server is gone: it was lost in an earlier run")
        self.failure = None
        self._failed.clear()
        self.generation = 0
        self._attendance.begin()
        self._abort, self._hold, self._lost = abort, hold, lost
        self._on_server_lost, self._meter = on_server_lost, meter

    def wait_for_failure(self) -> PlesioError | None:
        self._failed.wait(self._attendance.lease_s)
        return self.failure

    def quiet(self) -> None:
        """Beat no more for this run, but go on listening: the training thread sends the last figures itself."""
        self._meter = None

    def next_run(self) -> None:
        """Take part in the next run: messages from now on belong to it."""
        self._client.generation += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        attendance, interval_s = self._attendance, LONGEST_INTERVAL_S / BEATS_PER_LEASE
        next_beat_s = 0.0
        try:
            while not self._stop.is_set():
                meter, now_s = self._meter, attendance.next_round()
                # a worker that woke from a long sleep gives the server a lease, and a little more, to answer
                if meter is not None and self.overslept and now_s > attendance.woke_s + attendance.lease_s + WOKEN_S:
                    self._fail(WorkerLostError.unanswered(self._rank))
                if meter is not None and now_s >= next_beat_s:
                    self._client.send(*encode(Beat(report=meter.take())))
                    next_beat_s = now_s + interval_s
                    attendance.asked(now_s)
                for control in self._client.poll(POLL_S):
                    match decode(control.kind, control.body, _News, peer="server 0"):
                        case Alive(lease_s=lease_s):
                            interval_s = min(LONGEST_INTERVAL_S, lease_s / BEATS_PER_LEASE)
                            attendance.answered(lease_s)
                        case Regrouping(generation=generation):
                            self.generation = generation
                            self._abort()
                        case Hold(generation=generation):
                            holding = Holding(generation=generation, begun=self._hold(generation))
                            self._client.send(*encode(holding))
                        case Lost(workers=workers, fatal=fatal, error=error):
                            self._lost(workers)
                            if fatal:
                                islands = "" if self._island is None else self._island.named(workers)
                                self._fail(WorkerLostError.of(workers, error=error, islands=islands))
                        case Expelled(over=over):
                            self._fail(WorkerLostError.expelled(self._rank, over=over))
        except TransportError as error:
            self._lose_server(error)

    def _lose_server(self, error: TransportError) -> None:
        if self._stop.is_set():
            return
        self._attendance.end()
        if self.overslept:
            self._fail(WorkerLostError.unanswered(self._rank))
            return
        if self._on_server_lost is None:
            self._fail(TransportError(f"the job's server is gone: {error}"))
            return
        host, port = self._meeting_place
        if not can_connect(host, port, timeout_s=REACH_S):  # it is not the server alone; the others may well go on
            nobody = f"neither the job's server nor its meeting place {host}:{port} answers"
            self._fail(TransportError(f"worker {self._rank} is cut off: {nobody}"))
            return
        self.server_lost = True
        self._on_server_lost()

    def _fail(self, failure: PlesioError) -> None:
        if self.failure is None:
            self.failure = failure
            self._failed.set()
            self._abort()
