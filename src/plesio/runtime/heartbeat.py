"""A worker's sign of life, sent from a thread of its own so that a long step is not taken for death.

The same connection brings the news that cannot wait for the training thread: a worker is lost, or this one was counted
lost. Where a collective cannot go on, the thread aborts the process group, which wakes the training thread out of it.
"""

import threading
import time
from collections.abc import Callable

from plesio.core.errors import PlesioError, TransportError, WorkerLostError
from plesio.runtime.exchange.transport import ControlClient
from plesio.runtime.ledger import Meter
from plesio.runtime.messages import ControlKind

__all__ = ["Heartbeat"]

BEATS_PER_LEASE = 5
LONGEST_INTERVAL_S = 1.0


class Heartbeat:
    """Beats until stopped.

    Args:
        client: A connection of its own; closed by `stop`.
        meter: Whose figures go with each beat.
        abort: Called once, from the thread, when the run cannot go on.
    """

    def __init__(self, client: ControlClient, *, meter: Meter, abort: Callable[[], None]) -> None:
        self._client = client
        self._meter = meter
        self._abort = abort
        self._stop = threading.Event()
        self._quiet = threading.Event()
        self._failure: PlesioError | None = None
        self.lost: set[int] = set()
        """Workers that were lost."""
        self._thread = threading.Thread(target=self._run, name="plesio-heartbeat", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> PlesioError | None:
        """Why the run cannot go on, if it cannot."""
        return self._failure

    def quiet(self) -> None:
        """Beat no more, but go on listening: the training thread sends the last figures itself."""
        self._quiet.set()

    def stop(self) -> None:
        """End the thread and close its connection."""
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        interval_s = LONGEST_INTERVAL_S / BEATS_PER_LEASE
        next_beat_s = 0.0
        try:
            while not self._stop.is_set():
                now_s = time.monotonic()
                if now_s >= next_beat_s and not self._quiet.is_set():
                    self._client.send(ControlKind.HEARTBEAT, {"report": self._meter.take().to_json()})
                    next_beat_s = now_s + interval_s
                for control in self._client.poll(0.05):
                    if control.kind == ControlKind.ALIVE:
                        interval_s = min(LONGEST_INTERVAL_S, control.body["lease_s"] / BEATS_PER_LEASE)
                    elif control.kind == ControlKind.LOST:
                        self._on_lost(control.body["workers"], fatal=control.body["fatal"])
                    elif control.kind == ControlKind.EXPELLED:
                        self._fail(
                            TransportError(
                                "this worker was silent for longer than its lease and was counted lost; join again"
                            )
                        )
        except TransportError as error:
            if not self._stop.is_set():
                self._fail(TransportError(f"the job's server is gone: {error}"))

    def _on_lost(self, workers: list[int], *, fatal: bool) -> None:
        self.lost.update(workers)
        if fatal:
            names = ", ".join(map(str, workers))
            text = f"worker {names} was lost (rank {names}), and a collective exchange cannot go on without it"
            self._fail(WorkerLostError(text, ranks=tuple(workers)))

    def _fail(self, failure: PlesioError) -> None:
        if self._failure is None:
            self._failure = failure
            self._abort()
