import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plesio.cli.commands import invoke
from plesio_planning.theory.bound import Bound
from plesio_planning.theory.chapter import CHAPTER, ChapterEntry
from plesio_planning.theory.statements import (
    EXERCISES,
    STATEMENTS,
    Statement,
    Witness,
    asynchrony,
    batches,
    systems,
    theorems,
)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda each: each.claim)
def test_what_is_computed_is_the_verdict(statement: Statement):
    witness = statement.check()
    assert witness.verdict == statement.verdict
    assert witness.numbers


def _check(claim: str) -> Callable[[], Witness]:
    (found,) = (each.check for each in STATEMENTS if each.claim.startswith(claim))
    return found


@pytest.mark.parametrize(
    ("claim", "name", "wrong"),
    [
        ("A learning rate of at most", "stability_limit", lambda *, staleness: 0.4 / (1 + staleness)),
        ("A staleness of 1/(αλ) is where", "first_unstable_staleness", lambda *, step, **_: round(1 / step)),
        ("The same holds with momentum", "first_unstable_staleness", lambda *, step, **_: round(1.57 / step)),
        ("The noise that synchronous", "noise_floor", lambda **_: -1.0),
        ("At the best constant", "iterations_to", lambda *_, staleness, **__: float(staleness**2)),
        ("States that take 10 min", "young_interval_s", lambda *, checkpoint_s, mtbf_s: (checkpoint_s * mtbf_s) ** 0.5),
        ("In a ring no rank", "all_reduce_bytes", lambda **_: Bound(quantity="", parts={"sent": 2.5})),
        ("The speed-up saturates", "speedup", lambda **_: Bound(quantity="", parts={"speed-up": 1.0})),
        ("Staleness leaves an error", "delayed_descent", lambda **_: [1.0, 0.5]),
        ("Asynchronous SGD can fail", "_late_descent", lambda *, rate, staleness: rate * 0),
        ("A looser staleness bound", "_time_to_target", lambda updates, **_: len(updates)),
        ("K local steps of n workers", "_missed_updates", lambda *, period, num_workers: period * num_workers),
        ("With momentum, asynchronous", "stability_limit", lambda *, staleness, momentum=0.0: 2.0),
        ("The staleness that training", "sharpness_of_training", lambda loss: (2.0, 1.0)),
        ("Averaging over workers", "_aggregate", lambda *, num_workers, batch: (0.0, 1.0, 1.0 / num_workers)),
        ("A learning rate in proportion", "noise_floor", lambda *, step, staleness: step**2),
        ("At a fixed global batch more", "_aggregate", lambda *, num_workers, batch: (0.0, 1.0, float(num_workers))),
        (
            "What a ring all-reduce",
            "all_reduce_bytes",
            lambda *, num_ranks, **_: Bound(quantity="", parts={"": num_ranks}),
        ),
        ("A pipeline with a bubble", "pipeline_bubble", lambda **_: Bound(quantity="", parts={"": -1.0})),
        ("With a fixed bandwidth four", "all_reduce_bytes", lambda **_: Bound(quantity="", parts={"": 1e12})),
        ("Interleaved stages", "_held", lambda *, num_stages, num_chunks: num_stages),
        ("An all-reduce in two levels", "_sent_by_a_node", lambda order, *, num_nodes: 1.0),
    ],
)
def test_a_check_turns_with_what_it_computes_from(
    monkeypatch: pytest.MonkeyPatch, claim: str, name: str, wrong: Callable[..., Any]
):
    right = _check(claim)().holds
    for module in (theorems, asynchrony, batches, systems):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, wrong)
    assert _check(claim)().holds != right


def test_the_command_lists_all_with_verdicts_and_numbers(capsys: pytest.CaptureFixture[str]):
    assert invoke(["list", "statements"]) == 0
    out = capsys.readouterr().out
    for number, statement in enumerate(STATEMENTS, start=1):
        assert f"{number:>2}  {statement.verdict}: {statement.claim} ({statement.place}" in out
        assert statement.reason in out
    assert "bubble, p = 8, m = 16 (%): 30.43" in out


def _page(name: str) -> str:
    """A page of the site, with the tables that the site takes from the data files."""
    docs = Path(__file__).parents[4] / "docs"
    hook = runpy.run_path(str(docs / "assets" / "texts.py"))["on_page_markdown"]
    return str(hook((docs / "planning" / name).read_text(encoding="utf-8")))


def test_the_docs_have_every_statement():
    docs = _page("theory.md")
    missing = [each.claim for each in STATEMENTS if f"| {each.claim} | {each.verdict} | {each.reason} |" not in docs]
    assert missing == []


def test_the_texts_twenty_come_first_with_its_answers_beside_ours(capsys: pytest.CaptureFixture[str]):
    assert [each.place for each in EXERCISES] == [f"A.{number}" for number in range(1, 21)]
    assert STATEMENTS[:20] == EXERCISES
    for each in EXERCISES:
        assert each.answer is not None
        assert each.verdict.startswith(each.answer)
    assert invoke(["list", "statements", "a.15"]) == 0
    out = capsys.readouterr().out
    assert "true under a condition" in out
    assert "(A.15; the text: true)" in out
    assert "plesio study hierarchical" in out
    assert "A.14" not in out


def test_a_place_without_statements_is_refused(capsys: pytest.CaptureFixture[str]):
    assert invoke(["list", "statements", "A.77"]) == 2
    assert 'no statement is made at "A.77"; did you mean "A.7"?' in capsys.readouterr().err


def test_the_index_has_all_of_the_text(capsys: pytest.CaptureFixture[str]):
    places = {part: [each.place for each in entries] for part, (_, entries) in CHAPTER.items()}
    assert places["proofs"] == [f"B.{number}" for number in range(1, 21)]
    assert places["rules"] == [f"C.{number}" for number in range(1, 21)]
    numbers = {place.partition(",")[0] for place in places["theorems"]}
    assert {str(number) for number in range(11, 23)} <= numbers
    assert invoke(["list", "chapter"]) == 0
    out = capsys.readouterr().out
    for _, entries in CHAPTER.values():
        assert all(each.claim in out and each.reason in out for each in entries)
    assert invoke(["list", "chapter", "lemmas"]) == 2


_ENTRIES = [each for _, entries in CHAPTER.values() for each in entries if each.command]


@pytest.mark.parametrize("entry", _ENTRIES, ids=lambda each: f"{each.place}: {each.command}")
def test_what_an_entry_names_is_a_command(capsys: pytest.CaptureFixture[str], entry: ChapterEntry):
    program, *words = entry.command.split()
    assert program == "plesio"
    if words[0] == "bound":
        assert invoke(words) == 0
        return
    options = [word for word in words if word.startswith("--")]
    command = words[: 2 if words[0] in ("study", "checkpoint") else 1]
    assert invoke([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert all(option in out for option in options)


def test_the_index_page_has_every_entry():
    docs = _page("chapter.md")
    rows = {each.claim: f"| {each.place} | {each.claim} | {each.stand} | {each.reason} |" for each in _all_entries()}
    assert [claim for claim, row in rows.items() if row not in docs] == []


def _all_entries() -> list[ChapterEntry]:
    return [each for _, entries in CHAPTER.values() for each in entries]
