"""The story of a run whose policy adapts: what was in force when, why it was changed, and what that saved.

A *span* is a stretch between two answers of the policy (`plesio.report.story_spans`); a *chapter* is made of the spans
between two changes. Savings are against bsp with equal shares, by the policy's own prediction. What bsp would have sent
is an exchange a step, each as large as the run's own were on average.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal

from plesio.core.errors import DataError
from plesio.core.results import RunResult
from plesio.policies import Adaptive, EventLog, parse_policy
from plesio.report.story_spans import Answer, Noise, Span, components_of, noises_of, read_answers, read_spans

__all__ = ["BspRun", "Change", "Chapter", "Limit", "Story", "recorded_changes", "story_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the workers did otherwise from one step to the next.

    Attributes:
        clock: Of the last step before it.
        at_s: Training time then.
        before: Spec of the policy that was in force.
        policy: Spec of the policy that came into force.
        shares: By rank, the share of each round; empty is equal shares.
        reshared: Whether they changed.
        restored: Whether the workers went back to a state that they had kept.
        restored_to: Its clock; None where it is not known.
        reason: Why, in the policy's words.
        inputs: The figures that it was decided from, by name.
        pace_s: By rank, the seconds that a step with an equal share took just before; empty where not known.
    """

    clock: int
    at_s: float
    before: str
    policy: str
    shares: tuple[float, ...]
    reshared: bool
    restored: bool
    restored_to: int | None
    reason: str
    inputs: dict[str, float]
    pace_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A component of the policy held the slack back.

    Attributes:
        component: Which.
        num_steps: For so many steps of the chapter.
        free_step_s: What a step would have taken with any slack, as last predicted.
    """

    component: str
    num_steps: int
    free_step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """The steps between two changes.

    Attributes:
        begin: Clock after whose step it begins.
        end: Clock of its last step.
        begin_s: Training time at its beginning.
        end_s: Training time at its end.
        policy: Spec of what was in force.
        slack: Steps that a worker goes on without hearing of the others'.
        shares: By rank; empty is equal shares.
        change: What began it; None of the first.
        step_s: Mean seconds of a step, measured.
        bsp_step_s: The same under bsp with equal shares, predicted.
        saved_s: Seconds saved against that; below 0 where it was slower.
        saved_so_far_s: The same from the beginning of the run.
        num_exchanges: Exchanges that began.
        bytes_saved: Bytes that bsp would have sent beyond the chapter's.
        limits: Who held the slack back; the longest first.
    """

    begin: int
    end: int
    begin_s: float
    end_s: float
    policy: str
    slack: int
    shares: tuple[float, ...]
    change: Change | None
    step_s: float
    bsp_step_s: float
    saved_s: float
    saved_so_far_s: float
    num_exchanges: int
    bytes_saved: float
    limits: tuple[Limit, ...]

    @property
    def num_steps(self) -> int:
        """Steps of each worker."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class BspRun:
    """What the same training took under bsp, measured."""

    wall_s: float
    final_metric: float | None
    bytes_sent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One run from its beginning to its end; times in seconds of training.

    Attributes:
        num_steps: Of each worker.
        wall_s: Measured.
        saved_s: Against bsp by prediction.
        bytes_saved: Against bsp.
        first_reason: Why the policy first answered as it did; empty if it was never asked.
        components: Names of those that may object to slack.
        chapters: Empty where no step was finished.
        losses: (clock, loss).
        bsp: None where bsp was not run with this seed.
    """

    policy: str
    task: str
    world: str
    seed: int
    num_workers: int
    status: str
    error: str | None
    num_steps: int
    wall_s: float
    metric_name: str
    metric_goal: Literal["max", "min"]
    final_metric: float | None
    bytes_sent: int
    saved_s: float
    bytes_saved: float
    first_reason: str
    components: tuple[str, ...]
    chapters: tuple[Chapter, ...]
    spans: tuple[Span, ...]
    losses: tuple[tuple[int, float], ...]
    noises: tuple[Noise, ...]
    bsp: BspRun | None = None

    @property
    def changes(self) -> tuple[Chapter, ...]:
        """The chapters that a change began."""
        return self.chapters[1:]

    @property
    def predicted_bsp_s(self) -> float:
        """What the run would have taken under bsp, by prediction."""
        return self.wall_s + self.saved_s

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return asdict(self)


def story_of(log: EventLog, run: RunResult, *, bsp: RunResult | None = None) -> Story:
    """The story that the event log and the result of an adaptive run tell.

    Args:
        log: What its policy heard and answered.
        run: Its result.
        bsp: The run under bsp to hold it against.

    Raises:
        DataError: The log is of a policy that does not adapt.
    """
    policy = log.policy
    if not isinstance(policy, Adaptive):
        raise DataError(f"the events are those of {policy.spec}, which changes nothing while it trains")
    answers = read_answers(log)
    num_steps = max(
        [run.steps // max(1, run.num_workers), *(review.clock for answer in answers for review in answer.reviews)]
    )
    losses = tuple((point.clock, point.loss) for point in run.losses if isfinite(point.loss))
    times = _TrainingClock(run, num_steps=num_steps)
    spans = read_spans(answers, policy=policy, num_steps=num_steps, at_s=times.at_s)
    chapters = tuple(_chapters(answers, spans, run=run, times=times))
    return Story(
        policy=run.policy,
        task=run.task,
        world=run.world,
        seed=run.seed,
        num_workers=run.num_workers,
        status=run.status,
        error=run.error,
        num_steps=num_steps,
        wall_s=run.wall_s,
        metric_name=run.metric_name,
        metric_goal=run.metric_goal,
        final_metric=run.final_metric,
        bytes_sent=run.bytes_sent_total,
        saved_s=sum(chapter.saved_s for chapter in chapters),
        bytes_saved=sum(chapter.bytes_saved for chapter in chapters),
        first_reason=next((answer.steer.reason for answer in answers if answer.steer), ""),
        components=components_of(policy),
        chapters=chapters,
        spans=spans,
        losses=losses,
        noises=noises_of(answers),
        bsp=None if bsp is None else _bsp_run(bsp),
    )


def recorded_changes(run: RunResult) -> list[Change] | None:
    """The changes that a result tells of, without its event log; None if its decisions are of another kind."""
    changes: list[Change] = []
    shares: tuple[float, ...] = ()
    times = _TrainingClock(run, num_steps=run.steps // max(1, run.num_workers))
    for decision in run.decisions:
        try:
            change = Change(
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
        except (KeyError, TypeError, ValueError):
            return None
        shares = change.shares
        if change.policy != change.before or change.reshared or change.restored:
            changes.append(change)
    return changes


def _chapters(
    answers: Sequence[Answer], spans: Sequence[Span], *, run: RunResult, times: "_TrainingClock"
) -> Iterator[Chapter]:
    groups: list[list[Span]] = []
    changes: list[Change | None] = []
    for before, span in zip((None, *spans), spans, strict=False):
        change = None if before is None else _change(answers, before, span, times=times)
        if before is None or change is not None:
            groups.append([])
            changes.append(change)
        groups[-1].append(span)
    exchanges = [_num_exchanges(group) for group in groups]
    bytes_each = run.bytes_sent_total / max(1, sum(exchanges))
    saved_so_far_s = 0.0
    for group, change, num_exchanges in zip(groups, changes, exchanges, strict=True):
        first, last = group[0], group[-1]
        num_steps = last.end - first.begin
        saved_s = sum(span.saved_s for span in group)
        saved_so_far_s += saved_s
        yield Chapter(
            begin=first.begin,
            end=last.end,
            begin_s=times.at_s(first.begin),
            end_s=times.at_s(last.end),
            policy=first.policy,
            slack=first.slack,
            shares=first.shares,
            change=change,
            step_s=sum(span.num_steps * span.step_s for span in group) / num_steps,
            bsp_step_s=sum(span.num_steps * span.bsp_step_s for span in group) / num_steps,
            saved_s=saved_s,
            saved_so_far_s=saved_so_far_s,
            num_exchanges=num_exchanges,
            bytes_saved=(num_steps - num_exchanges) * bytes_each,
            limits=_limits(group),
        )


def _change(answers: Sequence[Answer], before: Span, span: Span, *, times: "_TrainingClock") -> Change | None:
    """What became different from one span to the next, if anything did."""
    answer = next(answer for answer in answers if answer.steer and answer.steer.clock == span.begin)
    steer = answer.steer
    assert steer is not None, "a span that is not the first begins with an answer"
    kept = [one.steer.clock for one in answers if one.steer and one.steer.keep and one.steer.clock < span.begin]
    restored = steer.restore and bool(kept)
    if (span.policy, span.shares) == (before.policy, before.shares) and not restored:
        return None
    return Change(
        clock=span.begin,
        at_s=times.at_s(span.begin),
        before=before.policy,
        policy=span.policy,
        shares=span.shares,
        reshared=span.shares != before.shares,
        restored=restored,
        restored_to=kept[-1] if restored else None,
        reason=steer.reason,
        inputs=dict(steer.inputs),
        pace_s=answer.pace_s,
    )


def _num_exchanges(spans: Sequence[Span]) -> int:
    period = parse_policy(spans[0].policy).period
    return spans[-1].end // period - spans[0].begin // period


def _limits(spans: Iterable[Span]) -> tuple[Limit, ...]:
    found: dict[str, Limit] = {}
    for span in spans:
        if span.limited_by is not None and span.free_step_s is not None:
            num_steps = found[span.limited_by].num_steps if span.limited_by in found else 0
            found[span.limited_by] = Limit(
                component=span.limited_by, num_steps=num_steps + span.num_steps, free_step_s=span.free_step_s
            )
    return tuple(sorted(found.values(), key=lambda limit: -limit.num_steps))


def _bsp_run(run: RunResult) -> BspRun:
    return BspRun(wall_s=run.wall_s, final_metric=run.final_metric, bytes_sent=run.bytes_sent_total)


class _TrainingClock:
    """Training time at a step: on the straight line between the recorded losses, which have both."""

    def __init__(self, run: RunResult, *, num_steps: int) -> None:
        known: Mapping[float, float] = {0.0: 0.0, **{point.clock: point.at_s for point in run.losses}}
        self._points = sorted({**known, max(num_steps, *known): run.wall_s}.items())

    def at_s(self, clock: float) -> float:
        """Seconds of training when the step that ends at ``clock`` was finished."""
        place = bisect_right(self._points, (clock, float("inf")))
        if place == len(self._points):
            return self._points[-1][1]
        (before, before_s), (after, after_s) = itertools.islice(self._points, place - 1, place + 1)
        return before_s + (after_s - before_s) * (clock - before) / (after - before)
