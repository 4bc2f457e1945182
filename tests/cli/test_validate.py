import json
from pathlib import Path

import pytest

from plesio.cli.main import invoke


def test_the_estimator_is_shown_beside_what_was_published(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "errors.json"
    assert invoke(["validate", "estimator", "--json", str(path), "--out", str(tmp_path / "page")]) == 0
    printed = capsys.readouterr().out
    assert "Every family of models left out in turn, 112 steps" in printed
    assert "constant utilisation" in printed
    data = json.loads(path.read_text())
    assert {row["source"] for row in data["rows"]} == set("ACDEFGHI")
    left_out = next(one for one in data["summary"] if one["quantity"] == "step time, family left out (s)")
    assert left_out["num_predictions"] == 112
    assert left_out["mean_error"] < left_out["baseline_mean_error"]
    page = (tmp_path / "page" / "report.html").read_text()
    assert "Family of models left out" in page
    assert "mpt-125m" in page


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("validate estimatr", 'validate "estimatr"; did you mean "estimator"?'),
        ("validate estimator --seeds 0", "leave out all options but --out and --json"),
        ("validate estimator --resume", "leave out all options but --out and --json"),
        ("validate estimator --json {out}/none/x.json", "there is no folder"),
    ],
)
def test_a_mistake_is_one_clear_line(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(line.format(out=tmp_path).split()) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.strip().splitlines()) == 1
