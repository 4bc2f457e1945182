"""Workers that exchange by a parameter server, by a ring, or by gathering sparse gradients: times and rates.

N workers push d bytes to S servers, each of which has an S-th of the parameters, and pull as much (Li et al. 2014): a
server's link carries ``N d/S`` each way, so with latency α and bandwidth B (`plesio.cost.collectives`)

    server   2 max(N, S)(α + d/(SB))            ring   2(N-1)(α + d/(NB))         server/ring = N/S · N/(N-1), α = 0

**Sparse.** If a share ρ of the gradient is not zero, a worker pushes ρd bytes of values and as many indices as values,
or all if that is less. It pulls what it needs next (``touched``, an embedding's rows), or what anybody has changed
(``changed``: ``1-(1-ρ)^N`` if who touches what is independent), or everything (``all``). A ring adds up dense
gradients, as sums fill up; the other collective is to gather everybody's sparse ones, ``(N-1)(α + ρd'/B)``, d' with the
indices.

**Asynchronous.** Nobody waits for anybody: a worker computes for c and exchanges alone, and together they do no more
than the servers' links carry, a closed queue (`plesio_planning.sim.store`):

    updates/s = min( N / (c + 2S(α + d/(SB))),  1 / (α + d/(SB)) )         ring: N / (b c + ring)

with b what a barrier costs, the mean of the slowest step over that of all (`studies.stragglers`). Updates are
N-1 versions old on average, so one of them may be worth less (`plesio_planning.studies.bounded_staleness`).
"""

from dataclasses import dataclass
from typing import Literal

from plesio.cost.collectives import all_gather_s, parameter_server_one_way_s, ring_all_reduce_s
from plesio.cost.link import Link

Pull = Literal["touched", "changed", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerModel:
    """Workers, servers and what they exchange.

    Attributes:
        num_workers: N.
        num_servers: S.
        gradient_bytes: d.
        bytes_per_s: B, of one direction of a worker's and of a server's link.
        latency_s: α.
        density: ρ, share of the gradient that is not zero.
        index_share: Bytes of an index over those of a value.
        pull: Part that a worker pulls.
        compute_s: c, mean seconds that a worker computes.
        barrier_factor: b, mean of the slowest worker's step over the mean step.
    """

    num_workers: int
    num_servers: int
    gradient_bytes: float
    bytes_per_s: float
    latency_s: float
    density: float
    index_share: float
    pull: Pull
    compute_s: float
    barrier_factor: float

    @property
    def link(self) -> Link:
        """A worker's and a server's."""
        return Link(latency_s=self.latency_s, bytes_per_s=self.bytes_per_s)

    @property
    def push_bytes(self) -> float:
        """Bytes that a worker pushes."""
        return self._bytes_of(self.density)

    @property
    def pull_bytes(self) -> float:
        """Bytes that a worker pulls."""
        shares = {"touched": self.density, "changed": 1 - (1 - self.density) ** self.num_workers, "all": 1.0}
        return self._bytes_of(shares[self.pull])

    def _bytes_of(self, density: float) -> float:
        return self.gradient_bytes * min(1.0, density * (1 + self.index_share))

    @property
    def push_s(self) -> float:
        """Seconds until all workers have pushed."""
        return self._one_way_s(self.push_bytes, num_workers=self.num_workers)

    @property
    def pull_s(self) -> float:
        """Seconds until all workers have pulled."""
        return self._one_way_s(self.pull_bytes, num_workers=self.num_workers)

    @property
    def server_s(self) -> float:
        """Seconds until all workers have pushed and pulled."""
        return self.push_s + self.pull_s

    @property
    def ring_s(self) -> float:
        """Seconds of a ring all-reduce of the dense gradient."""
        return ring_all_reduce_s(self.gradient_bytes, num_ranks=self.num_workers, link=self.link)

    @property
    def gather_s(self) -> float:
        """Seconds until every worker has every worker's sparse gradient."""
        return all_gather_s(self.num_workers * self.push_bytes, num_ranks=self.num_workers, link=self.link)

    @property
    def used_share(self) -> float:
        """Share of what all links can carry one way that servers and workers use while they exchange."""
        carried = self.num_workers * (self.push_bytes + self.pull_bytes)
        return carried / ((self.num_workers + self.num_servers) * self.bytes_per_s * self.server_s)

    @property
    def ring_used_share(self) -> float:
        """The same of a ring."""
        carried = 2 * (self.num_workers - 1) / self.num_workers * self.gradient_bytes
        return carried / (self.bytes_per_s * self.ring_s) if self.num_workers > 1 else 0.0

    @property
    def asynchronous_per_s(self) -> float:
        """Updates per second if nobody waits: what workers make or what the servers' links carry."""
        alone_s = self.compute_s + sum(self._one_way_s(size, num_workers=1) for size in self._ways)
        service_s = max(self.latency_s + size / self.num_servers / self.bytes_per_s for size in self._ways)
        return min(self.num_workers / alone_s, 1 / service_s)

    @property
    def synchronous_per_s(self) -> float:
        """Updates per second if all wait for the slowest and for the server."""
        return self.num_workers / (self.barrier_factor * self.compute_s + self.server_s)

    @property
    def ring_per_s(self) -> float:
        """Updates per second if all wait for the slowest and for a ring."""
        return self.num_workers / (self.barrier_factor * self.compute_s + self.ring_s)

    @property
    def _ways(self) -> tuple[float, float]:
        return self.push_bytes, self.pull_bytes

    def _one_way_s(self, num_bytes: float, *, num_workers: int) -> float:
        return parameter_server_one_way_s(
            num_bytes, num_workers=num_workers, num_servers=self.num_servers, link=self.link
        )
