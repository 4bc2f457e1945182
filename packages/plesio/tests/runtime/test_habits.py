"""The table of habits: under each policy, alone and with two processes, a habit is honoured, refused, or warned of.

``docs/habits.md`` is this table as a page; run as a program, with ``PYTHONPATH=packages/plesio/tests``, this writes it.
"""

import difflib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from runtime.habits.table import HABITS, Habit, Outcome, Script, run_all
from support.adaptive_specs import BY_TIME, STAYS
from support.processes import on_processes

for part in ("data", "models", "loops", "optimizers"):
    importlib.import_module(f"runtime.habits.{part}")

POLICIES = ("bsp", "local_sgd:4", "asp", "adaptive")
RELAXES = f"{BY_TIME},gain=0.001"
"""It leaves BSP where that saves anything."""
FIRST_QUICK = [pytest.param(policy, marks=[pytest.mark.slow] * (policy != "bsp")) for policy in POLICIES]
PAGE = Path(__file__).parents[4] / "docs" / "habits.md"
HEADER = "| habit | alone | " + " | ".join(f"`{policy}`" for policy in POLICIES) + " | the line |"
SIGNS = {"honoured": "–", "refused": "refused", "warned": "warned", "unnoticed": "**not noticed**"}
PROGRAM = Path(__file__).with_name("habits") / "program.py"
LIMIT_S = 280.0

pytestmark = pytest.mark.timeout(300)


def together(policy: str) -> dict[str, list[Outcome]]:
    """Run all habits on two processes; outcomes by habit and rank."""
    names = [habit.name for habit in HABITS]
    found = on_processes(2, PROGRAM, "run", limit_s=LIMIT_S, policy=policy, names=names)
    return {name: [outcomes[name] for outcomes in found] for name in names}


def faults(habit: Habit, outcomes: Sequence[Outcome], *, policy: str) -> list[str]:
    """List the differences between a habit's outcomes and the table."""
    expected, found = habit.expected(policy, alone=len(outcomes) == 1), {outcome.kind for outcome in outcomes}
    traces = [outcome.trace for outcome in outcomes if outcome.trace]
    if traces:
        return [f"{habit.name}: {traces[0].strip().splitlines()[-1]}"]
    # a line under `fallbacks` is in the result of the run, on one worker at least
    kind = "warned" if found == {"warned", "honoured"} else next(iter(found))
    by_one = found == {"refused", "honoured"} and any(outcome.at == "evaluate" for outcome in outcomes)
    if by_one:  # on the store one worker evaluates
        kind = "refused"
    if kind != ("honoured" if expected == "unnoticed" else expected) or (
        len(found) > 1 and kind != "warned" and not by_one
    ):
        return [f"{habit.name}: {sorted(found)} and not {expected}: {[(one.at, one.line) for one in outcomes]}"]
    if expected == "unnoticed":
        return []
    if expected == "refused":
        lines = [outcome.line for outcome in outcomes if outcome.kind == "refused"]
        return [f"{habit.name}: not one line"] if any(not line or "\n" in line for line in lines) else []
    try:
        habit.check([outcome.facts for outcome in outcomes], Script(policy, 0, len(outcomes)))
    except AssertionError as error:
        return [f"{habit.name}: silently another run: {error} {[outcome.facts for outcome in outcomes]}"]
    return []


@pytest.mark.parametrize("policy", FIRST_QUICK)
def test_alone_nothing_is_silently_wrong(policy: str):
    outcomes = run_all(policy=policy, names=[habit.name for habit in HABITS])
    wrong = [fault for habit in HABITS for fault in faults(habit, [outcomes[habit.name]], policy=policy)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("policy", FIRST_QUICK)
def test_with_two_processes_nothing_is_silently_wrong(policy: str):
    outcomes = together(STAYS if policy == "adaptive" else policy)
    wrong = [fault for habit in HABITS for fault in faults(habit, outcomes[habit.name], policy=policy)]
    assert not wrong, "\n".join(wrong)
    if policy == "bsp":
        told = said(PAGE.read_text(encoding="utf-8"))
        assert not [
            (line, told[name]) for name, line in lines_of(outcomes).items() if line and not alike(line, told[name])
        ]


@pytest.mark.slow
def test_where_adaptive_relaxes_nothing_is_silently_wrong():
    outcomes, wrong = together(RELAXES), []
    for habit in HABITS:
        found = outcomes[habit.name]
        wrong += [f"{habit.name}: {one.trace or one.line}" for one in found if one.trace or "\n" in one.line]
        if any(one.kind != "honoured" for one in found):
            continue
        if habit.kind in ("refused", "warned"):
            wrong.append(f"{habit.name}: silent")
        elif habit.kind == "honoured":
            # on the store or not: as where no worker waits
            wrong += faults(habit, found, policy="asp")
    assert not wrong, "\n".join(wrong)


def test_there_are_forty_habits_or_more():
    assert len({habit.name for habit in HABITS}) == len(HABITS) >= 40


def is_as_alone(habit: Habit) -> bool:
    return {habit.alone, *(habit.expected(policy, alone=False) for policy in POLICIES)} == {"honoured"}


def listed() -> list[str]:
    """The page's list: the habits of each part that are as alone everywhere."""
    parts = dict.fromkeys(habit.part for habit in HABITS)
    return [
        f"- *{part}*: {'; '.join(habit.says for habit in HABITS if habit.part == part and is_as_alone(habit))}."
        for part in parts
    ]


def rows(lines: Mapping[str, str]) -> list[str]:
    """The page's table: what becomes of each other habit, and what is said."""
    table = [HEADER, "|" + " --- |" * 7]
    for habit in HABITS:
        if not is_as_alone(habit):
            kinds = [habit.alone, *(habit.expected(policy, alone=False) for policy in POLICIES)]
            cells = [habit.says, *(SIGNS[kind] for kind in kinds), lines.get(habit.name, "")]
            table.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return table


def said(page: str) -> dict[str, str]:
    """Read each habit's line from the page."""
    by_words = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 7:
            by_words[cells[0]] = cells[-1]
    return {habit.name: by_words.get(habit.says, "") for habit in HABITS}


def test_the_page_is_the_table():
    page = PAGE.read_text(encoding="utf-8")
    told = said(page)
    assert [line for line in [*listed(), *rows(told)] if line not in page.splitlines()] == []
    for habit in HABITS:
        speaks = bool({habit.expected(policy, alone=False) for policy in POLICIES} & {"refused", "warned"})
        assert bool(told[habit.name]) == speaks, habit.name


def lines_of(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, str]:
    return {name: next((one.line for one in of_ranks if one.line), "") for name, of_ranks in outcomes.items()}


def alike(one: str, other: str) -> bool:
    return difflib.SequenceMatcher(None, one, other).ratio() > 0.7


def write_page() -> None:
    """Make the page's table anew."""
    bsp, asp, local_sgd = (lines_of(together(policy)) for policy in ("bsp", "asp", "local_sgd:4"))
    lines = {name: bsp[name] or asp[name] or local_sgd[name] for name in bsp}
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition("- *Data*")
    between = rest.partition("\n\n")[2].partition(HEADER)[0]
    PAGE.write_text(f"{head}{chr(10).join(listed())}\n\n{between}{chr(10).join(rows(lines))}\n", encoding="utf-8")


if __name__ == "__main__":
    write_page()
