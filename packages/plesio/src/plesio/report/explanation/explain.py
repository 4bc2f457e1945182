"""Explains a run whose policy changes while it trains: what was in force when, why, and how that did against bsp.

Whether it learned sooner or better than bsp is known only from a run of bsp. What the policy predicts is the time of
steps, and of nothing else; a schedule predicts nothing. Seconds saved are seconds of stepping, against bsp with equal
shares, by the policy's own prediction.

What bsp would have sent is an exchange a step, each as large as the run's own were on average, or would have been in
full. Where the n workers of R racks stepped by racks, exchanges are counted as rings send them: a step within the racks
is (n - R)/(n - 1), and an exchange between racks (R - 1)/(n - 1), and half of a step to spread the mean
(`plesio.runtime.worker.exchange.racks`).
"""

from collections.abc import Iterator, Sequence
from math import isfinite

from plesio.core.errors import DataError
from plesio.core.results import RunResult
from plesio.policies import BSP, Adaptive, EventLog, Hierarchical, Resumed, Steer, Switch, parse_policy
from plesio.policies.adaptive.compared import TrialEnd, compared_in, trial_end_in
from plesio.policies.adaptive.system.setting import IN_LOW_RANK, SYNCHRONOUS
from plesio.policies.compression import NO_COMPRESSION
from plesio.report.explanation.model import Change, Chapter, ExplainedReview, Explanation, PolicySpan
from plesio.report.explanation.spans import RecordedClock, ReviewRound, noises_of, read_answers, read_spans, slack_of
from plesio.report.explanation.stages import StoreSteps, read_schedule
from plesio.report.explanation.verdict import outcome_of
from plesio.report.statistics import Difference

_MANY = 2**20
"""Numbers in a tensor that is taken to compare compressions."""


def explanation_of(
    log: EventLog,
    run: RunResult,
    *,
    bsp: RunResult | None = None,
    num_seeds: int = 1,
    over_seeds: Difference | None = None,
    how_to_know: str = "",
) -> Explanation:
    """Explain a run whose policy adapts or switches, from its event log and its result.

    ``bsp`` is the run under bsp to hold it against; ``how_to_know`` is what to type where there is none. ``over_seeds``
    is how far the final metrics of all finished runs of both differ, over ``num_seeds``.

    Raises:
        DataError: The log is of another policy; or of one that switches, and nobody knows when.
    """
    answers, steps = read_answers(log), StoreSteps(log)
    losses = tuple((point.clock, point.loss) for point in run.losses if isfinite(point.loss))
    # what a policy answered says when it changed; a schedule only says when it was to change
    match log.policy:
        case Adaptive():
            clocks = [review.clock for answer in answers for review in answer.reviews]
            num_steps = max([*clocks, _last_clock(run, log)])
            times = RecordedClock(run, num_steps=num_steps)
            spans = read_spans(answers, num_steps=num_steps, at_s=times.at_s)
            noises = noises_of(answers)
            first_reason = next((answer.steer.reason for answer in answers if answer.steer and answer.decides), "")
        case Switch() as policy:
            spans, times = read_schedule(log, run, policy=policy, steps=steps)
            num_steps = spans[-1].end if spans else 0
            noises = ()
            first_reason = f"the schedule first changes at step {policy.clocks[0]}"
        case policy:
            raise DataError(f"the events are those of {policy.spec}, which changes nothing while it trains")
    # answers that decide nothing would be listed as changes
    reviews = tuple(_review(answer.steer, times=times) for answer in answers if answer.steer and answer.decides)
    chapters = tuple(_chapters(answers, reviews, spans, steps=steps, run=run, times=times))
    return Explanation(
        policy=run.policy,
        task=run.task,
        world=run.world,
        seed=run.seed,
        num_workers=run.num_workers,
        status=run.status,
        error=run.error,
        num_steps=num_steps,
        metric_name=run.metric_name,
        metric_goal=run.metric_goal,
        target=run.target,
        outcome=outcome_of(run, target=run.target),
        bsp=None if bsp is None else outcome_of(bsp, target=run.target),
        num_seeds=num_seeds,
        over_seeds=over_seeds,
        how_to_know=how_to_know,
        server_bytes=sum(num_bytes for link, num_bytes in run.bytes_sent.items() if link != "collective"),
        saved_s=sum(chapter.saved_s for chapter in chapters),
        bytes_saved=sum(chapter.bytes_saved for chapter in chapters),
        first_reason=first_reason,
        began_slow=any(review.began_slow for answer in answers[:1] for review in answer.reviews),
        chapters=chapters,
        spans=spans,
        reviews=reviews,
        losses=losses,
        noises=noises,
    )


