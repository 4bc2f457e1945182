"""The modelled network between the hosts."""

from collections import deque
from collections.abc import Callable

from plesio.cost.cluster import Cluster
from plesio.sim.kernel import Kernel
from plesio.sim.link import LinkNetwork, Route

_FIRST = -1
"""Priority of a change: before all else that happens at its moment."""


class Fabric:
    """Carries messages from host to host in virtual time, over links that change when the cluster's do."""

    def __init__(self, kernel: Kernel, cluster: Cluster) -> None:
        self.kernel = kernel
        self.cluster = cluster
        self.cross_rack_bytes = 0
        self.network = LinkNetwork(kernel)
        self._num_connections = 0
        self._now = cluster
        """The cluster with its links as they are now."""
        self._places: dict[str, tuple[int, int, int]] = {}
        """The place of each used link: its first and second host, and its number between them."""
        for at_s in dict.fromkeys(change.at_s for change in cluster.changes if change.at_s > 0):
            kernel.at(at_s, self._change, _FIRST)

    def _change(self) -> None:
        self._now = self.cluster.at(self.kernel.now_s)
        for name, (source, target, position) in self._places.items():
            link = self._now.path(source, target)[position]
            self.network.change(name, link)

    def channel(self, source: int, target: int) -> "Channel":
        return Channel(self, source, target)

    def route(self, source: int, target: int) -> Route:
        """Return the links of a new connection; where links are not shared it has some of its own."""
        names = []
        path = self._now.path(source, target)
        for position, link in enumerate(path):
            self._num_connections += not link.shared
            name = link.name if link.shared else f"{link.name}:{self._num_connections}"
            self.network.link(name, link, trunk=0 < position < len(path) - 1)
            self._places[name] = source, target, position
            names.append(name)
        return self.network.route(names)


class Channel:
    """One direction of one connection: messages leave one after the other, and arrive in that order."""

    def __init__(self, fabric: Fabric, source: int, target: int) -> None:
        self._fabric = fabric
        self._route = fabric.route(source, target)
        self._crosses = fabric.cluster.rack_of_host(source) != fabric.cluster.rack_of_host(target)
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._busy = False

    def send(self, num_bytes: int, on_arrival: Callable[[], None]) -> None:
        """Queue a message; ``on_arrival`` is called when all of it is there."""
        if self._busy:
            self._waiting.append((num_bytes, on_arrival))
        else:
            self._transfer(num_bytes, on_arrival)

    def _transfer(self, num_bytes: int, on_arrival: Callable[[], None]) -> None:
        self._busy = True
        if self._crosses:
            self._fabric.cross_rack_bytes += num_bytes
        self._fabric.network.send(self._route, num_bytes, on_arrival, on_sent=self._on_sent)

    def _on_sent(self) -> None:
        self._busy = False
        if self._waiting:
            self._transfer(*self._waiting.popleft())
