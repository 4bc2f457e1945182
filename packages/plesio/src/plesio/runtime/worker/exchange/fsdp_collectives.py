"""The collectives of FSDP2, done so that their bytes, times and order are known.

**Reduce-scatter on CPUs.** Gloo's is an all-reduce of which each rank keeps its part, so it sends twice what it must
(measured, docs/log.md). Here the parts go straight to whom they belong, an all-to-all, and each rank adds up its own
in the order of the ranks: ``(n-1)/n`` of the gradient, as a ring would send. The sum is the same on every run.

**Which ones.** Collectives are distinguished by their order alone. If one worker's step goes through other blocks than
another's, parts of different blocks meet. Where these are equally large nobody would notice; where they are not, Gloo
ends the process, or waits for ever. So in the first step all exchange the name of each collective before it. Later each
rank keeps a checksum of those that it has taken part in, and all compare theirs before the optimizer steps.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from msgspec import UNSET
from torch.distributed.fsdp import FSDPModule

from plesio.core.errors import ExchangeError
from plesio.runtime.worker.meter import WorkerTimeline

__all__ = ["FsdpCollectives"]

# torch 2.13 deprecates the names that follow and older ones know no others.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class FsdpCollectives:
    """The collectives of one worker's step, and the time it was inside them."""

    def __init__(self, timeline: WorkerTimeline) -> None:
        self._now_s, self._meter = timeline.now_s, timeline.meter
        self.blocked_s = 0.0
        """Since `begin`; on a GPU they run beside the computing, and nothing is counted."""
        self.checksum = 0
        """Checksum of the collectives since `begin`, in their order."""
        self._asks = True

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

    @contextmanager
    def doing(self, kind: str, number: int, *, among: dist.ProcessGroup, device: torch.device) -> Iterator[None]:
        """Check and time one collective within this context; ExchangeError if others are about to do another one."""
        begun_s = self._now_s()
        self.checksum = zlib.crc32(f"{kind}{number}".encode(), self.checksum)
        place = self._meter.totals.within
        with self._meter.within("forward" if place is UNSET else place):
            if self._asks:
                own = torch.tensor([self.checksum], device=device)
                gathered = torch.empty(among.size(), dtype=own.dtype, device=device)
                _all_gather(gathered, own, group=among)
                self.compare(gathered.tolist())
            yield
        if device.type == "cpu":
            self.blocked_s += self._now_s() - begun_s

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
        self._collectives = collectives
        self._number = number

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Allocating):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Gather all ranks' inputs in their order into ``output_tensor``, whose part of this rank the input is."""
        with self._collectives.doing("gather", self._number, among=group, device=input_tensor.device):
            work: dist.Work | None = _all_gather(output_tensor, input_tensor, group=group, async_op=async_op)
            return work


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
        with self._collectives.doing("reduce", self._number, among=group, device=input_tensor.device):
            if input_tensor.device.type != "cpu":
                work: dist.Work | None = _reduce_scatter(
                    output_tensor, input_tensor, op=op, group=group, async_op=async_op
                )
                return work
            received = torch.empty_like(input_tensor)
            dist.all_to_all_single(received, input_tensor, group=group)
            torch.sum(received.view(group.size(), -1), 0, out=output_tensor)
            return None
