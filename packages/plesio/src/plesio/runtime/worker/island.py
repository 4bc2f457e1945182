"""An island: ranks that hold one replica together, and are one worker to all others.

The script shards or replicates the model within the island by torch's own means. Torch's default process group is the
island's, so the script is that of a job of so many ranks, and whatever it uses finds its ranks there. Plesio talks in
the island by a group of its own, on the CPU.
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from plesio.core.errors import TaskError
from plesio.core.results import Found
from plesio.runtime.worker.exchange.group import TorchGroup, broadcast_metric, broadcast_text

__all__ = ["Island"]


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
        flag = torch.tensor([float(not one)])
        self._talk.all_reduce(flag).wait()
        return flag.item() == 0

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the values of all ranks; all of them call it."""
        total = values.to("cpu", copy=True)
        self._talk.all_reduce(total).wait()
        return total.to(values.device)

    def gathered(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the values of all ranks, which all have equally many on the CPU; all of them call it."""
        return self._talk.all_gather(values).wait()

    def told(self, text: str) -> str:
        """Return the leader's text on all ranks; all of them call it."""
        return broadcast_text(text, group=self._talk, source=0)

    def metric(self, found: Found) -> Found:
        """Return the leader's metric on all ranks; all of them call it."""
        return broadcast_metric(found, self._talk)

    def all_texts(self, text: str) -> list[str]:
        """Return the texts of all ranks; all of them call it."""
        return [broadcast_text(text, group=self._talk, source=rank) for rank in range(self.size)]
