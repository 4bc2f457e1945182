"""The modelled network between the hosts, and what it costs to use it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from plesio.cost.cluster import Cluster
from plesio.sim.kernel import Kernel
from plesio.sim.link import Network

__all__ = ["Channel", "ExchangeCosts", "Fabric"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCosts:
    """What exchanging costs processors, beside the links' own times; measured by `plesio calibrate`.

    Attributes:
        pack_s: Seconds that a worker takes for any update or parameters, large or small.
        pack_bytes_per_s: Bytes per second that it copies in or out.
        serve_s: Seconds that a server takes for any message.
        serve_bytes_per_s: Bytes per second that it applies or answers.
        step_s: Seconds of a step outside the computing that is modelled (the books, the optimizer).
    """

    pack_s: float = 200e-6
    pack_bytes_per_s: float = 4e9
    serve_s: float = 150e-6
    serve_bytes_per_s: float = 2e9
    step_s: float = 0.0

    def pack(self, num_bytes: int) -> float:
        """Seconds that a worker takes to pack or unpack ``num_bytes``."""
        return self.pack_s + num_bytes / self.pack_bytes_per_s

    def serve(self, num_bytes: int) -> float:
        """Seconds that a server takes for a message of ``num_bytes``."""
        return self.serve_s + num_bytes / self.serve_bytes_per_s


class Fabric:
    """Carries messages from host to host in virtual time.

    Args:
        kernel: The events.
        cluster: Hosts and links.
    """

    def __init__(self, kernel: Kernel, cluster: Cluster) -> None:
        self.kernel = kernel
        self.cluster = cluster
        self.cross_rack_bytes = 0
        self._network = Network(kernel)
        self._num_connections = 0

    def channel(self, source: int, target: int) -> "Channel":
        """A new connection from host ``source`` to host ``target``."""
        return Channel(self, source, target)

    def transfer(
        self, route: list[str], num_bytes: int, *, on_arrival: Callable[[], None], on_sent: Callable[[], None]
    ) -> None:
        """Send ``num_bytes``, over links shared with what else is on them."""
        self._network.transfer(route, num_bytes, on_arrival, on_sent=on_sent)

    def route(self, source: int, target: int) -> list[str]:
        """The names of the links of a new connection; where links are not shared it has some of its own."""
        names = []
        for link in self.cluster.path(source, target):
            self._num_connections += not link.shared
            name = link.name if link.shared else f"{link.name}:{self._num_connections}"
            self._network.link(name, latency_s=link.latency_s, bytes_per_s=link.bytes_per_s)
            names.append(name)
        return names


class Channel:
    """One direction of one connection: messages leave one after the other, and arrive in that order.

    Args:
        fabric: Carries them.
        source: From which host.
        target: To which.
    """

    def __init__(self, fabric: Fabric, source: int, target: int) -> None:
        self._fabric = fabric
        self._route = fabric.route(source, target)
        self._crosses = fabric.cluster.rack_of_host(source) != fabric.cluster.rack_of_host(target)
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._busy = False

    def send(self, num_bytes: int, on_arrival: Callable[[], None]) -> None:
        """Queue a message; ``on_arrival`` is called when all of it is there."""
        self._waiting.append((num_bytes, on_arrival))
        if not self._busy:
            self._send_next()

    def _send_next(self) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            num_bytes, on_arrival = self._waiting.popleft()
            if self._crosses:
                self._fabric.cross_rack_bytes += num_bytes
            self._fabric.transfer(self._route, num_bytes, on_arrival=on_arrival, on_sent=self._send_next)