def _last_clock(run: RunResult, log: EventLog) -> int:
    """Return each worker's steps by the run's totals, or the last recorded loss's clock if workers came or went."""
    clocks = [point.clock for point in run.losses]
    if clocks and any(isinstance(entry.event, Resumed) for entry in log.entries):
        return max(clocks)
    return run.steps // max(1, run.num_workers)


def _review(steer: Steer, *, times: RecordedClock) -> ExplainedReview:
    return ExplainedReview(
        clock=steer.clock,
        at_s=times.at_s(steer.clock),
        policy=steer.policy,
        reason=steer.reason,
        inputs=dict(steer.inputs),
    )


def _chapters(
    answers: Sequence[ReviewRound],
    reviews: Sequence[ExplainedReview],
    spans: Sequence[PolicySpan],
    *,
    steps: StoreSteps,
    run: RunResult,
    times: RecordedClock,
) -> Iterator[Chapter]:
    groups: list[list[PolicySpan]] = []
    changes: list[Change | None] = []
    for before, span in zip((None, *spans), spans, strict=False):
        change = None if before is None else _change(answers, before, span, times=times)
        if before is None or change is not None:
            groups.append([])
            changes.append(change)
        groups[-1].append(span)
    # bytes are not recorded by chapter: those of the run are divided by full exchanges
    exchanges = [_num_exchanges(group) for group in groups]
    num_racks = max((len({review.rack for review in answer.reviews}) for answer in answers), default=1)
    low_rank_share = max((review.low_rank_share for answer in answers for review in answer.reviews), default=1.0)
    sent_shares = [_sent_share(group[0].policy, low_rank_share=low_rank_share) for group in groups]
    in_full = [
        _num_in_full(group, sent_share=share, num_racks=num_racks, num_workers=run.num_workers)
        for group, share in zip(groups, sent_shares, strict=True)
    ]
    bytes_each = run.bytes_sent_total / max(1.0, sum(in_full))
    saved_so_far_s = 0.0
    each = zip(groups, changes, exchanges, sent_shares, in_full, strict=True)
    for group, change, num_exchanges, sent_share, num_in_full in each:
        first, last = group[0], group[-1]
        num_steps = last.end - first.begin
        saved_s = sum(span.saved_s for span in group)
        saved_so_far_s += saved_s
        # on the store workers make unequal numbers of steps
        on_store = parse_policy(first.policy).exchange == "store"
        step_s = sum(span.num_steps * span.step_s for span in group) / num_steps
        predicts = first.bsp_step_s is not None
        yield Chapter(
            begin=first.begin,
            end=last.end,
            begin_s=times.at_s(first.begin),
            end_s=times.at_s(last.end),
            policy=first.policy,
            slack=first.slack,
            shares=first.shares,
            change=change,
            latest=next((one for one in reversed(reviews) if first.begin < one.clock < last.end), None),
            step_s=step_s,
            bsp_step_s=step_s + saved_s / num_steps if predicts else None,
            saved_s=saved_s,
            saved_so_far_s=saved_so_far_s,
            steps_made=tuple(steps.by_worker(first.begin, last.end).values()) if on_store else (),
            num_exchanges=num_exchanges,
            num_compressed=num_exchanges if sent_share < 1 else 0,
            bytes_saved=(num_steps - num_in_full) * bytes_each if predicts else 0.0,
        )


