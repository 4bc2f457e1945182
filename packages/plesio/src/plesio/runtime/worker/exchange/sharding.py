"""A replica in parts that goes on from one group of workers to the next.

**Another group.** When the workers change, all put together what they have, a section at a time, and take their new
parts of it (`Sharding.stage`). When all have that, each cuts its model anew (the action that `stage` returns).

**Mirrors.** The part of a lost worker must be with somebody. With ``mirrored`` each rank keeps a copy of its own part
and of the previous rank's, as they were at one step (a *point*). All go back to that step when one is lost.

A point holds good once a collective has shown that all have it, and until then the one before is kept too. So once the
collective has ended on one rank, every rank has the point, even where it failed on others. The parts that were staged
for another group are such a point.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from plesio.runtime.worker.exchange.cut_replica import CutReplica, Plain
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.exchange.parts import Cut, Key, RankPart, gather, givers_of
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.exchange.state_copy import Apply


@dataclass(frozen=True, kw_only=True)
class _Point:
    """One rank's share of the replica at one step.

    Attributes:
        generation: The generation of the group that it was cut for.
        parts: By rank: this one's, and then the previous one's where parts are mirrored.
    """

    generation: int
    number: int
    workers: tuple[int, ...]
    parts: Mapping[int, Mapping[Key, Tensor]]
    cuts: Sequence[Cut]
    plain: Plain
    buffers: Mapping[str, Tensor]


class Sharding(CutReplica):
    """A replica's parts, which go on from one group to the next.

    Args:
        mirrored: Whether each rank keeps a copy of another one's part.
    """

    def __init__(self, replica: Replica, *, blocks: tuple[str, ...], mirrored: bool) -> None:
        super().__init__(replica, blocks=blocks)
        self._mirrored = mirrored
        self._workers: tuple[int, ...] = ()
        self._generation = 0
        self._kept: _Point | None = None
        """The point that holds good; None for the replica as it is."""
        self._staged: _Point | None = None
        """A later one, which some may not have."""

    def begin(self, group: TorchGroup, workers: Sequence[int]) -> None:
        """Cut the replica for the first group, of these workers; all of them call it."""
        self._workers = tuple(workers)
        self.cut(group)
        self.replaced()

    def replaced(self) -> None:
        """Keep the parts as they are now, where they are mirrored; all call it."""
        if self._mirrored:
            self.keep()

    @torch.no_grad()
    def keep(self) -> None:
        """Make a point of this step: copies of this rank's part and of the previous one's. All call it.

        Raises:
            RuntimeError: The group is no more; the point before holds good, unless another rank's collective has ended.
        """
        self._fold()
        cuts, group = self._cuts(state=True), self._group
        device, size = self._replica.device, group.size
        own = RankPart(cuts, rank=group.rank, num_ranks=size, device=device).fill(self._own(cuts))
        parts = {group.rank: own}
        if size > 1:
            before = (group.rank - 1) % size
            parts[before] = RankPart(cuts, rank=before, num_ranks=size, device=device)
            for mine, theirs in zip(own.flats, parts[before].flats, strict=True):
                group.pass_on(mine, into=theirs)
        number = 0 if self._kept is None else self._kept.number + 1
        self._staged = self._point(cuts, {rank: part.tensors for rank, part in parts.items()}, number=number)
        self._hold_good(group)
        self._kept, self._staged = self._staged, None

    def _hold_good(self, group: TorchGroup) -> None:
        """Return when all have come here: then the point that was staged holds good."""
        here = torch.ones(1, device=self._replica.device)
        assert int(torch.cat(group.all_gather(here).wait()).sum()) == group.size  # a device's result is waited for

    def _point(self, cuts: Sequence[Cut], parts: Mapping[int, Mapping[Key, Tensor]], *, number: int) -> _Point:
        return _Point(
            generation=self._generation,
            number=number,
            workers=self._workers,
            parts=parts,
            cuts=cuts,
            plain=self._plain(),
            buffers=self._buffers(self._replica.device),
        )

    def _latest(self) -> _Point:
        """Return the point that holds good, or without copies the present step."""
        if self._kept is not None:
            return self._kept
        self._fold()
        cuts = self._cuts(state=True)
        return self._point(cuts, {self._group.rank: self._own(cuts)}, number=0)

    def describe(self) -> dict[str, Any]:
        """Describe the point that holds good, as plain values and tensors, for all that go on from it."""
        point = self._latest()
        return {
            "generation": point.generation,
            "number": point.number,
            "workers": list(point.workers),
            "cuts": [tuple(cut) for cut in point.cuts],
            "plain": point.plain,
            "plain_on": _device_of(point.plain),
            "buffers": point.buffers,
        }

    def _share_of(self, told: Mapping[str, Any], *, worker: int) -> _Point | None:
        """Return this worker's share of the point that another rank has described; None for a newcomer."""
        staged = self._staged
        if worker not in told["workers"]:
            return None
        if staged is not None and (staged.generation, staged.number) == (told["generation"], told["number"]):
            self._kept = staged  # it holds good: on another rank the collective has ended
        return self._latest()

    @torch.no_grad()
    def stage(self, group: TorchGroup, told: Mapping[str, Any], *, workers: Sequence[int], generation: int) -> Apply:
        """Take this rank's part in a new group, from the point that another rank has described; all of it call it.

        Raises:
            WorkerLostError: A part is lost.
            RuntimeError: The new group is no more; everything is as it was.
        """
        givers = givers_of(told["workers"], workers, mirrored=self._mirrored)
        point, device, size = self._share_of(told, worker=workers[group.rank]), self._replica.device, group.size
        plain: Plain = _placed(told, device=device) if point is None else point.plain
        gives = [] if point is None else list(point.parts.values())
        cuts = [Cut(*cut) for cut in told["cuts"]]
        parts = {
            rank: RankPart(cuts, rank=rank, num_ranks=size, device=device)
            for rank in (group.rank, *([(group.rank - 1) % size] if self._mirrored else []))
        }
        for section in self._in_sections(cuts):
            for cut, whole in gather(section, group=group, gives=gives, givers=givers, device=device):
                for rank, part in parts.items():
                    part.tensors[cut.key].copy_(whole[cut.rows(rank, num_ranks=size)])
        self._staged = staged = _Point(
            generation=generation,
            number=0,
            workers=tuple(workers),
            parts={rank: part.tensors for rank, part in parts.items()},
            cuts=cuts,
            plain=plain,
            buffers=told["buffers"] if point is None else point.buffers,
        )
        self._hold_good(group)
        return lambda: self._become(staged, group)

    def _become(self, point: _Point, group: TorchGroup) -> None:
        self._kept, self._staged = point if self._mirrored else None, None
        self._workers, self._generation = point.workers, point.generation
        self.cut_anew(group, point.parts[group.rank], plain=point.plain, buffers=point.buffers)

    def undo(self, whole: dict[str, nn.Parameter]) -> None:
        self._kept = self._staged = None
        super().undo(whole)


def _device_of(plain: Plain) -> str:
    """Return where the step counts of fused optimizers are; others' are on the CPU."""
    tensors = (value for entry in plain.values() for value in entry.values() if isinstance(value, Tensor))
    return next((tensor.device.type for tensor in tensors if tensor.device.type != "cpu"), "cpu")


def _placed(told: Mapping[str, Any], *, device: torch.device) -> Plain:
    """Return the plain values that were described, which have travelled by the CPU, where they belong."""
    if told["plain_on"] == "cpu":
        return cast("Plain", told["plain"])
    return {
        name: {key: value.to(device) if isinstance(value, Tensor) else value for key, value in entry.items()}
        for name, entry in told["plain"].items()
    }
