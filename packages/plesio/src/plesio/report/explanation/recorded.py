"""Decisions of a policy as a result by itself records them, where the run's event log is not at hand."""

from collections.abc import Mapping
from typing import Any

from plesio.core.results import RunResult
from plesio.policies.adaptive.compared import compared_in
from plesio.report.explanation.model import Change, ExplainedReview
from plesio.report.explanation.sentences import change_text, unchanged_text, upheld_text
from plesio.report.explanation.spans import RecordedClock


def decision_sentences(run: RunResult) -> list[str] | None:
    """Tell the decisions of a policy that adapts or switches, a sentence each; None if they are of another kind."""
    changes = recorded_changes(run)
    if changes is None:
        return None
    if not changes:
        latest = _review(run.decisions[-1])
        num_steps = run.steps // max(1, run.num_workers)
        return [unchanged_text(num_steps=num_steps, policy=latest.policy, reason=latest.reason)]
    return [f"{change_text(change)}.{upheld_text(latest, reason=change.reason)}" for change, latest in changes]


def recorded_changes(run: RunResult) -> list[tuple[Change, ExplainedReview | None]] | None:
    """Pair each change with the latest review that left it in force; None if the decisions are of another kind."""
    changes: list[tuple[Change, ExplainedReview | None]] = []
    shares: tuple[float, ...] = ()
    times = RecordedClock(run, num_steps=run.steps // max(1, run.num_workers))
    for decision in run.decisions:
        try:
            change = _change(decision, shares=shares, times=times)
            latest = _review(decision)
        except (KeyError, TypeError, ValueError):
            return None
        shares = change.shares
        if change.policy != change.before or change.reshared or change.restored:
            changes.append((change, latest if "latest" in decision else None))
        elif changes:
            changes[-1] = (changes[-1][0], latest)
    return changes


def _review(decision: Mapping[str, Any]) -> ExplainedReview:
    """Return the latest review that left a decision in force; where there was none, the one that made it."""
    latest = decision.get("latest", decision)
    return ExplainedReview(
        clock=int(latest["clock"]),
        at_s=float(latest["at_s"]),
        policy=str(decision["policy"]),
        reason=str(latest["reason"]),
        inputs=dict(latest["inputs"]),
    )


def _change(decision: Mapping[str, Any], *, shares: tuple[float, ...], times: RecordedClock) -> Change:
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
        compared=tuple(compared_in(dict(decision["inputs"]))),
    )
