"""How an island's leader wakes its other ranks, which no server tells that their rail is no more.

A rank whose peer on its rail has ended is woken by its own connections. One whose peer has stopped is not, nor one of
which Gloo has forgotten a collective. So when the server tells the leader, it leaves a note in the job's key-value
store, and the others look for it, each in a thread and by a connection of its own: the training thread may wait in
another.
"""

import contextlib
import threading
from collections.abc import Callable

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from plesio.runtime.job_store import reach
from plesio.runtime.worker.environment import WorkerPlace

LOOK_S = 0.5
"""How often a rank looks."""
_TIMEOUT_S = 10.0


class IslandWatch:
    """One rank's end, for one generation of its rail.

    Args:
        place: Its place; unless it leads, it looks from now on.
        on_cut: Called once when the leader has been cut off; not where the store is gone.
    """

    def __init__(self, place: WorkerPlace, job: str, *, generation: int, on_cut: Callable[[], None]) -> None:
        self._place = place
        self._key = f"plesio/{job}/island/{place.rank}/cut/{generation}"
        self._on_cut = on_cut
        self._ended = threading.Event()
        self._calling = threading.Lock()
        if not place.leads:
            self._begin(self._look)

    def cut(self) -> None:
        """Wake the others, and return at once: the heartbeat's thread calls this."""
        if self._place.leads:
            self._begin(lambda: self._connect().set(self._key, "cut"))

    def end(self) -> None:
        """Look no more; nothing is called from here on."""
        with self._calling:
            self._ended.set()

    def _begin(self, action: Callable[[], None]) -> None:
        def run() -> None:
            with contextlib.suppress(RuntimeError):  # the store is gone: ranks are woken by their connections alone
                action()

        threading.Thread(target=run, name="plesio-island", daemon=True).start()

    def _connect(self) -> TCPStore:
        return reach(self._place.address, self._place.port, timeout_s=_TIMEOUT_S)

    def _look(self) -> None:
        store = self._connect()
        while not self._ended.wait(LOOK_S):
            if store.check([self._key]):
                with self._calling:
                    if not self._ended.is_set():
                        self._on_cut()
                return
