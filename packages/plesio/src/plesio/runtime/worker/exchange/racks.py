"""Which ranks are near to each other, and sums over all ranks that send no more between racks than they must.

Where the ranks of a rack bring equal tensors, as replicas that step together are, a sum over all ranks is one over the
racks, each counted by its number of ranks. It is taken in two stages:

1. between racks, at once: each rank sums its own slice of the tensor with its peers, one of each rack (a *rail*);
2. within the rack, when the sum is waited for: the ranks gather each other's slices.

Racks that are not equally large have one rail, of their first ranks (the *leaders*), which broadcast what they have. So
has what cannot be cut into slices.

Either way ``2 (R-1) S`` bytes of S go between R racks in all. With m rails, m interfaces send an m-th each, so only a
shared uplink limits them and no rank's own traffic is held up by all of it; and the second stage takes
``(m-1)/m S/B`` instead of ``⌈log₂ m⌉ S/B`` seconds.

`RackWatch` checks that exchanges take the time that the probe at the start predicts, for the ring all-reduce of a slice
between racks, and for the spreading of slices within one. After every `WINDOW` exchanges all ranks compare: the
quickest exchange of any rank counts, because waiting for others, and all else that disturbs one, makes it longer. If
that one took `OFF_BY` times as long as predicted, or between racks as much less, there is one warning. Times below
`SHORTEST_S` count as that: where an exchange takes no longer it makes no difference which racks there are.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from plesio.cost.all_reduce import ring_all_reduce_s
from plesio.cost.collectives import all_gather_s, broadcast_s
from plesio.cost.link import Link
from plesio.runtime.worker.exchange.group import Group, LiveGroup, Work
from plesio.runtime.worker.exchange.host_racks import HostRacks

OFF_BY = 3.0
WINDOW = 8
SHORTEST_S = 0.02

Where = Literal["between", "within"]


class RackWatch:
    """Holds what exchanges take against the probe's prediction; all ranks have one, and show it the same exchanges.

    Args:
        found: The probe's result, with two racks or more.
        workers_per_host: Workers that share a host's way to other racks.
        warn: Called on every rank, with a sentence, at most once within racks and once between them.
    """

    def __init__(
        self, found: HostRacks, *, group: LiveGroup, workers_per_host: int, warn: Callable[[str], None]
    ) -> None:
        assert found.between is not None, "one rack has nothing between"
        self._within, self._between = found.within, found.between
        self._group, self._workers_per_host, self._warn = group, workers_per_host, warn
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


@dataclass(frozen=True, slots=True)
class Racks:
    """The ranks of each rack, in ascending order.

    >>> racks = Racks.of([0, 0, 4, 4])
    >>> racks.members, racks.rails
    (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    >>> Racks.of([0, 0, 2]).rails
    ((0, 2),)
    """

    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rack_of_rank: Sequence[int]) -> "Racks":
        """Return the racks of ranks whose racks have these numbers."""
        numbers = dict.fromkeys(rack_of_rank)
        return cls(tuple(tuple(r for r, rack in enumerate(rack_of_rank) if rack == number) for number in numbers))

    @classmethod
    def among(cls, group: Group) -> "Racks":
        """Return the racks of a group's ranks, which tell each other; all of them call it."""
        return cls.of([int(part) for part in group.all_gather(torch.tensor([group.rack])).wait()])

    @property
    def rails(self) -> tuple[tuple[int, ...], ...]:
        """Groups of one rank of each rack; one group alone, the leaders, if racks are not equally large."""
        equal = len({len(ranks) for ranks in self.members}) == 1
        return tuple(zip(*self.members, strict=True)) if equal else (self.leaders,)

    @property
    def leaders(self) -> tuple[int, ...]:
        return tuple(ranks[0] for ranks in self.members)


class BetweenRacks:
    """All ranks of a group, where those of a rack bring equal tensors to a sum.

    Args:
        rails: Whether all ranks of racks that are equally large take part between racks, or the leaders alone.
        watch: Shown what sums take; None where nothing was predicted.
    """

    def __init__(self, group: Group, racks: Racks, *, rails: bool = True, watch: RackWatch | None = None) -> None:
        self.rank = group.rank
        self.size = group.size
        self.watch = watch
        self.sizes = list(map(len, racks.members))
        between = racks.rails if rails else (racks.leaders,)
        self.num_rails = len(between)
        self.rail = group.split(between)
        """This rank's peers in other racks; None if it is on no rail."""
        inside = group.split(racks.members)
        assert inside is not None, "every rank is in a rack"
        self.inside = inside

    def all_reduce(self, tensor: torch.Tensor) -> "_Sum":
        """Begin to overwrite ``tensor``, equal on the ranks of a rack, with the sum over all ranks.

        It must stay as it is until the sum is there.
        """
        flat = tensor.view(-1)
        own = self.slice_of(flat) * self.inside.size
        return _Sum(flat, own, None if self.rail is None else self.rail.all_reduce(own), between=self)

    def slice_elements(self, num_elements: int) -> int:
        """Count the numbers in a slice of a tensor of ``num_elements``; the last slice is padded with zeros."""
        return -(-num_elements // self.num_rails)

    def slice_of(self, flat: torch.Tensor) -> torch.Tensor:
        """Return this rank's slice ``[slice_elements]`` of ``flat``, whose memory it may share."""
        if self.num_rails == 1:
            return flat
        width = self.slice_elements(flat.numel())
        mine = flat[width * self.inside.rank : width * (self.inside.rank + 1)]
        return torch.nn.functional.pad(mine, (0, width - mine.numel()))

    def spread(self, own: torch.Tensor, *, num_elements: int) -> torch.Tensor:
        """Gather all ``num_elements`` numbers, this rank's slice ``own`` among them; all ranks of the rack call it.

        In a rack with one rail the leader's ``own`` is all of them, and the others' is overwritten with it.
        """
        if self.num_rails > 1:
            return torch.cat(self.inside.all_gather(own).wait())[:num_elements]
        self.inside.broadcast(own)
        return own


class _Sum:
    """A sum under way between racks, and spread in this one when it is waited for."""

    def __init__(self, flat: torch.Tensor, own: torch.Tensor, work: Work | None, *, between: BetweenRacks) -> None:
        self._flat, self._own, self._work, self._between = flat, own, work, between

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()
        begun_s = time.perf_counter()
        self._flat.copy_(self._between.spread(self._own, num_elements=self._flat.numel()))
        if self._between.watch is not None:
            self._show(self._between.watch, spread_s=time.perf_counter() - begun_s)

    def _show(self, watch: RackWatch, *, spread_s: float) -> None:
        between = self._between
        watch.saw(
            summed_s=math.inf if self._work is None else self._work.took_s(),
            spread_s=spread_s if between.inside.size > 1 else math.inf,
            num_bytes=self._flat.numel() * self._flat.element_size(),
            num_rails=between.num_rails,
            sizes=between.sizes,
        )

    def took_s(self) -> float:
        """Return the seconds between racks; within the rack the sum is spread on waiting for it. 0 off the rails."""
        return 0.0 if self._work is None else self._work.took_s()
