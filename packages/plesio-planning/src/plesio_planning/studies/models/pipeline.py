"""The costs of a pipeline's schedule and number of micro-batches, in time and memory.

The model's layers are cut into p stages, a batch into m micro-batches. With equal stages, GPipe and 1F1B take
``(m + p - 1)(f + b)`` (Huang et al. 2019, section 2.3), so ``(p-1)/(m+p-1)`` of the time is bubble, and a share x of it
needs ``m = (p-1)(1-x)/x``. Interleaving v stages a device leaves ``(p-1)/(mv+p-1)`` (Narayanan et al. 2021, section
2.2.2); doing the gradients of weights apart leaves a third of 1F1B's bubble or none (Qi et al. 2023). These are laws
that the answer is held to; its own times come from doing every operation in its schedule's order
(`plesio_planning.sim.pipeline_schedules`), which unequal stages and sends are no obstacle to.

GPipe holds all m micro-batches' activations, 1F1B ``min(p - i, m)`` on stage i, interleaving ``1 + (p-1)/(pv)`` times
as many, ZB-H2 nearly twice, ZB-V as many. The memory of a micro-batch in a layer, with and without recomputation, is in
`plesio_planning.activations` (Korthikanti et al. 2022); recomputing adds a forward pass, or its attention core, to
every backward pass. Beside activations a device holds its layers' weights, gradients and optimizer state, ``12h²``
parameters a layer over the tensor-parallel devices, which do not depend on the schedule.

Limits: sends that share a link or keep a device busy, times that depend on the micro-batch,
embeddings (which the first and last stage hold besides), an optimizer step that all devices begin together, for which
ZB-H2 and ZB-V would wait as 1F1B does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.charts import Chart, Table, TimelineBar
from plesio.core.errors import ArgumentError
from plesio.core.inputs import Written
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.core.within import DURATION, DURATION_OR_0, SIZE, Within
from plesio_planning.activations import Recomputation
from plesio_planning.sim.pipeline_schedules import Schedule, fewest_micro_batches
from plesio_planning.studies.declared import table_of
from plesio_planning.studies.pipeline_charts import charts_of, words_of
from plesio_planning.studies.pipeline_stages import PipelinePoint, PipelineStages, frontier, points_of
from plesio_planning.studies.study import Answer
from plesio_planning.studies.tensor_cuts import check_heads
from plesio_planning.theory.parallelism import micro_batches_for

__all__ = ["Pipeline", "pipeline"]

_MOST_STAGES = 1024
"""Most stages of a pipeline, and of a device."""
_MOST_PLACES = 32_768
"""Micro-batches times stages; their operations are done one by one."""
_SLOWER = 1.2
_SEND = 0.1
"""Shares of a forward pass; both for the table of what is not equal."""
_PUBLISHED: Mapping[str, tuple[float, float]] = {
    "gpipe": (1.0, math.nan),
    "1f1b": (1.0, 1.0),
    "zb1p": (1 / 3, 1.0),
    "zb2p": (0.0, 2.0),
    "zbv": (0.0, 1.0),
    "V-Half": (1 / 2, 1 / 2),
    "V-Min": (2 / 3, 1 / 3),
}
"""Bubble and activations relative to 1F1B's, equal times of the three operations (Qi et al. 2023 and 2024)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Answer):
    """The time of an iteration, and the alternatives.

    Attributes:
        at: Point that was asked for.
        num_stages: p.
        target_bubble: Share of the time.
        needed: Micro-batches of equal stages for that, with GPipe and 1F1B.
        memory_bytes: Bytes of each device.
        state_bytes: Bytes of a device's weights, gradients and optimizer state.
        by_schedule: All schedules that have an order, as asked for otherwise.
        points: Schedules, numbers of micro-batches and recomputations.
        frontier: Points than which none is faster with as little memory.
        fastest: The fastest of them that fits, if one does.
        layer_bytes: Bytes that a device keeps of a layer and a micro-batch, by recomputation.
        unequal: Seconds of an iteration by schedule, for stages that are equal, with a slower last one, with sends.
        computing_s: Seconds of an iteration in which devices compute on average, by what.
        drawn: First operations at the point that was asked for, device by device.
    """

    unit: ClassVar[str] = "s"
    at: PipelinePoint
    num_stages: int
    target_bubble: float
    needed: int
    memory_bytes: float
    state_bytes: float
    by_schedule: tuple[PipelinePoint, ...]
    points: tuple[PipelinePoint, ...]
    frontier: tuple[PipelinePoint, ...]
    fastest: PipelinePoint | None
    layer_bytes: Mapping[Recomputation, float]
    unequal: Mapping[str, tuple[float, ...]]
    computing_s: Mapping[str, float]
    drawn: tuple[TimelineBar, ...]

    @classmethod
    def of(
        cls,
        stages: PipelineStages,
        num_micro_batches: int,
        *,
        schedule: Schedule,
        recomputation: Recomputation,
        memory_bytes: float,
        target_bubble: float,
    ) -> "Pipeline":
        """Run the stages as asked for, and as they could be run instead."""
        points = points_of(stages, num_micro_batches, schedule=schedule, recomputation=recomputation)
        here = [p for p in points if (p.num_micro_batches, p.recomputation) == (num_micro_batches, recomputation)]
        fitting = [point for point in points if point.activation_bytes + stages.state_bytes <= memory_bytes]
        return cls(
            at=next(point for point in here if point.schedule == schedule),
            num_stages=len(stages.weights),
            target_bubble=target_bubble,
            needed=micro_batches_for(target_bubble, num_stages=len(stages.weights)),
            memory_bytes=memory_bytes,
            state_bytes=stages.state_bytes,
            by_schedule=tuple(here),
            points=points,
            frontier=frontier(points),
            fastest=min(fitting, key=lambda point: (point.micro_batch_s, point.activation_bytes), default=None),
            layer_bytes=stages.layer_bytes,
            unequal={p.schedule: stages.unequal_s(p, last_slower=_SLOWER, send_share=_SEND) for p in here},
            computing_s=stages.computing_s(num_micro_batches, recomputation),
            drawn=stages.drawn(schedule, recomputation, num_micro_batches=num_micro_batches),
        )

    @property
    def finding(self) -> str:
        """Time, bubble and memory; micro-batches for the target; what is fastest and fits."""
        at = self.at
        best = f"nothing fits into {format_bytes(self.memory_bytes)}"
        if self.fastest is not None:
            each = format_seconds(self.fastest.micro_batch_s)
            fits = f"of what fits into {format_bytes(self.memory_bytes)}"
            best = f"{fits}, {words_of(self.fastest)} is fastest, {each} a micro-batch"
        return (
            f"{words_of(at)} in {self.num_stages} stages takes {format_seconds(at.iteration_s)} an iteration, "
            f"{100 * at.bubble:.1f} % of it bubble, and holds {format_bytes(at.activation_bytes)} of activations "
            f"beside {format_bytes(self.state_bytes)} of weights, gradients and optimizer; for "
            f"{100 * self.target_bubble:g} % bubble GPipe and 1F1B need {self.needed} micro-batches; {best}."
        )

    @property
    def total(self) -> float:
        """Seconds of an iteration."""
        return self.at.iteration_s

    @property
    def parts(self) -> Mapping[str, float]:
        """The mean work of a device, and its wait."""
        return {**self.computing_s, "bubble": self.at.iteration_s - math.fsum(self.computing_s.values())}

    def tables(self) -> Sequence[Table]:
        """List schedules, the frontier, recomputation, unequal stages."""
        return [self._schedules(), self._frontier_table(), self._recomputation(), self._unequal()]

    def _schedules(self) -> Table:
        base = next(point for point in self.by_schedule if point.schedule == "1f1b")
        base_s = base.iteration_s * base.bubble
        ours: dict[str, PipelinePoint] = {point.schedule: point for point in self.by_schedule}
        rows = []
        for name in dict.fromkeys((*ours, *_PUBLISHED)):
            bubble, activations = _PUBLISHED.get(name, (math.nan, math.nan))
            point = ours.get(name)
            numbers = ("–",) * 6
            if point is not None:
                waiting_s = point.iteration_s * point.bubble
                numbers = (
                    format_seconds(point.iteration_s),
                    f"{100 * point.bubble:.1f} %",
                    format_bytes(point.activation_bytes),
                    format_bytes(self.state_bytes + point.activation_bytes),
                    f"{waiting_s / base_s:.2f}" if base_s else "–",
                    f"{point.held / base.held:.2f}",
                )
            rows.append((name, *numbers, *("–" if math.isnan(one) else f"{one:.2g}" for one in (bubble, activations))))
        headers = (
            "schedule",
            "iteration",
            "bubble",
            "activations",
            "memory",
            "bubble by 1F1B's",
            "held by 1F1B's",
            "published bubble",
            "published held",
        )
        return Table(title=f"{self.at.num_micro_batches} micro-batches, by schedule:", headers=headers, rows=rows)

    def _frontier_table(self) -> Table:
        return table_of(
            "None is faster with as little memory:",
            self.frontier,
            {
                "schedule": lambda point: point.schedule,
                "micro-batches": lambda point: str(point.num_micro_batches),
                "recomputed": lambda point: point.recomputation,
                "activations": lambda point: format_bytes(point.activation_bytes),
                "memory": lambda point: format_bytes(self.state_bytes + point.activation_bytes),
                "time a micro-batch": lambda point: format_seconds(point.micro_batch_s),
                "bubble": lambda point: f"{100 * point.bubble:.1f} %",
                "fits": lambda point: "yes" if self.state_bytes + point.activation_bytes <= self.memory_bytes else "no",
            },
        )

    def _recomputation(self) -> Table:
        by = {
            point.recomputation: point
            for point in self.points
            if (point.schedule, point.num_micro_batches) == (self.at.schedule, self.at.num_micro_batches)
        }
        rows = [
            (
                name,
                format_bytes(layer_bytes),
                format_bytes(by[name].activation_bytes),
                format_seconds(by[name].iteration_s),
            )
            for name, layer_bytes in self.layer_bytes.items()
        ]
        headers = ("recomputed", "a layer and micro-batch", "the fullest device", "iteration")
        return Table(title="What is kept for the backward pass:", headers=headers, rows=rows)

    def _unequal(self) -> Table:
        headers = (
            "schedule",
            "as asked for",
            f"last stage {_SLOWER:g}x slower",
            f"sends of {100 * _SEND:g} % of a forward pass",
        )
        rows = [(name, *map(format_seconds, times_s)) for name, times_s in self.unequal.items()]
        return Table(title="Iteration of stages that are not equal:", headers=headers, rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Time against memory; who does what when; utilisation and memory by micro-batches; where the time goes."""
        return charts_of(self)


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
    _check_work(num_micro_batches, num_stages=pp)
    _check_micro_batches(schedule, num_micro_batches, num_stages=pp)
    stages = PipelineStages.of_transformer(
        stage_weights * pp if len(stage_weights) == 1 else stage_weights,
        forward_s=forward_s,
        backward_s=backward_s,
        send_s=send_s,
        num_chunks=vpp,
        num_layers=num_layers,
        hidden=hidden_size,
        num_heads=num_heads,
        sequence=sequence_length,
        micro_batch=micro_batch,
        tensor_parallel=tp,
        bytes_per_parameter=bytes_per_parameter,
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


def _check_work(num_micro_batches: int, *, num_stages: int) -> None:
    """Make sure that the simulation ends within seconds."""
    if num_micro_batches * num_stages > _MOST_PLACES:
        raise ArgumentError(
            f"`num_micro_batches` is {num_micro_batches}, which take too long to simulate with the {num_stages} of "
            f"`pp`; write at most {_MOST_PLACES // num_stages}"
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
    """Check that the schedule has an order for so many."""
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
