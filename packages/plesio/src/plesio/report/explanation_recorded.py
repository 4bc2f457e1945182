"""What a result by itself tells of a policy's decisions, where the run's event log is not at hand."""

from collections.abc import Mapping
from typing import Any

from plesio.core.results import RunResult
from plesio.report.explanation import Change, Review
from plesio.report.explanation_clock import TrainingClock

__all__ = ["recorded_changes", "recorded_review"]


def recorded_changes(run: RunResult) -> list[tuple[Change, Review | None]] | None:
    """The changes, each with the latest review that left it in force; None if the decisions are of another kind."""
    changes: list[tuple[Change, Review | None]] = []
    shares: tuple[float, ...] = ()
    times = TrainingClock(run, num_steps=run.steps // max(1, run.num_workers))
    for decision in run.decisions:
        try:
            change = _change(decision, shares=shares, times=times)
            latest = recorded_review(decision)
        except (KeyError, TypeError, ValueError):
            return None
        shares = change.shares
        if change.policy != change.before or change.reshared or change.restored:
            changes.append((change, latest if "latest" in decision else None))
        elif changes:
            changes[-1] = (changes[-1][0], latest)
    return changes


def recorded_review(decision: Mapping[str, Any]) -> Review:
    """The latest review that left a decision in force; where there was none, the one that made it."""
    latest = decision.get("latest", decision)
    return Review(
        clock=int(latest["clock"]),
        at_s=float(latest["at_s"]),
        policy=str(decision["policy"]),
        reason=str(latest["reason"]),
        inputs=dict(latest["inputs"]),
    )


def _change(decision: Mapping[str, Any], *, shares: tuple[float, ...], times: TrainingClock) -> Change:
    """``shares`` are those before it."""
    return Change(
        clock=int(decision["clock"]),
        at_s=times.at_s(decision["clock"]),
        before=str(decision["before"]),
        policy=str(decision["policy"]),
        shares=tuple(map(float, decision["shares"])),
        reshared=tuple(decision["shares"]) != shares,
        restored=bool(decision["restore"]),
        restored_to=None,
        reason=str(decision["reason"]),
        inputs=dict(decision["inputs"]),
    )
