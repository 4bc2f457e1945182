"""Bulk synchronous training on the collective exchange: `DistributedDataParallel` itself.

The reducer, the buckets and the overlap are those of a hand-written DDP loop. What differs is only that the user goes
on calling their own module: the two hooks that DDP puts around ``forward`` are hooked onto it (as torch's composable
``replicate`` does, which however neither keeps buffers in step nor can be taken off again).

A rank is *blocked* from the moment its own gradient is complete until the reductions of the last buckets are; DDP does
not know on what. `plesio.core.trace.split_blocked` tells waiting from communicating once all ranks have reported.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from plesio.runtime.exchange.exchange import Progress, Refusal, SharedState, SnapshotTaker
from plesio.runtime.exchange.replica import Buckets, Replica, State
from plesio.runtime.timeline import Timeline

__all__ = ["DdpExchange"]


class DdpExchange:
    """Bulk synchronous: DDP averages the gradients of every step.

    Args:
        replica: Parameters are made rank 0's when the exchange is built.
        group: The ranks.
        timeline: Where blocked spans go.
        refuse: Called on the rank to blame when a gradient is not finite.
        snapshot_every: Samples between two snapshots on rank 0.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        group: dist.ProcessGroup,
        timeline: Timeline,
        refuse: Refusal,
        snapshot_every: int | None,
    ) -> None:
        self.ready_s: float | None = None
        self._replica = replica
        self._group = group
        self._timeline = timeline
        self._refuse = refuse
        self._leads = dist.get_rank(group) == 0
        self._snapshots = SnapshotTaker(snapshot_every if self._leads else None)
        self._buckets = Buckets(replica)
        device = next(iter(replica.parameters.values())).device
        device_ids = None if device.type == "cpu" else [device]
        self._ddp = DistributedDataParallel(
            replica.model, device_ids=device_ids, process_group=group, gradient_as_bucket_view=True
        )
        self._hooks = [
            replica.model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            replica.model.register_forward_hook(self._after_forward),
        ]

    def _before_forward(self, _module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        # Without gradients (evaluation) nothing may be exchanged: perhaps only this rank is here.
        if not torch.is_grad_enabled():
            return None
        return self._ddp._pre_forward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _after_forward(self, _module: torch.nn.Module, _args: Any, output: Any) -> Any:
        if not torch.is_grad_enabled():
            return None
        output = self._ddp._post_forward(output)  # type: ignore[no-untyped-call]
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(self._on_backward)  # type: ignore[no-untyped-call]
                break
        return output

    def _on_backward(self, _grad: torch.Tensor) -> None:
        # The engine runs its callbacks in order when the last gradient is computed; DDP's own, which waits for the
        # reductions, is queued later than this one.
        torch.autograd.Variable._execution_engine.queue_callback(self._on_gradients_complete)

    def _on_gradients_complete(self) -> None:
        self.ready_s = time.perf_counter()

    def step(self, progress: Progress) -> None:
        """Step the optimizer with the averaged gradient, the same on every rank."""
        self.ready_s = None
        if self._buckets.finite():  # the mean is the same on all ranks, so all decide alike
            self._replica.optimizer.step()
        else:
            self._blame(progress)
        self._replica.optimizer.zero_grad(set_to_none=True)
        self._snapshots.offer(progress.global_samples, at_s=progress.at_s, state=self._replica.state)

    def _blame(self, progress: Progress) -> None:
        """Refuse the step; the rank whose own loss is not finite takes the blame, else rank 0 for all."""
        finite = progress.loss is None or abs(progress.loss) < float("inf")
        flags = torch.tensor([0.0 if finite else 1.0])
        own = flags.clone()
        dist.all_reduce(flags, group=self._group)
        if own.item() > 0 or (flags.item() == 0 and self._leads):
            self._refuse(progress.clock, "not_finite")

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes in this context are not reduced."""
        with self._ddp.no_sync():
            yield

    def admitted_at(self, clock: int) -> None:
        """Never rests: all ranks have equally many batches."""

    def shared(self) -> State | None:
        """Every replica is the shared state; rank 0 gives its own."""
        return self._replica.state() if self._leads else None

    def finish(self) -> None:
        """Nothing is held back."""

    def snapshots(self) -> list[SharedState]:
        """The snapshots taken since the last call (rank 0)."""
        return self._snapshots.take()

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        del self._ddp, self._buckets
