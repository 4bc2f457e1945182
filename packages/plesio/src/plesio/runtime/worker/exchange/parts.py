"""One rank's part of all that is cut, as plain tensors; and how parts are put together, in whichever group they are.

Everything is cut as FSDP2 cuts it: along the first dimension d into ``ceil(d / n)`` rows for each of n ranks, until
there are no more. A parameter is cut, and what the optimizer remembers of it in its shape.

When the workers change, parts that were cut for one group are put together in the next one. There each part
has a *giver*: the worker that it belongs to, or, if that one is lost, the next rank of the former group, if it has a
copy.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from plesio.core.errors import WorkerLostError
from plesio.runtime.worker.exchange.group import Group

Key = tuple[str, str]
"""A parameter's name, and what the optimizer remembers of it; an empty text for the parameter itself."""


class Cut(NamedTuple):
    """A tensor that is cut, by the shape of the whole."""

    key: Key
    dtype: torch.dtype
    shape: tuple[int, ...]

    def rows(self, rank: int, *, num_ranks: int) -> slice:
        """Return a rank's rows.

        >>> [Cut(("weight", ""), torch.float32, (5, 3)).rows(rank, num_ranks=4) for rank in (1, 2, 3)]
        [slice(2, 4, None), slice(4, 5, None), slice(5, 5, None)]
        """
        length, most = self.shape[0], math.ceil(self.shape[0] / num_ranks)
        return slice(min(rank * most, length), min((rank + 1) * most, length))

    def most(self, num_ranks: int) -> int:
        """Count the numbers of the largest part."""
        return math.ceil(self.shape[0] / num_ranks) * math.prod(self.shape[1:])


class RankPart:
    """One rank's rows of all that is cut.

    Attributes:
        tensors: By key; each is a piece of one of the flat tensors.
        flats: One for each dtype, in an order that all ranks have.
    """

    def __init__(self, cuts: Sequence[Cut], *, rank: int, num_ranks: int, device: torch.device) -> None:
        self.tensors: dict[Key, Tensor] = {}
        self.flats: list[Tensor] = []
        for alike in _by_dtype(cuts):
            rows = [cut.rows(rank, num_ranks=num_ranks) for cut in alike]
            shapes = [(cut.key, (own.stop - own.start, *cut.shape[1:])) for cut, own in zip(alike, rows, strict=True)]
            flat = torch.empty(sum(math.prod(shape) for _, shape in shapes), dtype=alike[0].dtype, device=device)
            pieces = torch.split(flat, [math.prod(shape) for _, shape in shapes])
            self.tensors |= {key: piece.view(shape) for (key, shape), piece in zip(shapes, pieces, strict=True)}
            self.flats.append(flat)

    def fill(self, tensors: Mapping[Key, Tensor]) -> Self:
        for key, tensor in self.tensors.items():
            tensor.copy_(tensors[key])
        return self


class Giver(NamedTuple):
    """A rank that gives a part, and the part's place among those that it gives."""

    rank: int
    place: int


def givers_of(former: Sequence[int], workers: Sequence[int], *, mirrored: bool) -> list[Giver]:
    """Find which of the present workers gives each part that was cut for the former ones.

    Raises:
        WorkerLostError: A part is lost with its worker, and nobody who is left has a copy.

    >>> givers_of([0, 1, 2], [0, 2, 3], mirrored=True)
    [Giver(rank=0, place=0), Giver(rank=1, place=1), Giver(rank=1, place=0)]
    """
    givers, missing = [], []
    for rank, worker in enumerate(former):
        following = former[(rank + 1) % len(former)]
        if worker in workers:
            givers.append(Giver(list(workers).index(worker), 0))
        elif mirrored and following in workers:
            givers.append(Giver(list(workers).index(following), 1))
        else:
            missing.append(worker)
    if missing:
        names, several = ", ".join(map(str, missing)), len(missing) > 1
        why = "the next one, which had a copy, was lost with it" if mirrored else "nobody has a copy of its part"
        instead = "go on from a checkpoint, if there is one"
        instead += "" if mirrored else "; under fsdp,mirror=1 the others go on without a worker"
        raise WorkerLostError(
            f"worker{'s' * several} {names} {'were' if several else 'was'} lost (rank {names}), and under fsdp {why}: "
            f"{instead}",
            ranks=tuple(missing),
        )
    return givers


@torch.no_grad()
def gather(
    cuts: Sequence[Cut],
    *,
    group: Group,
    gives: Sequence[Mapping[Key, Tensor]],
    givers: Sequence[Giver],
    device: torch.device,
) -> Iterator[tuple[Cut, Tensor]]:
    """Put tensors together, one collective for those of a dtype; all of the group call it and have all of each.

    ``gives`` has this rank's parts by their places, ``givers`` the rank that gives each part.
    """
    num_parts, places = len(givers), 1 + max(giver.place for giver in givers)
    for alike in _by_dtype(cuts):
        sizes = [cut.most(num_parts) for cut in alike]
        sent = torch.zeros((places, sum(sizes)), dtype=alike[0].dtype, device=device)
        for place, part in enumerate(gives[:places]):
            for cut, piece in zip(alike, torch.split(sent[place], sizes), strict=True):
                own = part[cut.key].reshape(-1)
                piece[: own.numel()] = own
        received = group.all_gather(sent).wait()
        for index, cut in enumerate(alike):
            begin = sum(sizes[:index])
            pieces = [received[rank][place, begin : begin + sizes[index]] for rank, place in givers]
            yield cut, torch.cat(pieces)[: math.prod(cut.shape)].view(cut.shape)


def _by_dtype(cuts: Sequence[Cut]) -> list[list[Cut]]:
    groups: dict[torch.dtype, list[Cut]] = {}
    for cut in cuts:
        groups.setdefault(cut.dtype, []).append(cut)
    return list(groups.values())
