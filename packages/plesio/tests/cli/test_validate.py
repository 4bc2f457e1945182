from pathlib import Path

import pytest

from plesio.cli.commands import invoke


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
