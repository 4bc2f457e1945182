"""The collectives of FSDP2, done so that their bytes, times and order are known.

**Reduce-scatter on CPUs.** Gloo's is an all-reduce of which each rank keeps its part, so it sends twice what it must
(measured, docs/log.md). Here the parts go straight to the ranks that they belong to, an all-to-all, and each rank adds
up its own in the order of the ranks: ``(n-1)/n`` of the gradient, as a ring would send. All runs have the same sum.

**Which ones.** Collectives are distinguished by their order alone. If one worker's step goes through other blocks than
another's, parts of different blocks meet. If these are equally large, no error shows it; if they are not, Gloo ends the
process, or waits for ever. So in the first step all exchange the name of each collective before it. Later each rank
keeps a checksum of those that it has taken part in, and all compare theirs before the optimizer steps.

**When the group is no more.** These run inside the script's own `model(x)` and `loss.backward()`, or where it clips,
which nothing can make again. So once one of them fails, all that follow write zeros: the step goes to its end on
numbers that mean nothing, `assure` raises the error there, and the session makes the step again.

**What the script sums by itself.** `clip_grad_norm_` and `GradScaler.unscale_` make an all-reduce. torch looks up its
group by the name that the mesh of parts has, so that has a group of its own, `SumGroup`, which does it as those of the
passes are done. Any other collective raises once the group is no more: a script may keep what it gathers. torch takes
two meshes of equally many ranks for one, and remembers the first. So all have one name, for the group of the latest
cut.
"""

import re
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from msgspec import UNSET
from torch._C._distributed_c10d import _register_process_group, _unregister_process_group
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FSDPModule

from plesio.core.errors import ExchangeError
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.meter import WorkerTimeline

# torch 2.13 deprecates the names that follow and older ones know no others.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class FsdpCollectives:
    """The collectives of one worker's step, and the time it was inside them.

    Args:
        elastic: Whether the others go on in a new group when one is lost.
    """

    def __init__(self, timeline: WorkerTimeline, *, group: TorchGroup, elastic: bool) -> None:
        self._now_s, self._meter = timeline.now_s, timeline.meter
        self._group, self._elastic = group, elastic
        self._failure: RuntimeError | None = None
        self.blocked_s = 0.0
        """Since `begin`; on a GPU they run beside the computing, and nothing is counted."""
        self.checksum = 0
        """Checksum of the collectives since `begin`, in their order."""
        self._asks = True

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def assure(self) -> None:
        """Return if all collectives since `begin` have been done; else raise the error of the first that was not."""
        if self._failure is not None:
            raise self._failure

    def begin(self) -> None:
        self.blocked_s, self.checksum = 0.0, 0

    def agreed(self) -> None:
        """Stop asking before each collective: all have been through the same ones in a step."""
        self._asks = False

    def carry(self, module: FSDPModule, number: int) -> None:
        """Do those of a module, the ``number``-th on every rank."""
        module.set_custom_all_gather(_AllGather(self, number))  # type: ignore[arg-type]  # the interface is private
        module.set_custom_reduce_scatter(_ReduceScatter(self, number))  # type: ignore[arg-type]
        module.set_force_sum_reduction_for_comms(True)  # Gloo has no mean; FSDP2 divides

    def do(
        self, kind: str, number: int, collective: Callable[[], "dist.Work | None"], *, output: torch.Tensor, waits: bool
    ) -> "dist.Work | None":
        """Do one collective, which writes ``output``; returns it if it is not waited for.

        Raises:
            ExchangeError: Others are about to do another one.
            RuntimeError: It cannot be done, and no other group follows.
        """
        if self._failure is not None:
            output.zero_()
            return None
        begun_s = self._now_s()
        place = self._meter.totals.within
        with self._meter.within("forward" if place is UNSET else place):
            try:
                return self._done(kind, number, collective, device=output.device, waits=waits)
            except RuntimeError as error:
                if not self._elastic:
                    raise
                self._failure = error
                output.zero_()
                return None
            finally:
                if output.device.type == "cpu":
                    self.blocked_s += self._now_s() - begun_s

    def _done(
        self, kind: str, number: int, collective: Callable[[], "dist.Work | None"], *, device: torch.device, waits: bool
    ) -> "dist.Work | None":
        self._group.enter()
        self.checksum = zlib.crc32(f"{kind}{number}".encode(), self.checksum)
        if self._asks:
            own = torch.tensor([self.checksum], device=device)
            self.compare(torch.cat(self._group.all_gather(own).wait()).tolist())
        work = collective()
        if work is None or not waits:
            return work
        self._group.finish(work)
        return None

    @staticmethod
    def compare(checksums: Sequence[float]) -> None:
        """Return when all ranks' checksums are equal; ExchangeError if they are not."""
        other = next((rank for rank, checksum in enumerate(checksums) if checksum != checksums[0]), None)
        if other is not None:
            raise ExchangeError(
                f"a step of worker {other} goes through other blocks of the model than worker 0's; under fsdp all must "
                "go through the same ones in the same order, also in what they compute without gradients"
            )


class _Allocating:
    def __init__(self, collectives: FsdpCollectives, number: int) -> None:
        self._collectives, self._number = collectives, number

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Allocating):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather all ranks' inputs in their order into ``output_tensor``, whose part of this rank the input is."""

        def begin() -> dist.Work | None:
            work: dist.Work | None = _all_gather(output_tensor, input_tensor, group=group, async_op=True)
            return work

        return self._collectives.do("gather", self._number, begin, output=output_tensor, waits=not async_op)


class _ReduceScatter(_Allocating):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Write this rank's part of the sum of all ranks' inputs into ``output_tensor``."""
        on_cpu = input_tensor.device.type == "cpu"
        received = torch.empty_like(input_tensor) if on_cpu else None

        def begin() -> dist.Work | None:
            work: dist.Work | None
            if received is not None:
                work = dist.all_to_all_single(received, input_tensor, group=group, async_op=True)
            else:
                work = _reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=True)
            return work

        collectives = self._collectives
        work = collectives.do("reduce", self._number, begin, output=output_tensor, waits=on_cpu or not async_op)
        if received is not None and not collectives.failed:
            torch.sum(received.view(group.size(), -1), 0, out=output_tensor)
        return work


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
