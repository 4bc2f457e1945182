"""No command replaces what is there, unless it is told to."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from plesio.cli.commands import invoke

SIMULATE = "simulate quadratic --option dimension=8 --option num_samples=64 --workers 2"
COMMANDS = {
    "list tasks --json FILE": "FILE",
    "lab testbed status --json FILE": "FILE",
    "bound checkpoint-interval --out DIR": "DIR/checkpoint-interval.json",
    "bound checkpoint-interval --json FILE": "FILE",
    "study collectives --json FILE": "FILE",
    "estimate --model llama-3-8b --cluster 64xh100 --tokens 1B --out DIR": "DIR/estimate.json",
    f"{SIMULATE} --out DIR": "DIR/results.json",
    "report RUN --json FILE": "FILE",
    "compare RECIPE --world virtual --out DIR": "DIR/results.json",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    assert invoke([*SIMULATE.split(), "--policy", "bsp", "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(("line", "written"), COMMANDS.items())
def test_what_is_there_is_replaced_only_when_asked(
    line: str,
    written: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "run")
    Path("recipe.toml").write_text(
        'task = { name = "quadratic", options = { dimension = 8, num_samples = 64 } }\n'
        'run = { policies = ["bsp"], seeds = [0], epochs = 1 }\n'
        'workers = { count = 2, step_time = { kind = "constant", mean = "1 ms" } }\n'
    )
    places = {"FILE": "numbers.json", "DIR": "out", "RUN": "run", "RECIPE": "recipe.toml"}
    for word, place in places.items():
        line, written = line.replace(word, place), written.replace(word, place)
    assert invoke(line.split()) == 0
    assert Path(written).stat().st_size > 2 or "testbed" in line
    Path(written).write_text("mine")
    capsys.readouterr()
    assert invoke(line.split()) == 2
    told, complaint = capsys.readouterr()
    assert (told, complaint.count("\n")) == ("", 1)
    assert "add --overwrite" in complaint or "or --overwrite to start anew" in complaint
    assert Path(written).read_text() == "mine"
    assert invoke([*line.split(), "--overwrite"]) == 0
    assert Path(written).read_text() != "mine"


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("list", "--json"),
        ("list policies", "--json"),
        ("checkpoint show .", "--json"),
        ("report .", "--page or --json"),
        ("bound checkpoint-interval", "--out or --json"),
        ("study collectives", "--out or --json"),
        ("lab probe --workers 2", "--out or --page or --json"),
    ],
)
def test_where_no_file_is_asked_for_there_is_none_to_overwrite(line: str, options: str, refused: Callable[[str], str]):
    assert f"--overwrite replaces what {options} names: write that too" in refused(f"{line} --overwrite")


def test_a_simulation_without_a_folder_has_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    line = [*SIMULATE.split(), "--policy", "bsp"]
    for _ in range(3):
        assert invoke(line) == 0
    names = ["simulation", "simulation-2", "simulation-3"]
    assert sorted(path.name for path in Path("runs").iterdir()) == names
    Path("runs/simulation/results.json").write_text("mine")
    assert invoke([*line, "--overwrite"]) == 0
    assert Path("runs/simulation/results.json").read_text() != "mine"
    assert sorted(path.name for path in Path("runs").iterdir()) == names


def test_an_export_is_replaced_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    checkpoints, out = tmp_path / "checkpoints", tmp_path / "model.pt"
    line = f"{SIMULATE} --epochs 20 --policy bsp --checkpoint {checkpoints} --every 5steps --out {tmp_path / 'out'}"
    assert invoke(line.split()) == 0
    out.write_text("mine")
    export = ["checkpoint", "export", str(checkpoints / "bsp-seed0"), "--out", str(out)]
    assert invoke(export) == 2
    assert "is there already: add --overwrite to replace it" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert invoke([*export, "--overwrite"]) == 0
    assert "model" in torch.load(out, weights_only=True)


def test_a_second_json_file_goes_on_with_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(
        'task = { name = "quadratic", options = { dimension = 8, num_samples = 64 } }\n'
        'run = { policies = ["bsp"], seeds = [0], epochs = 1 }\n'
        'workers = { count = 2, step_time = { kind = "constant", mean = "1 ms" } }\n'
    )
    line = ["compare", "recipe.toml", "--world", "virtual", "--out", "out", "--json", "numbers.json"]
    assert invoke(line) == 0
    assert invoke([*line, "--resume"]) == 0
