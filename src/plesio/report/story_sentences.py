"""The story of a run that changed in plain sentences: how it began, one for each change, and what it came to."""

import re
import statistics
from collections.abc import Iterator, Sequence

from plesio.core.units import counted, format_bytes, format_seconds
from plesio.policies import Hierarchical, parse_policy
from plesio.report.metric import Metric
from plesio.report.sentences import listed, ratio_text, share_text
from plesio.report.story import Change, Chapter, Story

__all__ = [
    "change_text",
    "closing_sentences",
    "heading_text",
    "percent",
    "story_sentences",
    "unchanged_text",
]

_MOST_SHARES = 8
"""More workers than these are not listed one by one."""
_ABOUT_EQUAL = 0.01
"""A difference below this share of the time is none to people."""
_NO_FURTHER = re.compile(r": back to bsp( and to the last good state)?$")


def heading_text(story: Story) -> str:
    """The run, and how much happened in it."""
    num_changes = counted(len(story.changes), "change")
    where = "" if story.world == "process" else f" in the {story.world} world"
    return (
        f"{story.task} under {story.policy}, seed {story.seed}, {counted(story.num_workers, 'worker')}{where}: "
        f"{num_changes} in {counted(story.num_steps, 'step')}, {format_seconds(story.wall_s)}."
    )


def story_sentences(story: Story) -> list[str]:
    """How the run began, and each change with what it saved; a single sentence where nothing changed."""
    if not story.chapters:
        return ["No step was finished, so there is nothing to tell."]
    first = story.chapters[0]
    if not story.changes:
        return [unchanged_text(num_steps=first.num_steps, policy=first.policy, reason=story.first_reason)]
    return [_beginning(story, first), *(_chapter_sentence(story, chapter) for chapter in story.changes)]


def closing_sentences(story: Story) -> list[str]:
    """What it all came to, by prediction and, where bsp was run too, as measured."""
    return list(_closing(story))


def change_text(change: Change) -> str:
    """A change, when it was and why, without what came of it; without the full stop."""
    when = f"After {counted(change.clock, 'step')} ({format_seconds(change.at_s)})"
    return f"{when} {listed(list(_deeds(change)))}, {listed(list(_grounds(change)))}"


def unchanged_text(*, num_steps: int, policy: str, reason: str) -> str:
    """That a run went through under one policy, and why; ``reason`` is empty where the policy was never asked."""
    asked = f"because {_clause(reason)}" if reason else "for it ended before the first review"
    return f"Nothing changed: all {counted(num_steps, 'step')} ran under {policy}, {asked}."


def percent(share: float) -> str:
    """A worker's share, of two digits at least.

    >>> percent(0.301), percent(0.097)
    ('30 %', '9.7 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"


def _beginning(story: Story, chapter: Chapter) -> str:
    if _is_plain_bsp(chapter):
        steps = f"{counted(chapter.num_steps, 'step')} in {format_seconds(chapter.end_s)}"
        text = f"It began under bsp: {steps}, {format_seconds(chapter.step_s)} each"
    else:
        text = f"It began under {chapter.policy}. A step took {_outcome(story, chapter)}"
    return f"{text}.{_limits_text(chapter)}"


def _chapter_sentence(story: Story, chapter: Chapter) -> str:
    assert chapter.change is not None, "all chapters but the first begin with a change"
    outcome = f"A step then took {_outcome(story, chapter)}"
    return f"{change_text(chapter.change)}. {outcome}.{_limits_text(chapter)}"


def _outcome(story: Story, chapter: Chapter) -> str:
    """What a step took, what it would have taken under bsp by prediction, what that saved, and who made how many."""
    until = "until the end" if chapter.end == story.num_steps else f"until step {chapter.end}"
    return f"{_took_text(chapter, until=until)}{_steps_made_text(chapter)}"


def _took_text(chapter: Chapter, *, until: str) -> str:
    took = format_seconds(chapter.step_s)
    if _is_plain_bsp(chapter) or chapter.bsp_step_s is None:
        return f"{took}, {until}"
    if abs(chapter.saved_s) < _ABOUT_EQUAL * chapter.num_steps * chapter.bsp_step_s:
        return f"{took}, about as long as predicted for bsp, {until}"
    predicted = f"the {format_seconds(chapter.bsp_step_s)} predicted for bsp"
    text = f"{took} instead of {predicted}: {_saved_text(chapter.saved_s)} {until}"
    if chapter.saved_so_far_s != chapter.saved_s:
        text += f", {_saved_text(chapter.saved_so_far_s)} since the beginning"
    return text


def _steps_made_text(chapter: Chapter) -> str:
    """How many steps each worker made on the store, where they were not equally many."""
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
    """Why; shares are not what the policy's reason speaks of."""
    if change.reshared:
        yield f"because {_pace_text(change.pace_s, shares=change.shares)}"
    if change.restored or change.policy != change.before:
        yield f"because {_clause(change.reason)}"


def _pace_text(pace_s: Sequence[float], *, shares: Sequence[float]) -> str:
    """Which workers are slower than the others, or faster."""
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


