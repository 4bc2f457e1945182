"""torch's own communication hooks, where they do the same job as a compression.

`DistributedDataParallel` calls a hook for each bucket, during the backward pass. The two that cast to 16-bit numbers do
the same as these compressions without feedback. Their sums differ by rounding only from those of a
`CompressedReducer`, which another world has. torch's PowerSGD hook does something else: it begins after two
uncompressed steps, its residuals are neither guarded nor visible, and they grow without end
(`plesio.runtime.worker.compression.power_sgd`). torch has no top-k, random-k or QSGD.

A policy that names a hook of torch's (`plesio.policies.torch_hook`) has that hook as it is, as a baseline. PowerSGD's
has several collectives a bucket, and begins each when the one before is over. On CPUs any thread of Gloo may begin it,
so with two buckets ranks began collectives in different orders and ended (torch 2.13). On CPUs a bucket is therefore
waited for before the next one is begun.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from plesio.policies import TorchHook
from plesio.policies.compression import Compression, HalfPrecision

CommHook = Callable[[dist.ProcessGroup, Any], torch.futures.Future[torch.Tensor]]
"""A hook of the form that ``DistributedDataParallel.register_comm_hook(process_group, hook)`` takes."""


def ddp_comm_hook(compression: Compression) -> CommHook | None:
    """Return torch's hook that does the same as ``compression``; None if there is none.

    >>> from plesio.policies.compression import parse_compression
    >>> [ddp_comm_hook(parse_compression(text)).__name__ for text in ("fp16", "bf16")]
    ['fp16_compress_hook', 'bf16_compress_hook']
    >>> ddp_comm_hook(parse_compression("bf16+feedback")) is None
    True
    """
    match compression:
        case HalfPrecision(form="fp16", feedback=False):
            return fp16_compress_hook
        case HalfPrecision(form="bf16", feedback=False):
            return bf16_compress_hook
    return None


def torch_comm_hook(hook: TorchHook, group: dist.ProcessGroup) -> CommHook:
    """Return the named hook of torch's, with a fresh state if it has one."""
    match hook.form:
        case "fp16":
            return fp16_compress_hook
        case "bf16":
            return bf16_compress_hook
        case "powersgd":
            power = PowerSGDState(group, matrix_approximation_rank=hook.rank, start_powerSGD_iter=hook.start)
            return lambda group, bucket: _in_order(powerSGD_hook(power, bucket), bucket)
        case "post_local_sgd":
            local = PostLocalSGDState(  # type: ignore[no-untyped-call]
                group, None, start_localSGD_iter=hook.start, post_local_gradient_allreduce=False
            )
            return lambda group, bucket: post_localSGD_hook(local, bucket)


def _in_order(
    done: torch.futures.Future[torch.Tensor],
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # as DDP names it
) -> torch.futures.Future[torch.Tensor]:
    if bucket.buffer().device.type == "cpu":
        done.wait()
    return done
