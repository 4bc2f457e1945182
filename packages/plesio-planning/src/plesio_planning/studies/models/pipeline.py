"""The costs of a pipeline's schedule and number of micro-batches, in time and memory.

Times come from doing every operation in its schedule's order (`plesio_planning.sim.pipeline_schedules`). Laws hold
them: with p equal stages and m micro-batches GPipe and 1F1B take ``(m + p - 1)(f + b)`` (Huang et al. 2019, section
2.3), so a share x of bubble needs ``m = (p-1)(1-x)/x``. Interleaving v stages a device leaves ``(p-1)/(mv+p-1)``
(Narayanan et al. 2021, section 2.2.2); doing the gradients of weights apart leaves a third of 1F1B's bubble or none (Qi
et al. 2023).

GPipe holds all m micro-batches' activations, 1F1B ``min(p - i, m)`` on stage i, interleaving ``1 + (p-1)/(pv)`` times
as many. The memory of one in a layer is in `plesio_planning.activations` (Korthikanti et al. 2022). Besides a device
holds its layers' weights, gradients and optimizer state, of ``12h²`` parameters a layer over the tensor-parallel
devices.

``docs/planning/studies/pipeline.md`` has the model with its sources, its assumptions and its limits.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, get_args

from plesio.core.errors import ArgumentError
from plesio.core.inputs import Written
from plesio.core.units import counted
from plesio.core.within import DURATION, DURATION_OR_0, SIZE, Within
from plesio_planning.activations import Recomputation, layer_activation_bytes, recomputed_share
from plesio_planning.sim.pipeline_schedules import Schedule, fewest_micro_batches
from plesio_planning.studies.pipeline_answer import Pipeline
from plesio_planning.studies.pipeline_stages import PipelineStages
from plesio_planning.studies.tensor_cuts import check_heads

_MOST_STAGES = 1024
"""Most stages of a pipeline, and of a device."""
_MOST_PLACES = 32_768
"""Micro-batches times stages; their operations are done one by one."""
_PARAMETERS_BY_HIDDEN2 = 12
"""Parameters of a layer over h²: 4 of the attention and 8 of an MLP of width 4h (Narayanan et al. 2021, eq. 2)."""


def pipeline(
    *,
    pp: Annotated[int, Within(1, _MOST_STAGES)] = 8,
    num_micro_batches: Annotated[int, Within(1, _MOST_PLACES)] = 32,
    schedule: Schedule = "1f1b",
    recomputation: Recomputation = "selective",
    forward_s: Annotated[float, DURATION_OR_0] = 0.073,
    backward_s: Annotated[float, DURATION] = 0.146,
    stage_weights: Annotated[tuple[float, ...], Within(1e-6, 1e6, most=1024)] = (1.0,),
    send_s: Annotated[float, DURATION_OR_0] = 0.0,
    vpp: Annotated[int, Within(1, _MOST_STAGES)] = 2,
    num_layers: Annotated[int, Within(1, 100_000)] = 96,
    hidden_size: Annotated[int, Within(1, 10**6), Written(option="hidden")] = 12288,
    num_heads: Annotated[int, Within(1, 10**6)] = 96,
    sequence_length: Annotated[int, Within(1, 10**8)] = 2048,
    micro_batch: Annotated[int, Within(1, 10**6)] = 1,
    tp: Annotated[int, Within(1, 10**6)] = 8,
    memory_bytes: Annotated[float, SIZE] = 80e9,
    bytes_per_parameter: Annotated[float, Within(0, 1000)] = 16.0,
    target_bubble: Annotated[float, Within(1e-4, 1, without="high")] = 0.05,
) -> Pipeline:
    """Time, bubble and activations of a pipeline; the frontier of time against memory.

    >>> answer = pipeline()
    >>> round(100 * answer.at.bubble, 1), answer.needed, answer.at.held
    (17.9, 133, 8.0)

    Args:
        pp: Pipeline stages: devices in a row, each with as many layers as the others.
        num_micro_batches: Parts of a device group's batch.
        schedule: Order in which devices work.
        recomputation: Parts that the backward pass computes again instead of keeping them.
        forward_s: A device's forward pass of a micro-batch.
        backward_s: Its backward pass, without recomputing; half of it is the gradients of weights.
        stage_weights: How long each device takes compared to these times; one number for all.
        send_s: Time from a stage to the next and back.
        vpp: Parts of a device's layers where the schedule is interleaved.
        num_layers: Layers of the whole model.
        hidden_size: Width between layers.
        num_heads: Heads of a layer's attention.
        sequence_length: Tokens of a sequence.
        micro_batch: Sequences of a micro-batch.
        tp: Tensor parallelism: devices that share a stage.
        memory_bytes: Bytes of each device.
        bytes_per_parameter: Bytes of a parameter's weight, gradient and optimizer state: 16 for Adam in mixed
            precision, less where replicas share them.
        target_bubble: Share of the time.

    Raises:
        ConfigError: An input that is out of range, or a schedule that has no order for these numbers.
    """
    _check_stages(pp, num_layers=num_layers, stage_weights=stage_weights)
    check_heads(num_heads, tp=tp, hidden_size=hidden_size)
    _check_chunks(schedule, num_stages=pp, num_chunks=vpp, num_layers=num_layers)
    _check_micro_batches(schedule, num_micro_batches, num_stages=pp)
    weights = stage_weights * pp if len(stage_weights) == 1 else stage_weights
    parameters = num_layers * _PARAMETERS_BY_HIDDEN2 * hidden_size**2
    kept_bytes = partial(layer_activation_bytes, hidden=hidden_size, num_heads=num_heads, sequence=sequence_length)
    kinds: tuple[Recomputation, ...] = get_args(Recomputation)
    stages = PipelineStages(
        weights=weights,
        forward_s=forward_s,
        backward_s=backward_s,
        send_s=send_s,
        num_chunks=vpp,
        num_layers=num_layers,
        again={kind: recomputed_share(kind, hidden=hidden_size, sequence=sequence_length) for kind in kinds},
        layer_bytes={kind: kept_bytes(batch=micro_batch, recomputation=kind, tensor_parallel=tp) for kind in kinds},
        state_bytes=bytes_per_parameter * parameters / (pp * tp),
    )
    return Pipeline.of(
        stages,
        num_micro_batches,
        schedule=schedule,
        recomputation=recomputation,
        memory_bytes=memory_bytes,
        target_bubble=target_bubble,
    )


def _check_stages(num_stages: int, *, num_layers: int, stage_weights: Sequence[float]) -> None:
    if len(stage_weights) not in (1, num_stages):
        raise ArgumentError(
            f"`stage_weights` has {counted(len(stage_weights), 'value')}; write 1 or the {num_stages} of `pp`"
        )
    if num_layers % num_stages:
        whole = num_layers // num_stages * num_stages
        instead = f"{whole} or {whole + num_stages}" if whole else f"{num_stages} or more"
        raise ArgumentError(
            f"`num_layers` is {num_layers}, which the {num_stages} of `pp` do not divide; write {instead}"
        )


def _check_chunks(schedule: Schedule, *, num_stages: int, num_chunks: int, num_layers: int) -> None:
    """Check that a device's pieces are whole layers; otherwise leave interleaving out, unless it is asked for."""
    if schedule == "zbv" and num_layers % (2 * num_stages):
        raise ArgumentError(
            f"`num_layers` is {num_layers}, and zbv has 2 stages on each of the {num_stages} of `pp`; write a "
            f"multiple of {2 * num_stages}"
        )
    if schedule != "interleaved" or num_layers % (num_stages * num_chunks) == 0:
        return
    layers = num_layers // num_stages
    divisors = [n for n in range(1, min(layers, _MOST_STAGES) + 1) if layers % n == 0]
    nearby = sorted(sorted(divisors, key=lambda divisor: abs(divisor - num_chunks))[:2])
    raise ArgumentError(
        f"`vpp` is {num_chunks}, which does not divide the {layers} layers of each stage (`num_layers` {num_layers} "
        f"over `pp` {num_stages}); write {' or '.join(map(str, nearby))}"
    )


def _check_micro_batches(schedule: Schedule, num_micro_batches: int, *, num_stages: int) -> None:
    """Check that the schedule has an order for so many, whose simulation ends within seconds."""
    if num_micro_batches * num_stages > _MOST_PLACES:
        raise ArgumentError(
            f"`num_micro_batches` is {num_micro_batches}, which take too long to simulate with the {num_stages} of "
            f"`pp`; write at most {_MOST_PLACES // num_stages}"
        )
    fewest = fewest_micro_batches(schedule, num_devices=num_stages)
    multiple_of = num_stages if schedule == "interleaved" else 1
    if num_micro_batches >= fewest and num_micro_batches % multiple_of == 0:
        return
    instead = f"a multiple of {multiple_of}" if multiple_of > 1 else f"{fewest} or more"
    if fewest * num_stages > _MOST_PLACES:
        instead = "a smaller `pp`"
    raise ArgumentError(
        f"`num_micro_batches` is {num_micro_batches}, for which {schedule} has no order with the {num_stages} of `pp`; "
        f"write {instead}"
    )
