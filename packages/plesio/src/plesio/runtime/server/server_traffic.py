"""Traffic of a job's servers in the run under way, and the peers that they have refused."""

from collections import Counter
from collections.abc import Callable

from plesio.protocol.to_server import Ended
from plesio.runtime.coordinator.ledger import Ledger
from plesio.runtime.transport.connection import WorkerConnections


class ServerTraffic:
    """The traffic of one run after the other: connections count on, and each run has what came since it began.

    Args:
        cross_rack_bytes: Tells what has gone from rack to rack so far, where that is known.
    """

    def __init__(self, endpoint: WorkerConnections, *, cross_rack_bytes: Callable[[], int] = int) -> None:
        self._endpoint = endpoint
        self._cross_rack_bytes = cross_rack_bytes
        self._cross_rack_before = 0
        self._sent_before: Counter[str] = Counter()
        self._refused_before: Counter[str] = Counter()
        self._sent_elsewhere: Counter[str] = Counter()
        self._refused_elsewhere: Counter[str] = Counter()

    def _sent(self) -> Counter[str]:
        return Counter({"ipc": self._endpoint.traffic.ipc.sent, "tcp": self._endpoint.traffic.tcp.sent})

    def _refused(self) -> Counter[str]:
        return Counter({str(reason): count for reason, count in self._endpoint.refused.items()})

    def own(self) -> Ended:
        """Return this server's counts, as it sends them to server 0."""
        return Ended(sent=dict(self._sent() - self._sent_before), refused=dict(self._refused() - self._refused_before))

    def add(self, elsewhere: Ended) -> None:
        self._sent_elsewhere.update(elsewhere.sent)
        self._refused_elsewhere.update(elsewhere.refused)

    def enter(self, ledger: Ledger) -> None:
        own = self.own()
        ledger.servers.enter(
            sent=Counter(own.sent) + self._sent_elsewhere,
            refused=Counter(own.refused) + self._refused_elsewhere,
            cross_rack_bytes=self._cross_rack_bytes() - self._cross_rack_before,
        )

    def begin_run(self) -> None:
        """Begin the next run: what is sent from now on belongs to it, and messages of the last one are refused."""
        self._sent_before, self._refused_before = self._sent(), self._refused()
        self._cross_rack_before = self._cross_rack_bytes()
        self._sent_elsewhere.clear()
        self._refused_elsewhere.clear()
        self._endpoint.generation += 1
