"""A schedule's time with real processes, on this machine or on hosts of a testbed."""

import contextlib
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cases import Case
from networks import Shape
from ours import run_grid
from rivals import run_torch

from plesio.cost.cluster import Cluster
from plesio.testbed.testbed import Testbed
from plesio_planning.measured.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How fast micro-batches go through.

    Attributes:
        period_s: From one to the next, once the pipeline is full.
        bubble: Share of a stage's time in which it does no pass; of paced stages.
    """

    period_s: float
    bubble: float


def steady(marks: Sequence[Sequence[float]], *, warm: int, stage_s: float) -> Timing:
    """Time the slowest rank by the ends of each rank's micro-batches, the first ``warm`` of which fill the pipeline.

    >>> steady([[1.0, 2.0, 4.0, 6.0]], warm=2, stage_s=1.5)
    Timing(period_s=2.0, bubble=0.25)
    """
    period_s = max((of_rank[-1] - of_rank[warm - 1]) / (len(of_rank) - warm) for of_rank in marks)
    return Timing(period_s=period_s, bubble=1 - stage_s / period_s)


def spans(case: Case, shape: Shape, *, least: int) -> tuple[int, int]:
    """Micro-batches that fill the pipeline, and those that count, ``least`` or more: whole updates and periods."""
    span = math.lcm(case.micro_batches(shape.stages), shape.period)
    return -(-4 * shape.stages // span) * span, -(-least // span) * span


def measure_once(ranks: Ranks, case: Case, shape: Shape, *, counted: int) -> Timing:
    """One run.

    Args:
        ranks: K of them.
        case: The schedule.
        shape: Its stages.
        counted: Micro-batches that count, at least; whole updates, and whole periods of stragglers.
    """
    micro_batches = case.micro_batches(shape.stages)
    warm, counted = spans(case, shape, least=counted)
    if case.runner == "torch":
        steps = (warm + counted) // micro_batches
        answers = ranks.run(run_torch, shape=shape, schedule=case.setting, micro_batches=micro_batches, steps=steps)
    else:
        setting = case.grid(shape.stages)
        answers = ranks.run(run_grid, shape=shape, setting=setting, micro_batches=warm + counted)
    return steady([answer["marks"] for answer in answers], warm=warm, stage_s=shape.stage_s)


def measure_in_turns(
    cases: Sequence[Case], shape: Shape, *, ranks: Ranks, repeats: int, counted: int
) -> dict[Case, list[Timing]]:
    """Each case ``repeats`` times; they take turns, in one order and then the other."""
    found: dict[Case, list[Timing]] = {case: [] for case in cases}
    for repeat in range(repeats):
        for case in list(cases)[:: -1 if repeat % 2 else 1]:
            found[case].append(measure_once(ranks, case, shape, counted=counted))
    return found


@contextlib.contextmanager
def hosts_of(cluster: Cluster) -> Iterator[Ranks]:
    with Testbed.of(cluster) as testbed, Ranks(testbed.record.num_slots, site=testbed.record) as ranks:
        yield ranks


def median(timings: Sequence[Timing]) -> Timing:
    """Return the one in the middle."""
    return sorted(timings, key=lambda timing: timing.period_s)[len(timings) // 2]


def spread(timings: Sequence[Timing]) -> str:
    """Smallest, median and largest period, in ms."""
    periods = sorted(1e3 * timing.period_s for timing in timings)
    return f"{statistics.median(periods):.2f} ({periods[0]:.2f} to {periods[-1]:.2f})"
