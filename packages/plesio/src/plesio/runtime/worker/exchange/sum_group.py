"""The group of a mesh of parts, on which a script's sums of `DTensor`s end as the collectives of its passes do.

`clip_grad_norm_` and `GradScaler.unscale_` make an all-reduce between the backward pass and the step, where Plesio can
make nothing again. torch looks up the group for it by the name that the mesh has. So the mesh has a group of its own,
whose all-reduce `FsdpCollectives` does: it is timed, its order is compared, and once the workers' group is no more it
gives zeros, and the step is made again. Any other collective raises then: a script may keep what it gathers.

torch takes two meshes of equally many ranks for one, and remembers the first. So all have one name for their group,
which is that of the latest cut.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _register_process_group, _unregister_process_group
from torch.distributed import distributed_c10d

from plesio.runtime.worker.exchange.fsdp_collectives import FsdpCollectives

__all__ = ["SumGroup"]


class SumGroup(dist.ProcessGroup):
    """The workers' group as a mesh knows it, from when this is made until another one is."""

    group_name: Any = "plesio-parts"

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        super().__init__(process_group.rank(), process_group.size())  # type: ignore[call-arg]  # the stub lacks it
        self._process_group = process_group
        self._collectives: FsdpCollectives | None = None
        ranks = distributed_c10d._world.pg_group_ranks
        ranks[self] = ranks[process_group]
        _unregister_process_group(self.group_name)
        _register_process_group(self.group_name, self)

    def carried_by(self, collectives: FsdpCollectives) -> None:
        self._collectives = collectives

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> dist.Work:  # type: ignore[override]
        """Overwrite the only tensor with the sum of all ranks', or with zeros if the group is no more."""
        assert self._collectives is not None, "nothing is summed before the first step"
        (summed,) = tensors
        self._collectives.do(
            "sum", 0, lambda: self._process_group.allreduce(tensors, options), output=summed, waits=True
        )
        return _Done()


def _passed_on(name: str) -> Callable[..., Any]:
    def collective(self: SumGroup, *arguments: Any, **options: Any) -> Any:
        return getattr(self._process_group, name)(*arguments, **options)

    return collective


# A group in Python that inherits these holds the interpreter's lock while it begins a collective, and waits for Gloo's
# thread, which may wait for that lock (torch 2.13).
for _name in dir(dist.ProcessGroup):
    if _name != "allreduce" and re.search("gather|scatter|to_?all|reduce|broadcast|barrier|send|recv", _name):
        setattr(SumGroup, _name, _passed_on(_name))


class _Done(dist.Work):
    """An all-reduce that has ended."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True
