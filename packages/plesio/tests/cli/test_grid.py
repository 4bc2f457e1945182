"""Grids from the command line: `plesio run --grid` and `plesio simulate --policy grid:SxK`."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio.core.results import read_results

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import plesio

torch.manual_seed(0)
x = torch.randn(64, 4)
data = TensorDataset(x, (x[:, 0] > 0).long())
network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
with plesio.grid(network, lambda weights: torch.optim.SGD(weights, lr=0.1), nn.functional.cross_entropy) as grid:
    for a, b in grid.shard(DataLoader(data, batch_size=4, shuffle=True)):
        grid.step(a, b)
if grid.rank == 0:
    result = grid.report()
    print("trained", result.policy, result.samples, result.staleness.max)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.timeout(120)
def test_run_starts_the_workers_of_a_grid(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--grid", "1x2,shrink=0.5", str(script)]) == 0
    out, err = capfd.readouterr()
    assert "[0] trained grid:1x2,shrink=0.5 64 2" in out
    assert "2 workers" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--grid", "2y2"], '"2y2" is no grid'),
        (["--grid", "2x2", "--workers", "3"], "--workers 3: a 2x2 grid has 4; leave --workers out"),
        (["--grid", "2x2", "--join", "127.0.0.1:9"], "the job that workers join has its grid already"),
    ],
)
def test_run_refuses_in_one_line(
    options: list[str], said: str, script: Path, refused: Callable[[list[str]], str]
) -> None:
    assert said in refused(["run", *options, str(script)])


def test_a_script_is_simulated_in_a_grid(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["simulate", str(script), "--policy", "grid:2x2,every=2", "--step-time", "10 ms", "--out"]
    shas = []
    for name in ("one", "two"):
        assert invoke([*line, str(tmp_path / name)]) == 0
        [result] = read_results(tmp_path / name / "results.json")
        assert (result.policy, result.world, result.num_workers) == ("grid:2x2,every=2", "virtual", 4)
        assert (result.status, result.samples, result.staleness.max) == ("finished", 64, 2)
        shas.append(result.parameters_sha256)
        assert [*(tmp_path / name / "runs").glob("grid-2x2-every-2-seed0/trace-3.jsonl")]
    assert shas[0] == shas[1]
    assert "trained grid:2x2,every=2 64 2" in capsys.readouterr().out


def test_a_group_that_comes_when_all_is_over_takes_nothing_from_the_run(script: Path, tmp_path: Path) -> None:
    line = ["simulate", str(script), "--policy", "grid:1x2", "--step-time", "10 ms", "--out", str(tmp_path / "out")]
    assert invoke([*line, "--join", "40 ms", "--join", "40 ms"]) == 0
    [result] = read_results(tmp_path / "out" / "results.json")
    assert (result.status, result.samples) == ("finished", 64)
    assert [fallback.split(":")[0] for fallback in result.fallbacks] == ["worker 2", "worker 3"]


def test_half_a_group_does_not_join_a_script(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["simulate", str(script), "--policy", "grid:1x2", "--out", str(tmp_path / "out")]
    assert invoke([*line, "--join", "1 s"]) == 2
    assert "write a join for each worker of a group" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_task_is_simulated_in_a_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        invoke(["simulate", "digits", "--policy", "grid:1x2", "--epochs", "0.5", "--out", str(tmp_path / "out")]) == 0
    )
    [result] = read_results(tmp_path / "out" / "results.json")
    assert (result.policy, result.status, result.num_workers, result.samples) == ("grid:1x2", "finished", 2, 718)
    assert "grid:1x2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["digits", "--policy", "grid:2x2", "--workers", "3"], "--workers 3: grid:2x2 has 4; leave --workers out"),
        (["digits", "--policy", "grid:1x9"], "needs 9, one a stage at least"),
        (["stdlib_lm", "--policy", "grid:1x2"], "set tied = false"),
        (["quadratic", "--policy", "grid:1x2"], "does not say how its network is a chain"),
    ],
)
def test_simulate_refuses_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["simulate", *arguments, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_a_script_that_joins_trains_in_no_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch, plesio\nmodel = torch.nn.Linear(2, 1)\n"
        "plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
    )
    assert invoke(["simulate", str(path), "--policy", "grid:1x2", "--out", str(tmp_path / "out")]) == 2
    assert '"grid:1x2" is a grid and no policy: plesio.grid(...) trains in it' in capsys.readouterr().err
    path.write_text("print(1)\n")
    assert invoke(["simulate", str(path), "--policy", "grid:1x2", "--out", str(tmp_path / "out"), "--overwrite"]) == 2
    assert "never called plesio.join or plesio.grid" in capsys.readouterr().err


def test_a_group_joins_a_simulated_grid(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--policy", "grid:1x2", "--step-time", "400 ms", "--out", str(tmp_path / "out")]
    assert invoke(["simulate", str(script), *told, "--join", "10ms", "--join", "10ms"]) == 0
    [result] = read_results(tmp_path / "out" / "results.json")
    assert result.samples == 64
    assert [worker.worker for worker in result.workers] == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_run_starts_a_group_that_joins(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    until_joined = """
    joined_at = None
    for a, b in grid.shard(DataLoader(data, batch_size=4, shuffle=True), samples=10**6):
        if joined_at is None and grid.setting.groups == 2:
            joined_at = grid.clock
        if joined_at is not None and grid.clock == joined_at + 20:
            break
        grid.step(a, b)
print("ended as", grid.setting.spec, grid.report().samples)
"""
    script.write_text(SCRIPT[: SCRIPT.index("    for a, b")].rstrip() + until_joined)
    command = [sys.executable, "-m", "plesio", "run"]
    with subprocess.Popen(
        [*command, "--grid", "1x2", str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as first:
        assert first.stdout is not None
        address = next(line for line in first.stdout if "--join" in line).split("--join ")[1].split()[0]
        second = subprocess.run(
            [*command, "--join", address, str(script)], capture_output=True, text=True, timeout=200, check=False
        )
        output, _ = first.communicate(timeout=100)
    assert second.returncode == 0, second.stdout + second.stderr + output
    assert first.returncode == 0, output
    ended = [line.split("] ")[1] for line in (second.stdout + output).splitlines() if "ended as grid:2x2" in line]
    assert len(ended) == 4
    assert len(set(ended)) == 1
