"""Which all-reduce is the fastest, and from which size on, among links that are all equal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from plesio.core.errors import ConfigError, nearest
from plesio.cost.all_reduce import (
    double_tree_all_reduce_s,
    halving_doubling_all_reduce_s,
    ring_all_reduce_s,
    tree_all_reduce_s,
)
from plesio.cost.link import Link


class AllReduceTime(Protocol):
    """An all-reduce's time among equal links."""

    def __call__(self, num_bytes: float, *, num_ranks: int, link: Link) -> float:
        """Return the seconds."""
        ...


ALL_REDUCES: Mapping[str, AllReduceTime] = {
    "ring": ring_all_reduce_s,
    "halving-doubling": halving_doubling_all_reduce_s,
    "double tree": double_tree_all_reduce_s,
    "tree": tree_all_reduce_s,
}
"""The algorithms for equal links. The first of two that take as long is chosen."""

_LARGEST_BYTES = 2.0**50
_PER_OCTAVE = 8
_ROUNDING = 1e-9
"""Times that differ by less, relatively, are equal."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm and what it takes."""

    algorithm: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Crossover:
    """The size from which on an algorithm is the fastest.

    Attributes:
        from_bytes: The size; 0 for the first.
    """

    from_bytes: float
    algorithm: str


def fastest(times: Mapping[str, float]) -> Choice:
    """Return the algorithm with the least time; of those that are equal but for rounding, the first."""
    least = min(times.values())
    name = next(name for name, duration_s in times.items() if duration_s <= least * (1 + _ROUNDING))
    return Choice(name, times[name])


def select_all_reduce(
    num_bytes: float,
    *,
    num_ranks: int,
    link: Link,
    algorithms: Sequence[str] = tuple(ALL_REDUCES),
) -> Choice:
    """Return the fastest algorithm for this size, and its time.

    >>> select_all_reduce(
    ...     1e6, num_ranks=256, link=Link(latency_s=10e-6, bytes_per_s=50e9), algorithms=["ring", "double tree"]
    ... ).algorithm
    'double tree'

    Args:
        num_bytes: S.
        num_ranks: n.
        link: α and B.
        algorithms: Names of `ALL_REDUCES` to choose from; NCCL has ``["ring", "double tree"]``. For a power of two
            halving-doubling is never slower than any other, in this model.

    Raises:
        ConfigError: No such algorithm, or an argument that is out of range.
    """
    for name in algorithms:
        if name not in ALL_REDUCES:
            raise ConfigError(f'unknown all-reduce "{name}"; {nearest(name, ALL_REDUCES)}')
    if not algorithms:
        raise ConfigError(f"no algorithms to choose from; known: {', '.join(ALL_REDUCES)}")
    return fastest({name: ALL_REDUCES[name](num_bytes, num_ranks=num_ranks, link=link) for name in algorithms})


def all_reduce_crossovers(
    *, num_ranks: int, link: Link, algorithms: Sequence[str] = tuple(ALL_REDUCES)
) -> tuple[Crossover, ...]:
    """Return which algorithm is the fastest from which size on, up to 1 PiB; sizes are rising, the first is 0.

    For a ring and a tree they cross at ``m* = αB ((n-1) - log₂ n) / (log₂ n - (n-1)/n)`` if n is a power of two. Found
    by looking at eight sizes an octave and halving in between, so an algorithm that is the fastest over less than that
    may be missed.

    >>> crossings = all_reduce_crossovers(
    ...     num_ranks=256, link=Link(latency_s=10e-6, bytes_per_s=50e9), algorithms=["ring", "tree"]
    ... )
    >>> [(crossing.algorithm, round(crossing.from_bytes / 1e6, 1)) for crossing in crossings]
    [('tree', 0.0), ('ring', 17.6)]

    Args:
        num_ranks: n.
        link: α and B.
        algorithms: Names to choose from, as in `select_all_reduce`.

    Raises:
        ConfigError: No such algorithm, or an argument that is out of range.
    """

    def choice(num_bytes: float) -> str:
        return select_all_reduce(num_bytes, num_ranks=num_ranks, link=link, algorithms=algorithms).algorithm

    found = [Crossover(0.0, choice(0.0))]
    octaves = round(math.log2(_LARGEST_BYTES))
    sizes = [0.0, *(2.0 ** (step / _PER_OCTAVE) for step in range(octaves * _PER_OCTAVE + 1))]
    for low, high in pairwise(sizes):
        while choice(high) != found[-1].algorithm:
            below, above = max(low, found[-1].from_bytes), high
            while above - below > 1e-12 * above:
                middle = (below + above) / 2
                if choice(middle) == found[-1].algorithm:
                    below = middle
                else:
                    above = middle
            found.append(Crossover(above, choice(above)))
    return tuple(found)
