"""The explanation of a run that changed in plain sentences: how it began, one for each change, and what was predicted.

What it came to beside bsp is told by `plesio.report.explanation.verdict`, before all this. Seconds that stand against a
prediction are called step time, for nothing says that the steps taught as much.
"""

import re
import statistics
from collections.abc import Iterator, Sequence

from plesio.core.units import counted, format_bytes, format_seconds, listed
from plesio.policies import Hierarchical, parse_policy
from plesio.report.explanation.compared import trial_text
from plesio.report.explanation.model import Change, Chapter, ExplainedReview, Explanation
from plesio.report.explanation.verdict import ABOUT_EQUAL
from plesio.report.sentences import ratio_text, share_text

_MUCH = 0.1
"""A share of a time that is worth a word."""
_MOST_SHARES = 8
"""More workers than these are not listed one by one."""
_NUMBERS = re.compile(r"\d[\d.,]*(e[+-]?\d+)?( (ns|µs|ms|s|%|steps?|points?)\b)?")
_NO_FURTHER = re.compile(r": back to bsp( and to the last good state)?$")


def heading_text(explanation: Explanation) -> str:
    num_changes = counted(len(explanation.changes), "change")
    where = "" if explanation.world == "process" else f" in the {explanation.world} world"
    workers = counted(explanation.num_workers, "worker")
    return (
        f"{explanation.task} under {explanation.policy}, seed {explanation.seed}, {workers}{where}: "
        f"{num_changes} in {counted(explanation.num_steps, 'step')}, {format_seconds(explanation.outcome.wall_s)}."
    )


def explanation_sentences(explanation: Explanation) -> list[str]:
    """Describe how the run began, and each change with its step times; in a single sentence if nothing changed."""
    if not explanation.chapters:
        return ["No step was finished, so there is nothing to tell."]
    first = explanation.chapters[0]
    if not explanation.changes:
        reason = first.latest.reason if first.latest else explanation.first_reason
        return [unchanged_text(num_steps=first.num_steps, policy=first.policy, reason=reason)]
    return [
        _beginning(explanation, first),
        *(_chapter_sentence(explanation, chapter) for chapter in explanation.changes),
    ]


def closing_sentences(explanation: Explanation) -> list[str]:
    """Tell what the steps took in all, beside the prediction for bsp; nothing where all of them were bsp's."""
    return [] if all(map(_is_plain_bsp, explanation.chapters)) else [_total_sentence(explanation)]


def change_text(change: Change) -> str:
    """Describe a change, its time and its reason, without its effect; without the full stop."""
    when = f"After {counted(change.clock, 'step')} ({format_seconds(change.at_s)})"
    return f"{when} {listed(list(_deeds(change)))}, {listed(list(_grounds(change)))}"


def unchanged_text(*, num_steps: int, policy: str, reason: str) -> str:
    """State that a run went through under one policy, and why, if the policy was ever asked."""
    asked = f"because {_clause(reason)}" if reason else "for it ended before the first review"
    return f"Nothing changed: all {counted(num_steps, 'step')} ran under {policy}, {asked}."


def upheld_text(latest: ExplainedReview | None, *, reason: str) -> str:
    """Explain why the latest review left in force what came into force for ``reason``; with a space before it.

    Empty where there was no such review, or it gave the same reason with other figures.
    """
    if latest is None or _NUMBERS.sub("", latest.reason) == _NUMBERS.sub("", reason):
        return ""
    when = f"At the latest review, after {counted(latest.clock, 'step')},"
    return f" {when} it stayed with this because {_clause(latest.reason)}."


