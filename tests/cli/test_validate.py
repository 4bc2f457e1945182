import json
from pathlib import Path

import pytest

from plesio.cli.main import invoke


def test_the_estimator_is_shown_beside_what_was_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "errors.json"
    assert invoke(["validate", "estimator", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "gpt3-175b" in printed
    assert "step time, model left out" in printed
    data = json.loads(path.read_text())
    assert {row["source"] for row in data["rows"]} == {"A", "C", "D", "E"}
    held_out = next(one for one in data["summary"] if one["quantity"] == "step time, held out (s)")
    assert held_out["num_predictions"] == 9
    assert held_out["mean_error"] < held_out["baseline_mean_error"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("validate estimatr", 'validate "estimatr"; did you mean "estimator"?'),
        ("validate estimator --seeds 0", "leave out all options but --json"),
        ("validate estimator --out {out}", "leave out all options but --json"),
        ("validate estimator --json {out}/none/x.json", "there is no folder"),
    ],
)
def test_a_mistake_is_one_clear_line(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(line.format(out=tmp_path).split()) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.strip().splitlines()) == 1
