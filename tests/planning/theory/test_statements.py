from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plesio.cli.main import invoke
from plesio.planning.theory.bound import Bound
from plesio.planning.theory.statements import STATEMENTS, Statement, Witness, definitions, theorems


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda each: each.claim)
def test_what_is_computed_is_the_verdict(statement: Statement):
    witness = statement.check()
    assert witness.holds == (statement.verdict == "true")
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
    ],
)
def test_a_check_turns_with_what_it_computes_from(
    monkeypatch: pytest.MonkeyPatch, claim: str, name: str, wrong: Callable[..., Any]
):
    right = _check(claim)().holds
    for module in (theorems, definitions):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, wrong)
    assert _check(claim)().holds != right


def test_the_command_lists_all_with_verdicts_and_numbers(capsys: pytest.CaptureFixture[str]):
    assert invoke(["bound", "statements"]) == 0
    out = capsys.readouterr().out
    for number, statement in enumerate(STATEMENTS, start=1):
        assert f"{number:>2}  {statement.verdict:<5}  {statement.claim} ({statement.place})" in out
        assert statement.reason in out
    assert "bubble, p = 8, m = 16 (%): 30.43" in out


def test_the_docs_have_every_statement():
    docs = (Path(__file__).parents[3] / "docs" / "theory.md").read_text()
    missing = [each.claim for each in STATEMENTS if f"| {each.claim} | {each.verdict} | {each.reason} |" not in docs]
    assert missing == []