def percent(share: float) -> str:
    """Write a worker's share, with two digits at least.

    >>> percent(0.301), percent(0.097)
    ('30 %', '9.7 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


def _beginning(explanation: Explanation, chapter: Chapter) -> str:
    if _is_plain_bsp(chapter):
        steps = f"{counted(chapter.num_steps, 'step')} in {format_seconds(chapter.end_s)}"
        text = f"It began under bsp: {steps}, {format_seconds(chapter.end_s / chapter.num_steps)} each."
    else:
        why = ", for sending all parameters took a second or more" if explanation.began_slow else ""
        text = f"It began under {chapter.policy}{why}. A step took {_outcome(explanation, chapter)}"
    return f"{text}{upheld_text(chapter.latest, reason='')}"


def _chapter_sentence(explanation: Explanation, chapter: Chapter) -> str:
    assert chapter.change is not None, "all chapters but the first begin with a change"
    outcome = f"A step then took {_outcome(explanation, chapter)}"
    upheld = upheld_text(chapter.latest, reason=chapter.change.reason)
    return f"{change_text(chapter.change)}. {outcome}{trial_text(chapter.change)}{upheld}"


def _outcome(explanation: Explanation, chapter: Chapter) -> str:
    """Tell what a step took, and would have under bsp by prediction, how many each worker made, and the time of all."""
    until = "until the end" if chapter.end == explanation.num_steps else f"until step {chapter.end}"
    return f"{_took_text(chapter, until=until)}{_steps_made_text(chapter)}. {_clock_text(chapter)}."


def _clock_text(chapter: Chapter) -> str:
    """Tell the time from one change to the next, and what of it was none of its steps'."""
    text = f"These steps took {format_seconds(chapter.took_s)} by the clock"
    exchange_s = chapter.took_s - chapter.num_steps * chapter.step_s
    # on the store workers make unequal numbers of steps, whose mean is not the time of the furthest one
    if chapter.steps_made or exchange_s < _MUCH * chapter.took_s:
        return text
    return f"{text}, {format_seconds(exchange_s)} of it the exchange that ended them"


def _took_text(chapter: Chapter, *, until: str) -> str:
    took = format_seconds(chapter.step_s)
    if _is_plain_bsp(chapter) or chapter.bsp_step_s is None:
        return f"{took}, {until}"
    if abs(chapter.saved_s) < ABOUT_EQUAL * chapter.num_steps * chapter.bsp_step_s:
        return f"{took}, about as long as predicted for bsp, {until}"
    predicted = f"the {format_seconds(chapter.bsp_step_s)} predicted for bsp"
    text = f"{took} instead of {predicted}: {_step_time_text(chapter.saved_s)} {until}"
    if chapter.saved_so_far_s != chapter.saved_s:
        text += f", {_step_time_text(chapter.saved_so_far_s).removesuffix(' step time')} since the beginning"
    return text


def _steps_made_text(chapter: Chapter) -> str:
    """Describe how many steps each worker made on the store, where they were not equally many."""
    fewest, most = min(chapter.steps_made, default=0), max(chapter.steps_made, default=0)
    return "" if fewest == most else f"; the workers made between {fewest} and {counted(most, 'step')}"


def _is_plain_bsp(chapter: Chapter) -> bool:
    return chapter.policy == "bsp" and not chapter.shares


def _deeds(change: Change) -> Iterator[str]:
    if change.policy != change.before:
        yield f"it went from {change.before} to {change.policy}"
    if change.reshared and change.shares:
        yield f"it gave the workers {_shares_text(change.shares)} of each round"
    elif change.reshared:
        yield "it gave all workers equal shares again"
    if change.restored:
        kept = "the last good state" if change.restored_to is None else f"the state of step {change.restored_to}"
        yield f"it took the workers back to {kept}"


def _grounds(change: Change) -> Iterator[str]:
    """Yield the reasons; shares are not what the policy's reason speaks of."""
    if change.reshared:
        yield f"because {_pace_text(change.pace_s, shares=change.shares)}"
    if change.restored or change.policy != change.before:
        yield f"because {_clause(change.reason)}"


def _pace_text(pace_s: Sequence[float], *, shares: Sequence[float]) -> str:
    if not shares:
        return "they take about as long as each other"
    usual = statistics.median_low(shares)
    own = [rank for rank, share in enumerate(shares) if abs(share - usual) > 1e-9]
    others = [rank for rank in range(len(shares)) if rank not in own]
    if len(pace_s) != len(shares) or len(own) > _MOST_SHARES or not own:
        return "they are not equally fast"
    times = [f"{format_seconds(pace_s[rank])} on worker {rank}" for rank in own]
    times.append(f"{format_seconds(statistics.fmean(pace_s[rank] for rank in others))} on the others")
    return f"a step with equal shares took {listed(times)}"


