"""A pipeline's stages, run by any schedule: time, waiting and activations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from plesio.core.charts import TimelineBar
from plesio_planning.activations import Recomputation
from plesio_planning.sim.pipeline_schedules import (
    SCHEDULES,
    SPLIT,
    Execution,
    Schedule,
    chunks_of,
    devices_of_stages,
    execute,
    fewest_micro_batches,
    operations,
)

_MOST_OTHER_PLACES = 4096
"""Micro-batches times stages where all schedules and recomputations are tried; their operations are done one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePoint:
    """One way to run the pipeline.

    Attributes:
        num_micro_batches: m.
        recomputation: Parts that the backward pass computes again.
        bubble: Share of the devices' time in which they wait.
        held: Micro-batches that the fullest device holds; interleaved stages count as the part that they are.
        activation_bytes: Bytes of activations there.
    """

    schedule: Schedule
    num_micro_batches: int
    recomputation: Recomputation
    iteration_s: float
    bubble: float
    held: float
    activation_bytes: float

    @property
    def micro_batch_s(self) -> float:
        """Seconds an iteration takes for each of its micro-batches."""
        return self.iteration_s / self.num_micro_batches

    @property
    def words(self) -> str:
        """The way to run the pipeline, in words."""
        again = "" if self.recomputation == "none" else f" and {self.recomputation} recomputation"
        return f"{self.schedule} with {self.num_micro_batches} micro-batches{again}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStages:
    """The stages of a pipeline.

    Attributes:
        weights: How long each device takes compared to the times below.
        forward_s: Seconds of a device's forward pass of a micro-batch.
        backward_s: Seconds of its backward pass, without recomputing; half of it is the gradients of weights.
        send_s: Seconds from a stage to the next and back.
        num_chunks: Stages of a device where the schedule is interleaved.
        again: Share of a forward pass that the backward pass computes again, by recomputation.
        layer_bytes: Bytes that a device keeps of a layer and a micro-batch, by recomputation.
        state_bytes: Bytes of a device's weights, gradients and optimizer state.
    """

    weights: tuple[float, ...]
    forward_s: float
    backward_s: float
    send_s: float
    num_chunks: int
    num_layers: int
    again: Mapping[Recomputation, float]
    layer_bytes: Mapping[Recomputation, float]
    state_bytes: float

    def run(
        self,
        schedule: Schedule,
        num_micro_batches: int,
        recomputation: Recomputation,
        *,
        last_slower: float = 1.0,
        send_s: float | None = None,
    ) -> Execution:
        """Simulate an iteration, operation by operation."""
        p = len(self.weights)
        chunks = chunks_of(schedule, self.num_chunks)
        devices = devices_of_stages(schedule, num_devices=p, num_chunks=self.num_chunks)
        weights = [weight * (last_slower if device == p - 1 else 1) for device, weight in enumerate(self.weights)]
        shares = [weights[device] / chunks for device in devices]
        again_s = self.again[recomputation] * self.forward_s
        split = schedule in SPLIT
        apart_s = self.backward_s / 2 if split else 0.0
        return execute(
            operations(schedule, num_devices=p, num_micro_batches=num_micro_batches, num_chunks=chunks),
            forward_s=[self.forward_s * share for share in shares],
            backward_s=[(self.backward_s - apart_s + again_s) * share for share in shares],
            weights_s=[apart_s * share for share in shares] if split else (),
            send_s=self.send_s if send_s is None else send_s,
        )

    def has_order(self, schedule: Schedule, num_micro_batches: int) -> bool:
        """Return True if so many micro-batches can be run so, with whole layers on every stage."""
        p = len(self.weights)
        return num_micro_batches >= fewest_micro_batches(schedule, num_devices=p) and (
            self.num_layers % (p * chunks_of(schedule, self.num_chunks)) == 0
            and (schedule != "interleaved" or num_micro_batches % p == 0)
        )

    def point(self, schedule: Schedule, num_micro_batches: int, recomputation: Recomputation) -> PipelinePoint:
        """Time and memory of running it so."""
        done = self.run(schedule, num_micro_batches, recomputation)
        held = max(done.most_held) / chunks_of(schedule, self.num_chunks)
        kept_bytes = self.layer_bytes[recomputation]
        working_bytes = self.layer_bytes["none"] - kept_bytes  # a layer that is being computed again is there whole
        return PipelinePoint(
            schedule=schedule,
            num_micro_batches=num_micro_batches,
            recomputation=recomputation,
            iteration_s=done.iteration_s,
            bubble=done.bubble_share,
            held=held,
            activation_bytes=held * self.num_layers / len(self.weights) * kept_bytes + working_bytes,
        )

    def unequal_s(self, point: PipelinePoint, *, last_slower: float, send_share: float) -> tuple[float, float, float]:
        """Seconds of an iteration: the point's own, with a slower last stage, with sends (shares of a forward pass)."""
        way = (point.schedule, point.num_micro_batches, point.recomputation)
        return (
            point.iteration_s,
            self.run(*way, last_slower=last_slower).iteration_s,
            self.run(*way, send_s=send_share * self.forward_s).iteration_s,
        )

    def computing_s(self, num_micro_batches: int, recomputation: Recomputation) -> dict[str, float]:
        """Return the seconds of an iteration in which devices compute on average, by what."""
        mean_weight = math.fsum(self.weights) / len(self.weights)
        passes_s = {
            "forward": self.forward_s,
            "backward": self.backward_s,
            "recomputation": self.again[recomputation] * self.forward_s,
        }
        return {name: num_micro_batches * mean_weight * each_s for name, each_s in passes_s.items() if each_s}

    def drawn(
        self, schedule: Schedule, recomputation: Recomputation, *, num_micro_batches: int
    ) -> tuple[TimelineBar, ...]:
        """Draw the devices' operations over time, with few micro-batches, so that boxes can be told apart."""
        num_devices = len(self.weights)
        few = max(num_devices, fewest_micro_batches(schedule, num_devices=num_devices))
        done = self.run(schedule, min(num_micro_batches, few), recomputation)
        names = {"forward": "forward", "backward": "backward", "weights": "gradients of weights"}
        return tuple(
            TimelineBar(one.device, one.start_s, one.end_s, names[one.operation.kind], str(one.operation.micro_batch))
            for one in sorted(done.done, key=lambda one: (list(names).index(one.operation.kind), one.start_s))
        )


def points_of(
    stages: PipelineStages, num_micro_batches: int, *, schedule: Schedule, recomputation: Recomputation
) -> tuple[PipelinePoint, ...]:
    """Return all schedules and recomputations that have an order, with other numbers of micro-batches too.

    With many micro-batches only those of the schedule, and those of the recomputation, that are asked for.
    """
    powers = [2**power for power in range(num_micro_batches.bit_length() + 2)]
    few = _MOST_OTHER_PLACES // len(stages.weights)
    return tuple(
        stages.point(name, count, kind)
        for name in SCHEDULES
        for count in sorted({*(count for count in powers if count <= few), num_micro_batches})
        for kind in get_args(Recomputation)
        if stages.has_order(name, count) and (count <= few or name == schedule or kind == recomputation)
    )


def frontier(points: Sequence[PipelinePoint]) -> tuple[PipelinePoint, ...]:
    """Return the points than which none is faster with as little memory."""
    front: list[PipelinePoint] = []
    for point in sorted(points, key=lambda one: (one.activation_bytes, one.micro_batch_s)):
        if not front or point.micro_batch_s < front[-1].micro_batch_s * (1 - 1e-9):
            front.append(point)
    return tuple(front)
