"""Time of a schedule in the virtual world: a grid's by a run, torch's by `plesio_planning.sim.pipeline_schedules`."""

from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any

from cases import Case
from networks import Shape, loss, optimizer
from rivals import devices_of
from torch.utils.data import DataLoader, TensorDataset

import plesio
from measured import Timing, spans, steady
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.step_time import Constant
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio_planning.sim.pipeline_schedules import SPLIT, execute, operations

NO_LINK = Link(latency_s=0.0, bytes_per_s=1e12)
"""Between stages, where messages are of no account."""


@dataclass(slots=True, kw_only=True)
class SlowPacer(Pacer):
    """A pacer that is slow at some micro-batches, as `networks.Pace` is."""

    slow: frozenset[int]
    factor: float
    period: int

    def draw_s(self, step: int, *, at_s: float = 0.0) -> float:
        """Draw a step's seconds."""
        drawn_s = Pacer.draw_s(self, step, at_s=at_s)  # super() knows the class as it was before it had slots
        return drawn_s * (self.factor if step % self.period in self.slow else 1.0)


def between_hosts(stages: int, link: Link) -> Cluster:
    return Cluster(name="stages", hosts=stages, workers_per_host=1, cores_per_host=1, nic=link)


def pacer_of(shape: Shape, stage: int, job: Any) -> SlowPacer:
    """Pace a stage of a grid: a step of the whole network takes K stages' time."""
    return SlowPacer(
        step_time=Constant(mean_s=shape.stages * shape.stage_s),
        seed=0,
        worker=stage,
        clock=job.clock,
        slow=shape.slow[stage] if shape.slow else frozenset(),
        factor=shape.factor,
        period=shape.period,
    )


def grid_timing(case: Case, shape: Shape, *, link: Link, warm: int, counted: int) -> Timing:
    def work(job: Any) -> list[float]:
        x, y = shape.batches(warm + counted)
        marks = []
        parts = shape.parts(per_stage=1, devices=range(shape.stages), sleeping=False)
        options = plesio.JoinOptions(pacer=pacer_of(shape, job.place.rank, job))
        with plesio.grid(parts, optimizer, loss, setting=case.grid(shape.stages), options=options) as grid:
            for inputs, targets in grid.shard(DataLoader(TensorDataset(x, y), batch_size=shape.batch, shuffle=True)):
                grid.step(inputs, targets)
                marks.append(job.clock.now_s())
        return marks

    with redirect_stderr(StringIO()):  # where it was cut is known
        simulation = simulate(work, num_workers=shape.stages, cluster=between_hosts(shape.stages, link))
    marks = [each for each in simulation.values() if each is not None]
    return steady(marks, warm=warm, stage_s=shape.stage_s)


def torch_timing(case: Case, shape: Shape, *, link: Link) -> Timing:
    """One of torch's schedules, all of whose stages take the same time always; messages disturb no others."""
    devices = devices_of(case.setting, shape.stages)
    each_s = shape.stage_s * shape.stages / len(devices)
    split = case.schedule in SPLIT
    micro_batches = case.micro_batches(shape.stages)
    done = execute(
        operations(case.schedule, num_devices=shape.stages, num_micro_batches=micro_batches),
        forward_s=[each_s / 3] * len(devices),
        backward_s=[each_s / 3 if split else 2 * each_s / 3] * len(devices),
        weights_s=[each_s / 3] * len(devices) if split else (),
        send_s=link.latency_s + shape.handed_bytes / link.bytes_per_s,
    )
    period_s = done.iteration_s / micro_batches
    return Timing(period_s=period_s, bubble=1 - shape.stage_s / period_s)


def virtual_timing(case: Case, shape: Shape, *, link: Link = NO_LINK) -> Timing:
    if case.runner == "torch":
        return torch_timing(case, shape, link=link)
    warm, counted = spans(case, shape, least=48)
    return grid_timing(case, shape, link=link, warm=warm, counted=counted)
