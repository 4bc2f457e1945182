"""Bulk synchronous training on the collective exchange: `DistributedDataParallel` itself.

The reducer, the buckets and the overlap are those of a hand-written DDP loop. What differs is only that the user goes
on calling their own module: the two hooks that DDP puts around ``forward`` are hooked onto it (as torch's composable
``replicate`` does, which however neither keeps buffers in step nor can be taken off again).

A rank is *blocked* from the moment its own gradient is complete until the reductions of the last buckets are; DDP does
not know on what. `plesio.core.trace.split_blocked` tells waiting from communicating once all ranks have reported.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from plesio.runtime.worker.compression.comm_hooks import CommHook
from plesio.runtime.worker.exchange.exchange import Gauge, Refusal, SnapshotTaker
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.exchange.replica import Buckets, Replica
from plesio.runtime.worker.exchange.synchronous import SynchronousExchange
from plesio.runtime.worker.timeline import Timeline

__all__ = ["DdpExchange"]


class DdpExchange(SynchronousExchange):
    """Bulk synchronous: DDP averages the gradients of every step.

    Args:
        replica: Equal on all ranks when the exchange is built.
        group: The ranks.
        timeline: Where blocked spans go.
        refuse: Called on the rank to blame when a gradient is not finite.
        snapshots: Kept on rank 0.
        gauge: Shown this rank's own gradients, and weighs them; None for a policy that never adapts, and DDP reduces
            without a hook.
        comm_hook: torch's own compression of a bucket; None for none.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        group: TorchGroup,
        timeline: Timeline,
        refuse: Refusal,
        snapshots: SnapshotTaker,
        gauge: Gauge | None = None,
        comm_hook: CommHook | None = None,
    ) -> None:
        super().__init__(replica, group=group, timeline=timeline, refuse=refuse, snapshots=snapshots, gauge=gauge)
        self._buckets = Buckets(replica)
        device = next(iter(replica.parameters.values())).device
        device_ids = None if device.type == "cpu" else [device]
        self._ddp = DistributedDataParallel(
            replica.model,
            device_ids=device_ids,
            process_group=group.process_group,
            gradient_as_bucket_view=True,
            init_sync=False,
        )
        if gauge is not None:
            self._ddp.register_comm_hook((gauge, group, comm_hook or allreduce_hook), _reduce_gauged)
        elif comm_hook is not None:
            self._ddp.register_comm_hook(group.process_group, comm_hook)
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
        self.ready_s = self._timeline.now_s()

    def _finite(self) -> bool:
        return self._buckets.finite()

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward passes in this context are not reduced."""
        with self._ddp.no_sync():
            yield

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        del self._ddp, self._buckets


def _reduce_gauged(
    state: tuple[Gauge, TorchGroup, CommHook],
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at the annotation
) -> torch.futures.Future[torch.Tensor]:
    """A reduction with a look at this rank's gradient before it, which is weighed."""
    gauge, group, reduce = state
    gradient: torch.Tensor = bucket.buffer()
    gauge.measure([gradient])
    if (weight := gauge.weight) != 1.0:
        gradient.mul_(weight)
    return reduce(group.process_group, bucket)