def _limits_text(chapter: Chapter) -> str:
    """Who held the slack back, if anyone; with a space before it."""
    if not chapter.limits:
        return ""
    free = format_seconds(chapter.limits[0].free_step_s)
    held = sum(limit.num_steps for limit in chapter.limits)
    first = chapter.limits[0].component
    if len(chapter.limits) > 1:
        counts = [f"{limit.component} ({counted(limit.num_steps, 'step')})" for limit in chapter.limits]
        who = f"{listed(counts)} held it back"
    elif held == chapter.num_steps:
        who = f"{first} held it back all the while"
    else:
        who = f"{first} held it back for {held} of these steps"
    return f" With any slack a step would have taken {free}; {who}."


def _closing(story: Story) -> Iterator[str]:
    if story.status != "finished":
        error = f": {story.error.rstrip('.')}" if story.error else ""
        yield f"The run {'was interrupted' if story.status == 'interrupted' else 'failed'}{error}."
    if any(not _is_plain_bsp(chapter) for chapter in story.chapters):
        yield _total_sentence(story)
    if story.bsp is not None and story.bsp.wall_s > 0 and story.wall_s > 0 and story.status == "finished":
        yield _measured_sentence(story)


def _total_sentence(story: Story) -> str:
    text = f"In all it took {format_seconds(story.wall_s)}"
    if not story.predicts:
        collective, to_servers = map(format_bytes, (story.bytes_sent - story.server_bytes, story.server_bytes))
        sent = f"{collective} in collectives and {to_servers} between workers and servers"
        return f"{text} and sent {format_bytes(story.bytes_sent)}: {sent}."
    total_s, saved_s = story.predicted_bsp_s, story.saved_s
    if abs(saved_s) < _ABOUT_EQUAL * total_s:
        text += ", about as long as predicted for bsp"
    else:
        share = share_text(abs(saved_s) / total_s)
        text += f" instead of the {format_seconds(total_s)} predicted for bsp: {_saved_text(saved_s)} ({share})"
    sent = _sent_text(story)
    return f"{text}. {sent}." if sent else f"{text}."


def _sent_text(story: Story) -> str:
    """How less was sent than under bsp: by fewer exchanges, by smaller ones, or by both; empty where it was not."""
    exchanges = sum(chapter.num_exchanges for chapter in story.chapters)
    compressed = sum(chapter.num_compressed for chapter in story.chapters)
    by_racks = any(isinstance(parse_policy(chapter.policy), Hierarchical) for chapter in story.chapters)
    seldom = exchanges < story.num_steps
    if not (seldom or compressed) or not (story.bytes_saved > 0 or by_racks):
        return ""
    if seldom:
        text = f"It exchanged{' among racks' if by_racks else ''} {exchanges} times in {story.num_steps} steps"
        text += f" and compressed {compressed} of these exchanges" if compressed else ""
    else:
        text = f"It compressed {compressed} of its {exchanges} exchanges"
    part = story.bytes_saved / (story.bytes_sent + story.bytes_saved)
    if part < _ABOUT_EQUAL and by_racks:
        return text
    together = "together " if seldom and compressed else ""
    return f"{text}, which {together}saved {format_bytes(story.bytes_saved)} ({share_text(part)})"


def _measured_sentence(story: Story) -> str:
    assert story.bsp is not None, "there is a run to compare with"
    bsp, metric = story.bsp, Metric(name=story.metric_name, goal=story.metric_goal)
    gap_s = bsp.wall_s - story.wall_s
    speed = f"{ratio_text(bsp.wall_s / story.wall_s)} as fast"
    if abs(gap_s) < _ABOUT_EQUAL * bsp.wall_s:
        verdict = f"this run took about as long ({format_seconds(story.wall_s)})"
    elif gap_s > 0:
        verdict = f"this run took {format_seconds(story.wall_s)}, {format_seconds(gap_s)} less ({speed})"
    else:
        verdict = (
            f"this run was slower: it took {format_seconds(story.wall_s)}, {format_seconds(-gap_s)} more ({speed})"
        )
    text = f"Measured, bsp with the same seed took {format_seconds(bsp.wall_s)}; {verdict}"
    if bsp.bytes_sent > 0:
        ratio = story.bytes_sent / bsp.bytes_sent
        text += f", with {'as many' if abs(ratio - 1) < _ABOUT_EQUAL else f'{ratio_text(ratio)} the'} bytes"
    if bsp.cross_rack_bytes > 0:
        ratio = story.cross_rack_bytes / bsp.cross_rack_bytes
        text += f" and {'as many' if abs(ratio - 1) < _ABOUT_EQUAL else f'{ratio_text(ratio)} of those'} between racks"
    if bsp.final_metric is not None and story.final_metric is not None:
        values = f"{metric.text(story.final_metric)} against {metric.text(bsp.final_metric)}"
        text += f"; it ended at {metric.name} {values}"
    return f"{text}."


def _saved_text(saved_s: float) -> str:
    return f"{format_seconds(abs(saved_s))} {'saved' if saved_s >= 0 else 'lost'}"


def _clause(reason: str) -> str:
    """The policy's reason within a sentence; what it led to has been said already."""
    return re.sub(r"\b1 steps\b", "1 step", _NO_FURTHER.sub("", reason.rstrip(".")))
