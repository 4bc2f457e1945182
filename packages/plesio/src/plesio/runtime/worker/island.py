"""An island: ranks that hold one replica together, and are one worker to all others.

The script shards or replicates the model within the island by torch's own means. Torch's default process group is the
island's, so the script is that of a job of so many ranks, and whatever it uses finds its ranks there. Plesio talks in
the island by a group of its own, on the CPU. An error of that is `BrokenIslandError`: a rank of this island is gone.

Each rank has collectives with ranks of other islands, which may fail on one rank and not on another. So an island waits
for them `together`: what comes of them is used on all of its ranks, or all are cut off.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from plesio.core.errors import TaskError
from plesio.core.results import Found
from plesio.runtime.worker.exchange.group import CutOffError, Group, TorchGroup, Work, broadcast_metric, broadcast_text

T = TypeVar("T")


class BrokenIslandError(RuntimeError):
    """A rank of this island is gone."""


@contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise BrokenIslandError(str(error)) from error


@dataclass(frozen=True)
class Island:
    """This process's island; `plesio.island` gives it.

    Attributes:
        worker: The number of the worker that it is.
        rank: This process's number in it; 0 leads.
        size: Its ranks.
    """

    worker: int
    rank: int
    size: int
    _talk: TorchGroup = field(repr=False)

    @property
    def group(self) -> dist.ProcessGroup:
        """Its process group, torch's default one."""
        world = dist.group.WORLD
        if world is None or dist.get_world_size() != self.size:
            raise TaskError(
                "torch's default process group is no longer the island's; leave it as plesio.island() made it"
            )
        return world

    @cached_property
    def mesh(self) -> DeviceMesh:
        """All its ranks in one dimension, for ``fully_shard(model, mesh=island.mesh)``."""
        return init_device_mesh("cuda" if "nccl" in dist.get_backend_config(self.group) else "cpu", (self.size,))

    @property
    def leads(self) -> bool:
        """True on the rank that speaks for the island."""
        return self.rank == 0

    def all_agree(self, one: bool) -> bool:
        """Tell whether ``one`` is true on all ranks; all of them call it."""
        return self.summed(torch.tensor([float(not one)])).item() == 0

    def together(self, wait: Callable[[], T]) -> T:
        """Return what ``wait`` returns, if it raises a RuntimeError on no rank; all of them call it.

        Raises:
            RuntimeError: This rank's own.
            CutOffError: Another rank has one.
        """
        found: T | None = None
        failed: RuntimeError | None = None
        try:
            found = wait()
        except BrokenIslandError:
            raise
        except RuntimeError as error:
            failed = error
        if not self.all_agree(failed is None):
            raise failed or CutOffError("another rank of the island was cut off")
        return found  # type: ignore[return-value]

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the values of all ranks; all of them call it."""
        total = values.to("cpu", copy=True)
        with _talking():
            self._talk.all_reduce(total).wait()
        return total.to(values.device)

    def gathered(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the values of all ranks, which all have equally many on the CPU; all of them call it."""
        with _talking():
            return self._talk.all_gather(values).wait()

    def told(self, text: str) -> str:
        """Return the leader's text on all ranks; all of them call it."""
        with _talking():
            return broadcast_text(text, group=self._talk, source=0)

    def metric(self, found: Found) -> Found:
        """Return the leader's metric on all ranks; all of them call it."""
        with _talking():
            return broadcast_metric(found, self._talk)

    def all_texts(self, text: str) -> list[str]:
        """Return the texts of all ranks; all of them call it."""
        with _talking():
            return [broadcast_text(text, group=self._talk, source=rank) for rank in range(self.size)]


def together(island: Island | None, wait: Callable[[], T]) -> T:
    """Return what ``wait`` returns of other workers: on all ranks of an island, or on none (`Island.together`)."""
    return wait() if island is None else island.together(wait)


class Rail:
    """The ranks of one number in all islands: their sums, for which the ranks of an island wait together."""

    def __init__(self, group: Group, island: Island) -> None:
        self._group, self._island = group, island
        self.rank, self.size = group.rank, group.size

    def all_reduce(self, tensor: torch.Tensor) -> "_Awaited":
        return _Awaited(self._group.all_reduce(tensor), self._island)


class _Awaited:
    def __init__(self, work: Work, island: Island) -> None:
        self._work, self._island = work, island
        self.took_s = work.took_s

    def wait(self) -> object:
        return self._island.together(self._work.wait)
