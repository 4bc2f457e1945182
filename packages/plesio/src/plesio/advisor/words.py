"""The answer in plain sentences: what to use, why, how sure that is, and where it would be another."""

import math
from collections.abc import Iterator

from plesio.advisor.advice import Advice
from plesio.advisor.candidates import ADAPTIVE, BASELINE, SHARDED
from plesio.advisor.flips import GANG, Flip
from plesio.advisor.row import Row
from plesio.advisor.setting import paces
from plesio.core.units import counted, format_bandwidth, format_bytes, format_seconds
from plesio.policies import parse_policy
from plesio.policies.spec import describe

CLEAR = 0.02


def sentences_of(advice: Advice) -> list[str]:
    """Return the sentences, the verdict first."""
    return [
        _verdict(advice),
        *_why(advice),
        *_certainty(advice),
        *_memory(advice),
        *_workers(advice),
        *_failures(advice),
        *(_turn(flip) for flip in advice.flips if flip.turns and flip.axis != "failures"),
        *filter(None, [advice.question.at.cluster.assumes]),
        _goal(advice),
    ]


def _verdict(advice: Advice) -> str:
    chosen, base = advice.chosen, advice.baseline
    if chosen.spec == SHARDED and not base.fits:
        limit = format_bytes(advice.question.at.memory_bytes or 0)
        return (
            f"bsp (DDP) does not fit: it needs {format_bytes(base.memory.total)} a worker, which has "
            f"{limit}; fsdp does, with {format_bytes(chosen.memory.total)}."
        )
    # bsp was chosen: the sentence says how near the next best came, if one was run
    reached = f"{advice.question.metric_name} {advice.level:.4g} in {_time(chosen)}"
    if chosen.spec == BASELINE:
        rival = _best_other(advice)
        if rival is None and advice.raced.prospect is not None:
            spec, expected_s = advice.raced.prospect
            return (
                f"Stay with bsp (DDP) for now: {reached}. Other runs were too short to tell; as far as it came, {spec} "
                f"would be there in {format_seconds(expected_s)}. Give it more time with --measure."
            )
        if rival is None:
            return f"Stay with bsp (DDP): {reached}{_no_rival(advice)}."
        won = 1 - rival.time_s / base.time_s
        if abs(won) < 5e-4:
            return f"Stay with bsp (DDP): {reached}; {rival.spec} is no faster."
        if won < 0:
            return f"Stay with bsp (DDP): {reached}; the next best, {rival.spec}, takes {-100 * won:.1f} % more."
        return f"Stay with bsp (DDP): {reached}; you would win {100 * won:.1f} % with {rival.spec}."
    # another was chosen: bsp is named beside it, with its time if it has one
    if math.isinf(base.time_s):
        return f"Use {chosen.spec}: {reached}. bsp (DDP) does not come to it within a run."
    if not base.fits:
        return f"Use {chosen.spec}: {reached}. bsp (DDP) does not fit."
    return (
        f"Use {chosen.spec}: {reached}, where bsp (DDP) takes {format_seconds(base.time_s)}: "
        f"{100 * (1 - chosen.time_s / base.time_s):.0f} % less{_costs(chosen, base)}."
    )


def _no_rival(advice: Advice) -> str:
    """Return why none of the other candidates has a time, as far as they were run."""
    others = [row for row in advice.rows if row.num_seeds and row.spec != advice.baseline.spec]
    if not others:
        return "; no other candidate was run"
    if len(others) == 1:
        only = others[0]
        why = "its run did not come to it" if only.how == "too late" else "it loses too much accuracy"
        return f"; {only.spec}, the only other candidate that was run, is no choice: {only.problem or why}"
    return f"; of {len(others)} other candidates that were run none is one to name (the table says why)"


def _time(row: Row) -> str:
    found = format_seconds(row.time_s)
    if math.isnan(row.low_s):
        return f"{found} ({'priced, not run' if row.how == 'priced' else 'one seed'})"
    return f"{found} ({format_seconds(row.low_s)} to {format_seconds(row.high_s)}, {row.num_seeds} seeds)"


def _costs(chosen: Row, base: Row) -> str:
    if chosen.cost is None or base.cost is None:
        return ""
    return f", at a cost of {chosen.cost:.3g} in place of {base.cost:.3g}"


def _best_other(advice: Advice) -> Row | None:
    base = advice.baseline.spec
    others = [row for row in advice.rows if row.ranked and row.how == "measured" and row.spec != base]
    tolerated = [row for row in others if row.lost is None or row.lost <= advice.question.tolerance]
    return min(tolerated, key=lambda row: row.time_s, default=None)


def _why(advice: Advice) -> Iterator[str]:
    base, chosen = advice.baseline, advice.chosen
    price = base.price
    exchange = min(price.exchange_s, price.waits_s)
    waiting = price.waits_s - exchange  # for the slowest of each step, be it slow for good or by chance
    parts = f"{format_seconds(price.compute_s)} computing"
    if waiting > 0.02 * price.step_s:
        parts += f", {format_seconds(waiting)} waiting for the slowest"
    parts += f", {format_seconds(exchange)} exchanging ({100 * exchange / price.step_s:.0f} %)"
    yield f"A step of bsp takes {format_seconds(price.step_s)} by the cost models: {parts}."
    if chosen.spec in (BASELINE, SHARDED):
        return
    what = "" if chosen.spec == ADAPTIVE else f" {describe(parse_policy(chosen.spec))}"
    if math.isfinite(chosen.samples):
        learns = (
            "and learns as much from a sample"
            if abs(chosen.samples - 1) < CLEAR
            else f"and needs {100 * abs(chosen.samples - 1):.0f} % {'more' if chosen.samples > 1 else 'fewer'} samples"
        )
        least = " at least" if chosen.spec == ADAPTIVE else ""
        yield f"{chosen.spec}'s step takes {format_seconds(chosen.price.step_s)}{least}, {learns}.{what}"
    if chosen.lost is not None:
        yield _accuracy(advice, chosen)