def _change(
    answers: Sequence[ReviewRound], before: PolicySpan, span: PolicySpan, *, times: RecordedClock
) -> Change | None:
    """Find what became different from one span to the next; None if nothing did."""
    place = next(place for place, one in enumerate(answers) if one.steer and one.steer.clock == span.begin)
    # a new group goes on under what the last review was answered, which had not come into force yet
    answer = next((one for one in reversed(answers[: place + 1]) if one.decides), answers[place])
    steer = answer.steer
    assert steer is not None, "a span that is not the first begins with an answer"
    kept = [one.steer.clock for one in answers if one.steer and one.steer.keep and one.steer.clock < span.begin]
    restored = steer.restore and bool(kept)
    if (span.policy, span.shares) == (before.policy, before.shares) and not restored:
        return None
    trial_end, trial_ended = _trial_of(answers, place)
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
        compared=tuple(compared_in(dict(steer.inputs))),
        trial_end=trial_end,
        trial_ended=trial_ended,
        pace_s=answer.pace_s,
    )


def _trial_of(answers: Sequence[ReviewRound], place: int) -> tuple[TrialEnd | None, int | None]:
    """Return the end of the trial of the change in one of the answers, and its clock.

    If the policy was left first, there is no end, and the clock is that of the next change.
    """
    change = answers[place].steer
    if change is None or not _is_tried(change) or _num_known(answers[: place + 1]) < 2:
        return None, None
    for answer in answers[place + 1 :]:
        if answer.steer is not None and answer.decides:
            end = trial_end_in(dict(answer.steer.inputs))
            if end is not None or answer.steer.policy != change.policy:
                return end, answer.steer.clock
    return None, None


def _num_known(answers: Sequence[ReviewRound]) -> int:
    """Count the reviews whose losses a trial could be held against; a change that is not tried begins anew."""
    num_known = 0
    for answer in answers:
        num_known += bool(answer.reviews) and all(isfinite(review.loss) for review in answer.reviews)
        if answer.steer is not None and answer.steer.policy != answer.steer.before and not _is_tried(answer.steer):
            num_known = 0
    return num_known


def _is_tried(steer: Steer) -> bool:
    """Return True if an answer changes to more slack or, with as much, to a new kind of setting."""
    if steer.policy == SYNCHRONOUS.spec:
        return False
    more = slack_of(steer.policy) - slack_of(steer.before)
    return more > 0 or (more == 0 and _kind(steer.policy) != _kind(steer.before))


def _kind(spec: str) -> tuple[type, str]:
    policy = parse_policy(spec)
    return type(policy), spec if isinstance(policy, BSP) else ""


def _num_exchanges(spans: Sequence[PolicySpan]) -> int:
    period = parse_policy(spans[0].policy).period
    return spans[-1].end // period - spans[0].begin // period


def _num_in_full(spans: Sequence[PolicySpan], *, sent_share: float, num_racks: int, num_workers: int) -> float:
    """Count the full exchanges of all workers with as many bytes; the module's head has the formula."""
    count = _num_exchanges(spans)
    if not isinstance(parse_policy(spans[0].policy), Hierarchical):
        return count * sent_share
    within = (num_workers - num_racks) / (num_workers - 1)
    between = (num_racks - 1) / (num_workers - 1) * sent_share + within / 2
    return (spans[-1].end - spans[0].begin) * within + count * between


def _sent_share(spec: str, *, low_rank_share: float) -> float:
    """Return the bytes of an exchange under this policy, as a share of full ones; in low rank as workers report."""
    if spec == IN_LOW_RANK.spec:
        return low_rank_share
    compression = getattr(parse_policy(spec), "compression", NO_COMPRESSION)
    return float(compression.payload_bits(_MANY) / NO_COMPRESSION.payload_bits(_MANY))
