"""A check that exchanges within and between racks take the time that the probe at the start predicts.

The probe's ways predict a ring all-reduce of a slice between racks, and the spreading of slices within a rack
(`racks`). After every `WINDOW` exchanges all ranks compare: the quickest exchange of any rank counts, because waiting
for others, and all else that disturbs one, makes it longer. If that one took `OFF_BY` times as long as predicted, or
between racks as much less, there is one warning. Times below `SHORTEST_S` count as that: where an exchange takes no
longer it makes no difference which racks there are.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch

from plesio.cost.all_reduce import ring_all_reduce_s
from plesio.cost.collectives import all_gather_s, broadcast_s
from plesio.cost.link import Link
from plesio.runtime.worker.exchange.group import LiveGroup
from plesio.runtime.worker.exchange.host_racks import HostRacks

__all__ = ["OFF_BY", "SHORTEST_S", "WINDOW", "RackWatch"]

OFF_BY = 3.0
WINDOW = 8
SHORTEST_S = 0.02

Where = Literal["between", "within"]


class RackWatch:
    """Holds what exchanges take against the probe's prediction; all ranks have one, and show it the same exchanges.

    Args:
        found: The probe's result, with two racks or more.
        group: The workers that are there.
        workers_per_host: Workers that share a host's way to other racks.
        warn: Called on every rank, with a sentence, at most once within racks and once between them.
    """

    def __init__(
        self, found: HostRacks, *, group: LiveGroup, workers_per_host: int, warn: Callable[[str], None]
    ) -> None:
        assert found.between is not None, "one rack has nothing between"
        self._within, self._between = found.within, found.between
        self._group = group
        self._workers_per_host = workers_per_host
        self._warn = warn
        self._num_seen = 0
        self._least: dict[Where, float] = {"between": math.inf, "within": math.inf}
        """Shortest exchanges of this window and rank: seconds over the predicted ones."""
        self._said: set[Where] = set()

    def saw(self, *, summed_s: float, spread_s: float, num_bytes: int, num_rails: int, sizes: list[int]) -> None:
        """Count a sum over racks that has been taken.

        Args:
            summed_s: Seconds between racks; infinity for a rank that took no part.
            spread_s: Seconds until all of the rack had it; infinity for a rank by itself.
            num_bytes: Size of the tensor.
            num_rails: Slices that were summed side by side.
            sizes: Ranks of each rack.
        """
        self._take("between", summed_s, self._sum_s(num_bytes, num_rails=num_rails, num_racks=len(sizes)))
        self._take("within", spread_s, self._spread_s(num_bytes, num_rails=num_rails, num_ranks=max(sizes)))
        self._num_seen += 1
        if self._num_seen % WINDOW == 0:
            self._compare()

    def _sum_s(self, num_bytes: int, *, num_rails: int, num_racks: int) -> float:
        sharing = min(num_rails, self._workers_per_host)
        return ring_all_reduce_s(
            num_bytes / num_rails,
            num_ranks=num_racks,
            link=Link(latency_s=self._between.latency_s, bytes_per_s=self._between.bytes_per_s / sharing),
        )

    def _spread_s(self, num_bytes: int, *, num_rails: int, num_ranks: int) -> float:
        way_s = all_gather_s if num_rails > 1 else broadcast_s
        way = self._within
        return way_s(num_bytes, num_ranks=num_ranks, link=Link(latency_s=way.latency_s, bytes_per_s=way.bytes_per_s))

    def _take(self, where: Where, took_s: float, predicted_s: float) -> None:
        ratio = max(took_s, SHORTEST_S) / max(predicted_s, SHORTEST_S)
        self._least[where] = min(self._least[where], ratio)

    def _compare(self) -> None:
        own = torch.tensor(list(self._least.values()), dtype=torch.float64)
        least = torch.stack(self._group.current.all_gather(own).wait()).amin(dim=0).tolist()
        for where, ratio in zip(self._least, least, strict=True):
            longer, shorter = ratio > OFF_BY, where == "between" and ratio < 1 / OFF_BY
            if math.isfinite(ratio) and (longer or shorter) and where not in self._said:
                self._said.add(where)
                self._warn(_sentence(where, ratio))
            self._least[where] = math.inf


def _sentence(where: Where, ratio: float) -> str:
    much = f"{ratio:.1f} times as long as" if ratio > 1 else f"{1 / ratio:.1f} times less than"
    return (
        f"exchanges {where} racks take {much} the probe at the start predicts, the quickest of {WINDOW}: links have "
        "changed, or the racks are others; name the racks with racks=, or start again"
    )
