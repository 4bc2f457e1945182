"""A small table for each change: the progress that each setting was expected to make, and what came."""

from plesio.core.charts import Table
from plesio.core.units import counted, format_seconds
from plesio.policies.adaptive.compared import ComparedSetting
from plesio.report.explanation.model import Change, Chapter

_HEADERS = ("setting", "a step", "worth of a step", "progress a second")


def compared_table(chapter: Chapter) -> Table | None:
    """Return the settings that the chapter's change was chosen from, and what came; None where none were compared.

    Worth and progress are in steps of bsp; intervals are a standard deviation to either side.
    """
    change = chapter.change
    if change is None or not change.compared:
        return None
    rows = [_row(one, note=" (chosen)" if one.spec == change.policy else "") for one in change.compared]
    came = _came(change, step_s=chapter.step_s)
    if came is not None:
        rows.append(_row(came, note=", measured"))
    return Table(title=f"After {counted(change.clock, 'step')}", headers=_HEADERS, rows=rows)


def trial_text(change: Change) -> str:
    """Describe how the trial of a change ended; with a space before it, and empty where it was to go on."""
    end = change.trial_end
    if change.trial_ended is None:
        return ""
    if end is None:
        return f" It was left after {counted(change.trial_ended, 'step')}, before its trial ended."
    when = f" Its trial ended after {counted(change.trial_ended, 'step')}:"
    if end.failed:
        return f"{when} the loss was {end.excess:.3g} above the one to be expected, and {end.most:.3g} is too much."
    if end.worth_low is None or end.worth_high is None:
        return f"{when} the loss showed no harm."
    return f"{when} a step was worth {end.worth_low:.2f} to {end.worth_high:.2f} of bsp's."


def _came(change: Change, *, step_s: float) -> ComparedSetting | None:
    end = change.trial_end
    if end is None or end.worth_low is None or end.worth_high is None:
        return None
    return ComparedSetting(
        spec=change.policy, step_s=step_s, worth_low=end.worth_low, worth_high=end.worth_high, score=0.0
    )


def _row(one: ComparedSetting, *, note: str) -> tuple[str, ...]:
    slowest, fastest = one.progress_per_s
    worth, progress = f"{one.worth_low:.2f} to {one.worth_high:.2f}", f"{slowest:.3g} to {fastest:.3g}"
    return f"{one.spec}{note}", format_seconds(one.step_s), worth, progress
