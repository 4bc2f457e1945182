"""The waiting that splitting a model costs, and the memory that sharding its state saves."""

import math

from plesio.core.checks import check_count, check_not_negative, check_positive
from plesio.core.errors import ArgumentError
from plesio_planning.theory.bound import Bound, Condition


def bubble_share(*, num_stages: int, num_micro_batches: int, num_chunks: int = 1) -> float:
    """Share of the time that equal stages wait, ``(p-1)/(mv+p-1)`` (Narayanan et al. 2021, section 2.2).

    >>> round(bubble_share(num_stages=8, num_micro_batches=24), 4)
    0.2258
    """
    return (num_stages - 1) / (num_micro_batches * num_chunks + num_stages - 1)


def micro_batches_for(bubble: float, *, num_stages: int, num_chunks: int = 1) -> int:
    """Return the fewest micro-batches whose bubble is no larger share x of the time: ``m = (p-1)(1-x)/(xv)``.

    >>> micro_batches_for(0.1, num_stages=8), micro_batches_for(0.05, num_stages=8)
    (63, 133)
    """
    exact = (num_stages - 1) * (1 - bubble) / (bubble * num_chunks)
    return max(1, math.ceil(exact - 1e-9))


def pipeline_bubble(*, pp: int = 8, num_micro_batches: int = 32, vpp: int = 1) -> Bound:
    """A pipeline of equal stages: share of the time in which a stage waits.

    ``(p-1)/(mv+p-1)``: GPipe (Huang et al. 2019) and 1F1B alike with v = 1, interleaved 1F1B (Narayanan et al. 2021)
    with v parts a stage, for which p must divide m. ``(p-1)/(mv)`` is the same waiting over the *ideal* time.

    >>> round(pipeline_bubble(pp=8, num_micro_batches=24).value, 4)
    0.2258
    >>> round(pipeline_bubble(pp=8, num_micro_batches=24, vpp=3).value, 4)
    0.0886

    Args:
        pp: p, stages.
        num_micro_batches: m, of a batch.
        vpp: v, parts of a stage's layers.

    Raises:
        ConfigError: ``m mod p = 0`` does not hold for more than one part, or an argument is out of range.
    """
    check_count(pp=pp, num_micro_batches=num_micro_batches, vpp=vpp)
    share = bubble_share(num_stages=pp, num_micro_batches=num_micro_batches, num_chunks=vpp)
    interleaved = Condition(
        premise="m mod p = 0",
        value=num_micro_batches % pp,
        limit=0,
        remedy=f"write a `num_micro_batches` that is a multiple of {pp}",
    )
    return Bound(
        quantity="share of the time that waits",
        unit="share",
        parts={"bubble": share},
        conditions=(interleaved,) if vpp > 1 else (),
        also={
            "waiting over ideal time": share / (1 - share),
            "micro-batches for 90 % utilisation": micro_batches_for(0.1, num_stages=pp, num_chunks=vpp),
            "micro-batches for a bubble of 5 %": micro_batches_for(0.05, num_stages=pp, num_chunks=vpp),
        },
    )


def zero_memory(
    *,
    num_parameters: float = 12e9,
    num_workers: int = 8,
    zero: int = 3,
    weight_bytes: float = 2,
    gradient_bytes: float = 2,
    optimizer_bytes: float = 12,
) -> Bound:
    """ZeRO: bytes of model state on every worker.

    Of weights, gradients and optimizer state, stage 1 shards the last, stage 2 the last two, stage 3 all (Rajbhandari
    et al. 2020). Activations, buffers and fragments come on top.

    >>> bound = zero_memory(num_parameters=12e9, num_workers=8)  # 16 bytes a parameter
    >>> bound.value / 1e9, zero_memory(num_parameters=12e9, num_workers=8, zero=0).value / 1e9
    (24.0, 192.0)

    Args:
        num_parameters: Parameters of the whole model.
        num_workers: Workers that the state is sharded over.
        zero: Sharded parts: 0 is nothing, as in DDP; 3 is everything, as in FSDP.
        weight_bytes: Bytes of a parameter.
        gradient_bytes: Bytes of a parameter's gradient.
        optimizer_bytes: Bytes of a parameter's optimizer state: 12 for Adam with weights, mean and variance in FP32.
    """
    check_positive(num_parameters=num_parameters)
    check_not_negative(weight_bytes=weight_bytes, gradient_bytes=gradient_bytes, optimizer_bytes=optimizer_bytes)
    check_count(num_workers=num_workers)
    if zero not in range(4):
        raise ArgumentError(f"`zero` is {zero}; write 0, 1, 2 or 3")
    kinds = {"optimizer": optimizer_bytes, "gradients": gradient_bytes, "weights": weight_bytes}
    parts = {
        kind: num_parameters * size / (num_workers if place < zero else 1)
        for place, (kind, size) in enumerate(kinds.items())
    }
    return Bound(quantity="model state of a worker", unit="B", parts=parts)
