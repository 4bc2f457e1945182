"""A few steps from the middle of a run: what each worker did, moment by moment."""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from plesio.report.spans import ActivitySpan, RunTraces

MOST_WORKERS = 16
"""More rows than that nobody reads."""
STEPS = 10
"""Steps of the slowest worker in the window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Spans of one run that overlap a stretch of its time.

    Attributes:
        begins_s: Where the window begins, in seconds since the traces do.
        num_workers: Workers in the run; of more than `MOST_WORKERS` the first are shown, and the slowest.
    """

    policy: str
    spans: tuple[ActivitySpan, ...]
    begins_s: float
    ends_s: float
    num_workers: int


def window_of(run: RunTraces) -> Window | None:
    """Return the middle of a run; None if it has no spans."""
    spans, traces = run.training, run.by_worker
    if not spans:
        return None
    begins_s, ends_s = _middle(spans)
    steps = Counter(span.worker for span in spans if span.kind == "compute")
    slowest = min(traces, key=lambda worker: steps[worker])
    shown = {*list(traces)[: MOST_WORKERS - 1], slowest} if len(traces) > MOST_WORKERS else set(traces)
    return Window(
        policy=run.policy,
        spans=tuple(
            span
            for span in spans
            if span.worker in shown and span.at_s < ends_s and span.at_s + span.duration_s > begins_s
        ),
        begins_s=begins_s,
        ends_s=ends_s,
        num_workers=len(traces),
    )


def _middle(spans: Sequence[ActivitySpan]) -> tuple[float, float]:
    """Return the time of `STEPS` steps of the slowest worker around the middle of the run."""
    first_s, last_s = min(span.at_s for span in spans), max(span.at_s + span.duration_s for span in spans)
    began: dict[int, dict[int, float]] = {}
    for span in spans:
        if span.kind == "compute":
            began.setdefault(span.worker, {}).setdefault(span.clock, span.at_s)
    step_s = 0.0
    for by_clock in began.values():
        moments = sorted(by_clock.values())
        if len(moments) > 1:
            step_s = max(step_s, statistics.median(b - a for a, b in itertools.pairwise(moments)))
    length_s = min(last_s - first_s, STEPS * step_s or last_s - first_s)
    begins_s = first_s + (last_s - first_s - length_s) / 2
    # of a sampled trace the middle may not be there: the nearest step that is, then
    nearest_s = min((span.at_s for span in spans), key=lambda at_s: abs(at_s - begins_s))
    if abs(nearest_s - begins_s) > length_s:
        begins_s = nearest_s
    return begins_s, begins_s + length_s
