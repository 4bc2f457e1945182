"""Measured pairs of hosts made racks: which hosts are near one another, and what the racks have between them.

Theory. Pairs of hosts were measured one beside the other: a latency and a bandwidth in each direction. How near two
hosts are is how little slower the pair is than either of its hosts at its best,

    d(i, j) = max(ln(min(B_i, B_j) / B_ij), ⅓ ln(α_ij / max(α_i, α_j))),

with B_i and α_i the best that host i has with anyone. So a host with a slow interface is near to all hosts, and no rack
of its own; only a slow *way* makes hosts distant. Latencies scatter more than bandwidths: their cube root counts.

Racks are the clusters of an average linkage (Sokal & Michener 1958) cut at its widest gap: between the distance at
which the last hosts of a rack were joined and the one at which racks would be. The cut is made if, in bandwidth, ways
between racks are at least `RACK_FACTOR` slower than those within (or its cube in latency); otherwise all hosts
are one rack. Noise has no such gap: the averages over a cluster's pairs rise gradually.

A host that is alone in its rack cannot be told from one with a slow interface, and need not be, because no other host
shares its way out: it counts to the rack it is nearest to.

Between racks, messages share an *uplink*. Its bandwidth is measured with all pairs at once; else it is taken to be
what a pair had at best. The consequences for an exchange are in `plesio.cost.exchange_plan`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from plesio.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

RACK_FACTOR = 1.5
"""How much slower the ways between racks are than those within, at least."""

Rows = tuple[tuple[float, ...], ...]
"""Values from the host of the row to the host of the column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMatrix:
    """Measurements between every two hosts, in both directions.

    Attributes:
        latency_s: Seconds of a small message from host i (row) to host j (column).
        bytes_per_s: Bandwidth from host i to host j. The diagonals mean nothing.

    >>> two = PairMatrix(hosts=("a", "b"), latency_s=((0, 1e-4), (1e-4, 0)), bytes_per_s=((0, 1e9), (1e9, 0)))
    >>> two.num_hosts
    2
    """

    hosts: tuple[str, ...]
    latency_s: Rows
    bytes_per_s: Rows

    def __post_init__(self) -> None:
        count = len(self.hosts)
        if count < 2:
            raise ConfigError(f"pairs of {count} hosts; measure 2 or more")
        if len(set(self.hosts)) < count:
            raise ConfigError(f"hosts {', '.join(self.hosts)}: a name is there twice; give each its own")
        for what, rows, least in (("latency_s", self.latency_s, 0.0), ("bytes_per_s", self.bytes_per_s, None)):
            if len(rows) != count or any(len(row) != count for row in rows):
                raise ConfigError(f"{what} is not of {count} x {count} hosts; write a row and a column for each")
            for one, other in permutations(range(count), 2):
                value = rows[one][other]
                if not (math.isfinite(value) and (value > 0 or value == least)):
                    raise ConfigError(
                        f"{what} from {self.hosts[one]} to {self.hosts[other]} is {value}; "
                        f"write {'0 or more' if least == 0 else 'more than 0'}"
                    )

    @property
    def num_hosts(self) -> int:
        """How many hosts were measured."""
        return len(self.hosts)

    def best_bytes_per_s(self) -> tuple[float, ...]:
        """Return each host's best bandwidth to any other, in the slower direction.

        It is the bandwidth of its interface, if some way is no slower.
        """
        best = np.where(np.eye(self.num_hosts, dtype=bool), 0.0, _slower_direction(self)).max(axis=1)
        return tuple(map(float, best))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts, the racks they are in, and what the racks have between them.

    Attributes:
        matrix: Each pair alone.
        racks: The rack of each host, from 0 on.
        uplink_bytes_per_s: Bandwidth of each rack to all others, for all its hosts together; infinite in a single rack.
    """

    matrix: PairMatrix
    racks: tuple[int, ...]
    uplink_bytes_per_s: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = set(self.racks)
        if len(self.racks) != self.matrix.num_hosts or numbers != set(range(len(numbers))):
            raise ConfigError(
                f"racks {list(self.racks)} of {self.matrix.num_hosts} hosts; write one for each host, counting from 0"
            )
        if len(self.uplink_bytes_per_s) != len(numbers) or not all(rate > 0 for rate in self.uplink_bytes_per_s):
            raise ConfigError(
                f"uplinks {list(self.uplink_bytes_per_s)} of {len(numbers)} racks; write one for each, more than 0"
            )

    @classmethod
    def of(cls, matrix: PairMatrix, *, racks: Sequence[int] | None = None) -> "Topology":
        """Derive the topology from pairs that were measured alone: an uplink has the bandwidth of its best pair.

        The rack of each host is that of `racks_of` unless ``racks`` has it.
        """
        found = tuple(racks_of(matrix) if racks is None else racks)
        uplinks = [0.0] * len(set(found)) if len(set(found)) > 1 else [math.inf]
        for one, other in permutations(range(matrix.num_hosts), 2):
            if found[one] != found[other]:
                uplinks[found[one]] = max(uplinks[found[one]], matrix.bytes_per_s[one][other])
        return cls(matrix=matrix, racks=found, uplink_bytes_per_s=tuple(uplinks))

    @property
    def num_racks(self) -> int:
        """How many racks there are."""
        return len(self.uplink_bytes_per_s)

    def members(self, rack: int) -> tuple[int, ...]:
        """Return the hosts of a rack, in the order given."""
        return tuple(host for host, own in enumerate(self.racks) if own == rack)


def racks_of(matrix: PairMatrix, *, factor: float = RACK_FACTOR) -> tuple[int, ...]:
    """Return the rack of each host, counted in the order in which they appear; all 0 if the hosts are in one.

    ``factor``, more than 1, is how much slower ways between racks must be than those within.
    """
    if not factor > 1:
        raise ConfigError(f"racks that differ by a factor of {factor}; write more than 1, as in {RACK_FACTOR}")
    count = matrix.num_hosts
    if count == 2:
        return (0, 0)  # two hosts have one way, and no other to hold it against
    distances = _distances(matrix)
    merges, heights = _average_linkage(distances)
    gaps = np.diff(heights)
    widest = int(np.argmax(gaps))
    if gaps[widest] < math.log(factor):
        return (0,) * count
    labels = np.arange(count)
    for one, other in merges[: widest + 1]:
        labels[labels == other] = one
    return _with_company(labels.tolist(), distances)


def _average_linkage(distances: "NDArray[np.float64]") -> tuple[list[tuple[int, int]], list[float]]:
    """Join the two nearest groups again and again (UPGMA); jobs do this, and scipy is not with all of them.

    Returns:
        The groups that are joined, each by a host of it, of which the first stays; and their distances, which rise.
    """
    far = distances.copy()
    np.fill_diagonal(far, math.inf)
    sizes = np.ones(len(far))
    merges, heights = [], []
    for _ in range(len(far) - 1):
        one, other = sorted(divmod(int(far.argmin()), len(far)))
        merges.append((one, other))
        heights.append(float(far[one, other]))
        mean = (sizes[one] * far[one] + sizes[other] * far[other]) / (sizes[one] + sizes[other])
        far[one] = far[:, one] = mean
        far[one, one] = math.inf
        far[other] = far[:, other] = math.inf
        sizes[one] += sizes[other]
    return merges, heights


def slower_between(matrix: PairMatrix, racks: Sequence[int]) -> bool:
    """Check if ways between these racks are slower than those within, by the criterion of `racks_of`, in the median."""
    distances = _distances(matrix)
    same = np.equal.outer(racks, racks)
    inside = distances[same & ~np.eye(len(racks), dtype=bool)]
    return bool(not same.all() and np.median(distances[~same]) - np.median(inside) >= math.log(RACK_FACTOR))


def _slower_direction(matrix: PairMatrix) -> "NDArray[np.float64]":
    rates = np.array(matrix.bytes_per_s)
    return np.asarray(np.minimum(rates, rates.T))


def _distances(matrix: PairMatrix) -> "NDArray[np.float64]":
    same = np.eye(matrix.num_hosts, dtype=bool)
    rates = np.where(same, 0.0, _slower_direction(matrix))
    best = rates.max(axis=1)
    slower = np.log(np.minimum.outer(best, best) / np.where(same, 1.0, rates))
    latencies = np.array(matrix.latency_s)
    latencies = np.where(same, math.inf, np.maximum(latencies, latencies.T))
    least = latencies.min(axis=1)
    if least.min() > 0:
        later = np.log(np.where(same, 1.0, latencies) / np.maximum.outer(least, least)) / 3
        slower = np.maximum(slower, later)
    return np.asarray(np.where(same, 0.0, slower))


def _with_company(labels: Sequence[int], distances: "NDArray[np.float64]") -> tuple[int, ...]:
    """Return the racks of two hosts or more, from 0 on, and who was alone in the nearest of them."""
    racks = sorted(label for label in set(labels) if labels.count(label) > 1)
    if len(racks) < 2:
        return (0,) * len(labels)

    def distance(host: int, rack: int) -> float:
        return float(np.mean([distances[host, other] for other, label in enumerate(labels) if label == rack]))

    numbers: dict[int, int] = {}
    found = []
    for host, label in enumerate(labels):
        nearest_rack = label if label in racks else min(racks, key=lambda rack: distance(host, rack))
        found.append(numbers.setdefault(nearest_rack, len(numbers)))
    return tuple(found)
