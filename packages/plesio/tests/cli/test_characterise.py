"""The command: what it prints and keeps, what it refuses, and how it is interrupted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plesio.cli.commands import invoke

RECIPE = """
run = { seeds = [0, 1, 2], samples = 96, evaluate_every = 48 }

[workers]
count = 2
cluster = "4x1gbe"
step_time = { kind = "constant", mean = "1 ms" }

[models]
vgg = { name = "quadratic", options = { dimension = 8, num_samples = 256 } }

[[parts]]
name = "scaling"
world = "virtual"
policies = ["bsp", "asp"]
workers = [1, 2]

[[parts]]
name = "link"
world = "virtual"
policies = ["bsp", "asp"]
link = ["10 Mbit/s", "1 Gbit/s"]

[quick]
workers = [2]
link = ["1 Gbit/s"]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


def test_a_characterisation_writes_its_page_and_is_resumed_and_overwritten(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    line = ["lab", "characterise", str(recipe), "--out", str(out)]
    assert invoke([*line, "--quick"]) == 0
    printed, progress = capsys.readouterr()
    assert "What was crossed" in printed
    assert "3 seeds a policy, which is few" in printed
    assert printed.splitlines()[-1] == str(out / "report.html")
    assert "[1/6] bsp · vgg, 2 workers, virtual · seed 0: started" in progress
    assert "Table 3: Training time (s) of DDP and FSDP" in (out / "report.html").read_text(encoding="utf-8")
    assert invoke([*line, "--resume"]) == 0
    progress = capsys.readouterr().err
    assert "· vgg, 2 workers, virtual · seed 0: kept" in progress
    assert "[18/18] asp · vgg, 2 workers, 10 Mbit/s, virtual · seed 2: started" in progress
    (out / "note.txt").write_text("mine")
    assert invoke([*line, "--quick", "--seeds", "5", "--overwrite"]) == 0
    assert "1 seed a policy: too few" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == [
        "characterise.json",
        "figures",
        "note.txt",
        "report.html",
        "tables",
        "virtual-vgg-2-workers",
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--world", "process"], "processes of one machine have no network"),
        (["--world", "cloud"], "cloud"),
        (["--seeds", "0,a"], '--seeds "0,a": write whole numbers'),
        (["--resume", "--overwrite"], "write one of them"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_removed(
    recipe: Path, tmp_path: Path, refused: Callable[[list[str]], str], more: list[str], message: str
):
    out = tmp_path / "out"
    (out / "tables").mkdir(parents=True)
    assert message in refused(["lab", "characterise", str(recipe), "--out", str(out), *more])
    assert (out / "tables").exists()


def test_a_folder_with_something_in_it_is_not_touched(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert invoke(["lab", "characterise", str(recipe), "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("plesio.bench.plan.run_plan", interrupted)
    out = tmp_path / "my out"
    assert invoke(["lab", "characterise", str(recipe), "--out", str(out), "--quick", "--seeds", "0,1"]) == 130
    assert (
        f"go on with: plesio lab characterise {recipe} --out '{out}' --quick --seeds 0,1 --resume"
        in capsys.readouterr().err
    )
