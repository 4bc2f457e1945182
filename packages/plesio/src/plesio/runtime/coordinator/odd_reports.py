"""Signs in workers' reports that a script trains on other than it means to."""

import math
from collections.abc import Mapping

from plesio.policies.events import RefuseReason
from plesio.protocol.figures import Report

__all__ = ["SAME_BATCHES", "draw_alike", "refusals"]

SAME_BATCHES = (
    "all workers draw the same batches (their first loss is equal): seed by rank, or write session.shard(loader)"
)
_TELLING = 3
"""So many losses that differ from step to step are no constant that a script gives for a loss."""
_MOST_CHANCES = 12.0
"""ln C of 160,000 classes; from there on every number is as near to a whole one as float32 tells."""
_ROUNDING = 2e-6
"""Relative error of e^loss from a loss below that in float32."""


def draw_alike(reports: Mapping[int, Report], *, num_workers: int) -> bool:
    """Tell whether all draw the same batches: replicas that begin alike then have the same first loss.

    Under a relaxed policy they part after it. A head of zeros has the first loss ln C whatever the batch.
    """
    drawn = [report.own_losses for report in reports.values()]
    if len(drawn) < max(2, num_workers) or len(set(drawn[0])) < _TELLING:
        return False
    first = drawn[0][0]
    return all(losses[:1] == [first] for losses in drawn) and not _of_equal_chances(first)


def refusals(reports: Mapping[int, Report]) -> list[str]:
    """Lines for workers most of whose gradients were refused: they have trained on next to nothing."""
    return [
        f"worker {worker}: {refused} of {report.steps} steps had gradients that are not finite, and trained nothing"
        for worker, report in sorted(reports.items())
        if (refused := report.refused.get(RefuseReason.NOT_FINITE, 0)) > report.steps / 2
    ]


def _of_equal_chances(loss: float) -> bool:
    """Tell whether this is ln C for a number of classes C, to rounding in float32."""
    if not math.isfinite(loss):
        return True
    classes = math.exp(min(loss, _MOST_CHANCES))
    return loss < _MOST_CHANCES and round(classes) > 1 and math.isclose(classes, round(classes), rel_tol=_ROUNDING)