def _shares_text(shares: Sequence[float]) -> str:
    if len(shares) > _MOST_SHARES:
        return f"shares between {percent(min(shares))} and {percent(max(shares))}"
    return f"shares of {listed([percent(share) for share in shares])}"


def _total_sentence(explanation: Explanation) -> str:
    wall_s, bytes_sent = explanation.outcome.wall_s, explanation.outcome.bytes_sent
    text = f"In all it took {format_seconds(wall_s)}"
    if not explanation.predicts:
        collective, to_servers = map(format_bytes, (bytes_sent - explanation.server_bytes, explanation.server_bytes))
        sent = f"{collective} in collectives and {to_servers} between workers and servers"
        return f"{text} and sent {format_bytes(bytes_sent)}: {sent}."
    predicted_s, saved_s = explanation.predicted_bsp_s, explanation.saved_s
    if explanation.bsp is not None:
        text += _beside_bsp(wall_s, explanation.bsp.wall_s, predicted_s=predicted_s)
    elif abs(saved_s) < ABOUT_EQUAL * predicted_s:
        text += ". Its steps took about as long as predicted for bsp"
    else:
        steps = f"{format_seconds(explanation.steps_s)}, where {format_seconds(predicted_s)} are predicted for bsp"
        text += f". Its steps took {steps}: {_step_time_text(saved_s)} ({share_text(abs(saved_s) / predicted_s)})"
    sent = _sent_text(explanation)
    return f"{text}. This is time, not what the steps taught.{f' {sent}.' if sent else ''}"


def _beside_bsp(wall_s: float, bsp_s: float, *, predicted_s: float) -> str:
    """Compare with the run of bsp, and say how far off the prediction for it was."""
    more_s = wall_s - bsp_s
    if abs(more_s) < ABOUT_EQUAL * bsp_s:
        text = ", as long as bsp"
    else:
        how = f"{format_seconds(abs(more_s))} {'more' if more_s > 0 else 'less'}"
        text = f", where bsp took {format_seconds(bsp_s)}: {how} ({share_text(abs(more_s) / bsp_s)})"
    text += f". For bsp {format_seconds(predicted_s)} had been predicted"
    if abs(predicted_s - bsp_s) < _MUCH * bsp_s:
        return text
    return f"{text}, {ratio_text(predicted_s / bsp_s)} what it took; what is predicted for it above is off by as much"


def _sent_text(explanation: Explanation) -> str:
    """Describe how less was sent than under bsp: by fewer exchanges, smaller ones, or both; empty if it was not."""
    exchanges = sum(chapter.num_exchanges for chapter in explanation.chapters)
    compressed = sum(chapter.num_compressed for chapter in explanation.chapters)
    by_racks = any(isinstance(parse_policy(chapter.policy), Hierarchical) for chapter in explanation.chapters)
    seldom = exchanges < explanation.num_steps
    if not (seldom or compressed) or not (explanation.bytes_saved > 0 or by_racks):
        return ""
    if seldom:
        text = f"It exchanged{' among racks' if by_racks else ''} {exchanges} times in {explanation.num_steps} steps"
        text += f" and compressed {compressed} of these exchanges" if compressed else ""
    else:
        text = f"It compressed {compressed} of its {exchanges} exchanges"
    part = explanation.bytes_saved / (explanation.outcome.bytes_sent + explanation.bytes_saved)
    if part < ABOUT_EQUAL and by_racks:
        return text
    together = "together " if seldom and compressed else ""
    return f"{text}, which {together}saved {format_bytes(explanation.bytes_saved)} ({share_text(part)})"


def _step_time_text(saved_s: float) -> str:
    return f"{format_seconds(abs(saved_s))} {'less' if saved_s >= 0 else 'more'} step time"


def _clause(reason: str) -> str:
    """Turn the policy's reason into a clause; its consequence has been stated already."""
    return re.sub(r"\b1 steps\b", "1 step", _NO_FURTHER.sub("", reason.rstrip(".")))
