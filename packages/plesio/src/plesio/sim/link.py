"""Shared links: transfers that share bandwidth as long as they last.

Theory of operation. A fluid model: a transfer is a flow with a rate, not packets. A link of bandwidth B with n
transfers on it offers each of them B/n, and a transfer goes at the smallest offer of the links on its way. Rates change
only when a transfer begins or ends, or a link changes, so between two such events every transfer's end is known;
whatever happens on a link gives the transfers on it their rates, and their ends, anew.

Invariants:

- The rates on a link add up to its bandwidth at most, and to exactly that where no transfer is held back elsewhere.
- The bytes of a transfer are the integral of its rate from its begin to the moment when the last one is out.

Where flows time out, B is what n of them leave of it (`plesio.cost.link.with_timeouts`).

A *trunk*, such as a rack's uplink, is shared by the interfaces behind it: it holds back only transfers that would be
faster than its level, and what the others leave is theirs (water-filling). So a trunk changes nothing that has room for
all that its interfaces offer.

It departs from max-min fairness (Bertsekas & Gallager 1992, section 6.5.2) in that what one transfer leaves unused on a
link that is no trunk, because another link holds it back, its neighbours do not get: a transfer is never faster than
max-min fairness would have it. TCP is near an equal split for flows of equal round trips that are out of slow start,
which is not modelled.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plesio.cost.link import Link
from plesio.sim.kernel import Kernel, Movable

_ROUNDING = 1e-12
"""Relative excess of what interfaces offer over a trunk that has room for all of it."""


@dataclass(slots=True, eq=False)
class SharedLink:
    """A link that its transfers share equally; made by `LinkNetwork.link`."""

    name: str
    link: Link
    trunk: bool = False
    transfers: dict["_Transfer", None] = field(default_factory=dict)
    """Transfers in the order in which they began."""
    offer_bytes_per_s: float = 0.0
    """Bandwidth offered to each of them; of a trunk, its level."""


Route = tuple[SharedLink, ...]
"""The links that a transfer goes over; made by `LinkNetwork.route`."""


@dataclass(slots=True, eq=False)
class _Transfer:
    route: Route
    left_bytes: float
    on_done: Callable[[], None]
    on_sent: Callable[[], None]
    updated_s: float
    end: Movable
    trunks: Route
    bytes_per_s: float = 0.0


class LinkNetwork:
    """Links and the transfers on them.

    A transfer over several links gets the smallest of its equal shares on them. Latencies add up, and begin when the
    last byte is out. A beginning or an end takes time in proportion to the transfers on its links.

    >>> kernel = Kernel()
    >>> network = LinkNetwork(kernel)
    >>> _ = network.link("uplink", Link(latency_s=0.5, bytes_per_s=100.0))
    >>> for _ in range(2):
    ...     network.send(network.route(["uplink"]), 100, lambda: print("arrived at", kernel.now_s))
    >>> kernel.run()
    arrived at 2.5
    arrived at 2.5
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._links: dict[str, SharedLink] = {}
        self._any_trunks = False

    def link(self, name: str, link: Link, *, trunk: bool = False) -> SharedLink:
        """Return the link of this name, made at the first call; raise `ValueError` for another capacity than it has."""
        self._any_trunks |= trunk
        shared = self._links.setdefault(name, SharedLink(name, link, trunk))
        known = shared.link
        if (known.latency_s, known.bytes_per_s) != (link.latency_s, link.bytes_per_s):
            raise ValueError(
                f"link {name}: {link.latency_s} s, {link.bytes_per_s} bytes per second, "
                f"but it is there already with {known.latency_s} s, {known.bytes_per_s} bytes per second"
            )
        return shared

    def change(self, name: str, link: Link) -> None:
        """Give the link of this name another latency and bandwidth, from now on; what has been sent has been sent."""
        shared = self._links[name]
        shared.link = link
        self._share((shared,))

    def route(self, links: Sequence[str]) -> Route:
        """Return the way over the named links, for many transfers; raise `ValueError` unless each is there, once."""
        if unknown := [name for name in links if name not in self._links]:
            raise ValueError(f"no link named {', '.join(unknown)}; make it with `link` first")
        if len(set(links)) < len(links):
            raise ValueError(f"a transfer over {', '.join(links)}: name each link once")
        return tuple(self._links[name] for name in links)

    def send(
        self,
        route: Route,
        num_bytes: float,
        on_done: Callable[[], None],
        *,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin a transfer.

        ``on_done`` is called when the last byte has arrived, ``on_sent`` when it is out, a latency before that. Raises
        `ValueError` for a number of bytes that cannot be.
        """
        if not 0 <= num_bytes < math.inf:
            raise ValueError(f"a transfer of {num_bytes} bytes; write a finite number, 0 or more")
        if num_bytes == 0 or not route:
            self._kernel.after(_latency_s(route), on_done)
            on_sent()
            return
        end = Movable(lambda: self._finish(transfer))
        trunks = tuple(link for link in route if link.trunk)
        transfer = _Transfer(route, float(num_bytes), on_done, on_sent, self._kernel.now_s, end, trunks)
        for link in route:
            link.transfers[transfer] = None
        self._share(route)

    def _share(self, changed: Route) -> None:
        kernel = self._kernel
        now_s = kernel.now_s
        affected: dict[_Transfer, None] = {}
        for link in changed:
            if link.transfers and not link.trunk:
                link.offer_bytes_per_s = link.link.carried_bytes_per_s(len(link.transfers)) / len(link.transfers)
                affected = affected | link.transfers if affected else link.transfers
        if self._any_trunks:
            # they come last, so that those that hold nobody back leave the order of events as it is
            trunks = dict.fromkeys(link for transfer in affected for link in transfer.trunks)
            trunks.update(dict.fromkeys(link for link in changed if link.trunk and link.transfers))
            for link in trunks:
                level = _level(link)
                if level != link.offer_bytes_per_s:
                    link.offer_bytes_per_s = level
                    affected = affected | link.transfers
        for transfer in affected:
            bytes_per_s = math.inf
            for link in transfer.route:
                if link.offer_bytes_per_s < bytes_per_s:
                    bytes_per_s = link.offer_bytes_per_s
            if bytes_per_s == transfer.bytes_per_s:
                continue
            transfer.left_bytes -= (now_s - transfer.updated_s) * transfer.bytes_per_s
            transfer.updated_s, transfer.bytes_per_s = now_s, bytes_per_s
            kernel.move(transfer.end, max(0.0, transfer.left_bytes) / bytes_per_s)

    def _finish(self, transfer: _Transfer) -> None:
        route = transfer.route
        for link in route:
            del link.transfers[transfer]
        self._share(route)
        self._kernel.after(_latency_s(route), transfer.on_done)
        transfer.on_sent()


def _level(trunk: SharedLink) -> float:
    """Return the rate above which a trunk holds transfers back, so that all together get no more than it has."""
    rates = sorted(
        min(link.offer_bytes_per_s for link in transfer.route if not link.trunk) for transfer in trunk.transfers
    )
    left = trunk.link.carried_bytes_per_s(len(rates))
    if sum(rates) <= left * (1 + _ROUNDING):
        return math.inf
    for number, rate in enumerate(rates):
        level = left / (len(rates) - number)
        if rate >= level:
            return level
        left -= rate
    return math.inf


def _latency_s(route: Route) -> float:
    latency_s = 0.0
    for link in route:
        latency_s += link.link.latency_s
    return latency_s
