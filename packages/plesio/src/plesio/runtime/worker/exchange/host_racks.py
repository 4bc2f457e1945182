"""Which hosts are near to each other: a short probe at the start of a job, over its own process group.

All hosts meet in two round-robin tournaments, in other company the second time. In a round every host talks to one
other at most, all pairs at once and both ways at once: so what racks share is shared while it is measured. Hosts
whose ways to each other are slower than what both have elsewhere are in different racks
(`plesio.cost.topology.racks_of`, on the geometric mean of both tournaments); racks count only if each tournament by
itself shows that ways between them are slower. At last one host of each rack, or every host of racks that are equally
large, sends to the next rack at the same time: that is what an exchange between racks has.

With n hosts it takes 2(n-1) rounds of some 50 ms, and sends up to 5 MB from each host in a round. `plesio lab probe`
measures longer and more, and finds racks that this does not: those whose uplink is too slow only for more pairs than
met at once.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plesio.cost.topology import PairMatrix, Rows, racks_of, slower_between
from plesio.cost.tournament import tournament
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.exchange.pair_link import FIRST_BYTES, PairLink

FEWEST_HOSTS = 4
"""A rack has two hosts at least, and one rack is none."""
SEEDS = (None, 0)
PINGS = 8
TARGET_S = 0.01
"""How long a message takes whose bandwidth counts."""
GROWTH = 8
MOST_BYTES = 2**22
AT_ONCE_S = 0.03
AT_ONCE_REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSpeed:
    """Latency and bandwidth of the slowest of some pairs of hosts.

    Attributes:
        bytes_per_s: Bandwidth, while others send too.
    """

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRacks:
    """The result of the probe.

    Attributes:
        racks: Number of each host's rack, from 0 on; all 0 is one rack.
        within: The way between hosts of the same rack.
        between: The way between hosts of different racks, while one host of each rack sends, or all of equally large
        ones; None with one rack.
    """

    racks: tuple[int, ...]
    within: PairSpeed
    between: PairSpeed | None
    num_bytes: int
    took_s: float

    @property
    def num_racks(self) -> int:
        return max(self.racks) + 1

    @property
    def order(self) -> tuple[int, ...]:
        """The hosts rack by rack: a ring in this order enters and leaves every rack once."""
        return tuple(sorted(range(len(self.racks)), key=lambda host: self.racks[host]))

    @property
    def crossings(self) -> int:
        """How often a ring of the hosts as they are numbered goes from one rack to another.

        >>> way = PairSpeed(latency_s=1e-4, bytes_per_s=1e8)
        >>> HostRacks(racks=(0, 1, 0, 1), within=way, between=way, num_bytes=0, took_s=1.0).crossings
        4
        """
        return sum(self.racks[host] != self.racks[host - 1] for host in range(len(self.racks)))


def find_host_racks(group: TorchGroup) -> HostRacks:
    """Measure; all ranks of ``group``, one of each host, call this, and the result is the same on all.

    It raises RuntimeError, Gloo's own, if a host was lost.
    """
    assert group.size >= FEWEST_HOSTS, group.size
    return _HostProbe(group).run()


class _HostProbe:
    """One host's part. All hosts call the same methods in the same order."""

    def __init__(self, group: TorchGroup) -> None:
        self._count, self._rank = group.size, group.rank
        self._link = PairLink(group, most_bytes=MOST_BYTES)

    def run(self) -> HostRacks:
        self._link.meet()
        begun_s = time.perf_counter()
        measured = [self._tournament(seed) for seed in SEEDS]
        latencies = torch.minimum(*(latencies for latencies, _ in measured))
        matrices = [self._matrix(latencies, rates) for _, rates in measured]
        mean = torch.sqrt(measured[0][1] * measured[1][1])
        racks = self._agreed(racks_of(self._matrix(latencies, mean)))
        if not all(slower_between(matrix, racks) for matrix in matrices):
            racks = (0,) * self._count
        racks = self._agreed(racks)  # a distance may differ in its last digit on another machine
        within, between = (self._pairs(racks, same=same) for same in (True, False))
        way = None
        if max(racks) > 0:
            rate = self._between_bytes_per_s(racks, guess=min(float(mean[pair]) for pair in between))
            way = PairSpeed(latency_s=max(float(latencies[pair]) for pair in between), bytes_per_s=rate)
        num_bytes = self._link.gathered(torch.tensor([self._link.num_bytes_sent]))
        took_s = self._link.gathered(torch.tensor([(time.perf_counter() - begun_s) / self._count]))
        return HostRacks(
            racks=racks,
            within=PairSpeed(
                latency_s=max(float(latencies[pair]) for pair in within),
                bytes_per_s=min(float(mean[pair]) for pair in within),
            ),
            between=way,
            num_bytes=int(num_bytes),
            took_s=float(took_s),
        )

    def _tournament(self, seed: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Measure latency and bandwidth from the host of the row to the host of the column."""
        latencies, rates = torch.zeros(2, self._count, self._count, dtype=torch.float64)
        for pairs in tournament(self._count, seed=seed):
            self._link.meet()
            for one, two in pairs:
                if self._rank in (one, two):
                    peer = two if self._rank == one else one
                    latencies[self._rank, peer] = self._link.ping(peer, begins=self._rank == one, pings=PINGS)
                    rates[peer, self._rank] = self._rate_from(peer, latency_s=float(latencies[self._rank, peer]))
        return self._link.gathered(latencies), self._link.gathered(rates)

    def _rate_from(self, peer: int, *, latency_s: float) -> float:
        """Measure bytes per second from ``peer`` while both send; both ends call this."""
        size = FIRST_BYTES
        while True:
            self._link.swap(peer, peer, num_sent=1, num_received=1)  # so that both begin
            took_s = self._link.swap(peer, peer, num_sent=size, num_received=size)
            if self._link.larger(peer, took_s) >= TARGET_S or size == MOST_BYTES:
                return size / max(took_s - latency_s, took_s / 2)
            size = min(size * GROWTH, MOST_BYTES)

    def _between_bytes_per_s(self, racks: Sequence[int], *, guess: float) -> float:
        """Measure the slowest way to the next rack, while one host of each rack sends, or all of equally large ones."""
        members = [[host for host, own in enumerate(racks) if own == rack] for rack in range(max(racks) + 1)]
        size = max(FIRST_BYTES, min(MOST_BYTES, round(guess * AT_ONCE_S)))
        durations = torch.zeros(AT_ONCE_REPEATS, self._count, dtype=torch.float64)
        own = members[racks[self._rank]]
        place, alike = own.index(self._rank), len({len(hosts) for hosts in members}) == 1
        target, source = (members[(racks[self._rank] + step) % len(members)] for step in (1, -1))
        for repeat in range(AT_ONCE_REPEATS):
            self._link.meet()
            if alike or place == 0:
                durations[repeat, self._rank] = self._link.swap(
                    target[place], source[place], num_sent=size, num_received=size
                )
        slowest = self._link.gathered(durations).max(dim=1).values
        return size / float(slowest.median())

    def _matrix(self, latencies: torch.Tensor, rates: torch.Tensor) -> PairMatrix:
        return PairMatrix(
            hosts=tuple(map(str, range(self._count))), latency_s=_rows(latencies), bytes_per_s=_rows(rates)
        )

    def _agreed(self, racks: Sequence[int]) -> tuple[int, ...]:
        own = racks if self._rank == 0 else (0,) * self._count
        return tuple(self._link.gathered(torch.tensor(own)).tolist())

    def _pairs(self, racks: Sequence[int], *, same: bool) -> list[tuple[int, int]]:
        hosts = range(self._count)
        return [(one, two) for one in hosts for two in hosts if one != two and (racks[one] == racks[two]) == same]


def _rows(values: torch.Tensor) -> Rows:
    return tuple(map(tuple, values.tolist()))
