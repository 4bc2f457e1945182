"""Shared links: transfers that share bandwidth as long as they last (a fluid model)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from plesio.sim.kernel import Event, Kernel

__all__ = ["Link", "Network"]


@dataclass(slots=True, eq=False)
class Link:
    """A link that its transfers share equally."""

    name: str
    latency_s: float
    bytes_per_s: float
    transfers: dict["_Transfer", None] = field(default_factory=dict)
    """In the order in which they began."""


@dataclass(slots=True, eq=False)
class _Transfer:
    links: tuple[Link, ...]
    left_bytes: float
    on_done: Callable[[], None]
    on_sent: Callable[[], None]
    bytes_per_s: float = 0.0
    updated_s: float = 0.0
    end: Event | None = None


class Network:
    """Links and the transfers on them.

    A transfer over several links gets the smallest of its equal shares on them. That is at most what max-min fairness
    would give: what one link's transfer leaves unused, the link's other transfers do not get. Latencies add up, and
    begin when the last byte is out.

    Args:
        kernel: The events.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._links: dict[str, Link] = {}

    def link(self, name: str, *, latency_s: float, bytes_per_s: float) -> Link:
        """The link of this name, made at the first call."""
        if name not in self._links:
            if not (latency_s >= 0 and bytes_per_s > 0):
                raise ValueError(f"link {name}: {latency_s} s, {bytes_per_s} bytes per second")
            self._links[name] = Link(name, latency_s, bytes_per_s)
        return self._links[name]

    def transfer(
        self,
        links: Sequence[str],
        num_bytes: float,
        on_done: Callable[[], None],
        *,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin a transfer over the named links.

        Args:
            links: Their names.
            num_bytes: What is transferred.
            on_done: Called when the last byte has arrived.
            on_sent: Called when the last byte is out, a latency before that.
        """
        route = tuple(self._links[name] for name in links)
        if num_bytes <= 0 or not route:
            self._kernel.after(sum(link.latency_s for link in route), on_done)
            on_sent()
            return
        transfer = _Transfer(route, float(num_bytes), on_done, on_sent, updated_s=self._kernel.now_s)
        for link in route:
            link.transfers[transfer] = None
        self._share(route)

    def _share(self, changed: tuple[Link, ...]) -> None:
        """Give every transfer on these links its share anew."""
        now_s = self._kernel.now_s
        for transfer in {transfer: None for link in changed for transfer in link.transfers}:
            bytes_per_s = min(link.bytes_per_s / len(link.transfers) for link in transfer.links)
            if bytes_per_s == transfer.bytes_per_s:
                continue
            transfer.left_bytes -= (now_s - transfer.updated_s) * transfer.bytes_per_s
            transfer.updated_s, transfer.bytes_per_s = now_s, bytes_per_s
            if transfer.end is not None:
                transfer.end.cancel()
            left_s = max(0.0, transfer.left_bytes) / bytes_per_s
            transfer.end = self._kernel.after(left_s, partial(self._finish, transfer))

    def _finish(self, transfer: _Transfer) -> None:
        for link in transfer.links:
            del link.transfers[transfer]
        self._share(transfer.links)
        self._kernel.after(sum(link.latency_s for link in transfer.links), transfer.on_done)
        transfer.on_sent()