def _accuracy(advice: Advice, row: Row) -> str:
    unit = "points" if advice.question.is_share(abs(advice.raced.goal.level)) else "%"
    lost = row.lost or 0.0
    way = "below" if lost > 0 else "above"
    name = advice.question.metric_name
    return f"At the end of a whole run its {name} is {abs(lost):.2f} {unit} {way} that of bsp, seed 0."


def _certainty(advice: Advice) -> Iterator[str]:
    chosen = advice.chosen
    near = [
        row.spec
        for row in advice.rows
        if row.ranked and row.how == "measured" and row is not chosen and row.time_s <= 1.05 * chosen.time_s
    ]
    if near:
        yield f"Within 5 % of it: {', '.join(near[:4])}; take the one that you know best."
    out = [row for row in advice.rows if row.lost is not None and row.lost > advice.question.tolerance]
    for row in out:
        yield f"{row.spec} is left out, for its accuracy. {_accuracy(advice, row)}"
    if chosen.how == "measured" and chosen.spec != BASELINE and chosen.lost is None:
        why = "there was no time left" if advice.raced.goal.complete else "bsp's own run was not a whole one"
        yield (
            f"Whether {chosen.spec} ends within the tolerance of {advice.question.tolerance:g} points was not checked: "
            f"{why}; give it more time with --measure."
        )
    if chosen.how == "measured" and chosen.num_seeds < 2:
        yield "One seed each: what seeds differ by is not known; give it more time with --measure."


def _memory(advice: Advice) -> Iterator[str]:
    limit = advice.question.at.memory_bytes
    if limit is None:
        yield (
            f"The cluster does not say how much memory a worker has; {advice.chosen.spec} needs "
            f"{format_bytes(advice.chosen.memory.total)} for the model and a step of it."
        )
        return
    out = [row.spec for row in advice.rows if not row.fits]
    if out:
        yield f"Of {format_bytes(limit)} a worker, {counted(len(out), 'candidate')} would need more: {', '.join(out)}."


def _workers(advice: Advice) -> Iterator[str]:
    at = advice.question.at
    pace = paces(at.compute_s)
    fastest = min(pace)
    if at.slow_ranks:
        rates = [1 / step_s for step_s in pace]
        shares = ", ".join(f"{100 * rate / sum(rates):.1f}" for rate in rates[:16])
        yield (
            f"Workers are not equal (the slowest takes {max(pace) / fastest:.1f} times as long): shares of the batch "
            f"in proportion would be {shares} %; adaptive deals them so, on the store faster workers take more."
        )
    if at.has_racks:
        parts = "; ".join(f"ranks {ranks[0]} to {ranks[-1]} in rack {number}" for number, ranks in enumerate(at.racks))
        yield f"Start the hosts in the order of the cluster file, so that a ring enters each rack once: {parts}."
    if advice.chosen.shares:
        dealt = ", ".join(f"{100 * share:.1f}" for share in advice.chosen.shares[:16])
        yield f"In its run {advice.chosen.spec} dealt {dealt} % of the batch."
    if advice.chosen.price.servers is not None:
        yield f"The store is best on {counted(advice.chosen.price.servers, 'server')} here."


def _failures(advice: Advice) -> Iterator[str]:
    failures = advice.question.failures
    if failures is None:
        return
    chosen = advice.chosen
    gang = failures.gang()
    begins = "would never end" if math.isinf(gang) else f"would take {100 * (gang - 1):.1f} % more"
    yield (
        f"With a failure of some worker every {format_seconds(failures.mtbf_s / failures.num_workers)}, "
        f"{chosen.spec} takes {100 * (chosen.slowdown - 1):.1f} % more; bsp with a gang start, which begins again from "
        f"its last state, {begins}."
    )


def _turn(flip: Flip) -> str:
    what = {"bandwidth": "bandwidth of the links", "imbalance": "slowest worker", "model size": "model"}[flip.axis]
    clauses = [f"up to {_at(flip, value)} {before}" for value, before, _ in flip.turns if before]
    last = flip.winners[-1]
    if last and last != GANG:
        clauses.append(f"beyond that {last}")
    return f"By the {what}: {', '.join(clauses)} (priced; figure {flip.axis})."


def _at(flip: Flip, value: float) -> str:
    if flip.unit == "bytes/s":
        return format_bandwidth(value)
    if flip.unit == "bytes":
        return format_bytes(value)
    return format_seconds(value) if flip.unit == "s" else f"{value:.1f} times the others' time"


def _goal(advice: Advice) -> str:
    goal, question = advice.raced.goal, advice.question
    candidates = [row for row in advice.rows if row.fits and row.spec != SHARDED]
    num_run = sum(row.num_seeds > 0 for row in candidates)
    rest = (
        "" if num_run == len(candidates) else f" Of {len(candidates)} candidates {num_run} were run, the others priced."
    )
    runs = f"{counted(advice.raced.num_runs, 'virtual run')} of your code in {format_seconds(advice.raced.spent_s)}"
    if goal.target is not None:
        return f"Timed to the target, {question.metric_name} {advice.level:.4g}, by {runs}.{rest}"
    missed = "" if question.target is None else f" The target of {question.target:.4g} is beyond what was run."
    length = "a run" if goal.complete else f"the first {goal.samples / 0.85:,.0f} samples, all that --measure allows"
    return (
        f"Timed to {question.metric_name} {advice.level:.4g}, to which bsp comes after 85 % of {length}, by {runs}."
        f"{missed}{rest}"
    )
