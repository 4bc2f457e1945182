"""Ways to save a run's state, and what each costs a cluster of any size.

Four ways to write. *Full*: one writer, C. *Sharded* over n writers: C/n, and no less than the storage takes. *Partial*:
only what has changed, a share c of the state, and all of it every k-th time; a restart also reads the parts since. And
*asynchronous* (with shards): the run stands still for a copy to the host's memory, and the state counts when it is
written, w later. A failure costs w more, so R + w stands for R, exactly, as long as w is no more than an interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from plesio.cost.reliability import MOST_SLOWDOWN, best_interval_s, cluster_mtbf_s, slowdown_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The costs of one state.

    Attributes:
        checkpoint_s: C, seconds that the run stands still for it.
        restart_s: R, seconds from a failure until the run goes on from it.
        lag_s: w, seconds from when it is taken until it counts.
    """

    checkpoint_s: float
    restart_s: float
    lag_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWay:
    """A way to save the state, at its best interval.

    Attributes:
        interval_s: I, the best; no shorter than until a state counts.
        slowdown: Seconds that a second of work takes.
        parts: Uses of the part of these above 1.
    """

    name: str
    costs: Costs
    interval_s: float
    slowdown: float
    parts: Mapping[str, float]

    @classmethod
    def at_best(cls, name: str, costs: Costs, *, mtbf_s: float) -> Self:
        """Return the way with its best interval, where failures are ``mtbf_s`` apart.

        Raises:
            ConfigError: A cost or ``mtbf_s`` that is out of range.
        """
        interval_s = max(best_interval_s(checkpoint_s=costs.checkpoint_s, mtbf_s=mtbf_s), costs.lag_s)
        parts = slowdown_parts(
            interval_s=interval_s,
            checkpoint_s=costs.checkpoint_s,
            mtbf_s=mtbf_s,
            restart_s=costs.restart_s,
            lag_s=costs.lag_s,
        )
        slowdown = 1 + math.fsum(parts.values())
        return cls(name=name, costs=costs, interval_s=interval_s, slowdown=slowdown, parts=parts)


def costs_of_ways(
    *,
    checkpoint_s: float,
    restart_s: float,
    num_writers: int,
    storage_writers: float,
    changed_share: float,
    full_every: int,
    snapshot_s: float,
) -> dict[str, Costs]:
    """Return the costs of a state in each of the four ways, from the inputs of the study."""
    written_s = checkpoint_s / min(num_writers, storage_writers)
    partial_s = checkpoint_s * (changed_share + (1 - changed_share) / full_every)
    several = 1 + changed_share * (full_every - 1) / 2  # a whole state, and half of the parts until the next
    return {
        "full": Costs(checkpoint_s=checkpoint_s, restart_s=restart_s),
        "partial": Costs(checkpoint_s=partial_s, restart_s=restart_s * several),
        "sharded": Costs(checkpoint_s=written_s, restart_s=restart_s),
        "asynchronous": Costs(checkpoint_s=min(snapshot_s, written_s), restart_s=restart_s, lag_s=written_s),
    }


def overhead_by_hosts(
    ways: Mapping[str, Costs], *, host_mtbf_s: float, numbers: Sequence[int]
) -> dict[int, tuple[float, dict[str, float]]]:
    """Return the seconds between failures and each way's slow-down, by number of hosts; NaN where no run ends.

    Raises:
        ConfigError: A cost, a number or ``host_mtbf_s`` that is out of range.
    """
    found = {}
    for hosts in numbers:
        mtbf_s = cluster_mtbf_s(part_mtbf_s=host_mtbf_s, num_parts=hosts)
        slowdowns = {name: CheckpointWay.at_best(name, costs, mtbf_s=mtbf_s).slowdown for name, costs in ways.items()}
        found[hosts] = (mtbf_s, {name: one if one <= MOST_SLOWDOWN else math.nan for name, one in slowdowns.items()})
    return found


def lost_generations(
    numbers: Sequence[int], *, unreadable: float, num_failures: float
) -> dict[int, tuple[float, float]]:
    """Return the intervals lost beside the first, and how likely none is good, by number of generations kept.

    A state cannot be read with probability ``unreadable``; the failures are those expected of the whole run.
    """
    return {
        kept: (
            math.fsum(j * unreadable**j * (1 - unreadable) for j in range(1, kept)),
            -math.expm1(num_failures * math.log1p(-(unreadable**kept))),
        )
        for kept in numbers
    }
