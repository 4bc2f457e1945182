import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plesio.cli.main import invoke
from plesio.core.results import read_results

SCRIPT = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset
import plesio

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
arguments = parser.parse_args()
COUNT = []          # a global of each worker's own
data = TensorDataset(torch.randn(64, 3, generator=torch.Generator().manual_seed(0)))
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
with plesio.join(model, optimizer) as session:
    for (x,) in session.shard(DataLoader(data, batch_size=4)):
        COUNT.append(len(x))
        model(x).square().mean().backward()
        session.step()
assert sum(COUNT) < 64 or session.num_workers == 1
if session.rank == 0:
    print("lr", arguments.lr, "workers", session.num_workers, __name__)
"""


def test_a_task_is_trained_on_virtual_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    line = f"simulate quadratic --workers 3 --policy ssp:2 --slow 2:0.5 --epochs 1 --out {tmp_path / 'one'}"
    assert invoke(line.split()) == 0
    [result] = read_results(tmp_path / "one" / "results.json")
    assert (result.world, result.policy, result.num_workers, result.status) == ("virtual", "ssp:2", 3, "finished")
    assert result.workers[2].steps < result.workers[0].steps + 4
    assert "ssp:2" in capsys.readouterr().out
    assert (tmp_path / "one" / "report.html").exists()
    assert invoke(line.replace("/one", "/two").split()) == 0
    [again] = read_results(tmp_path / "two" / "results.json")
    assert again.parameters_sha256 == result.parameters_sha256
    assert again.virtual_s == result.virtual_s


def test_a_script_is_run_as_each_of_the_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    line = ["simulate", str(script), "--workers", "3", "--policy", "asp", "--out", str(tmp_path / "out")]
    assert invoke([*line, "--step-time", "10 ms", "--", "--lr", "0.1"]) == 0
    assert "lr 0.1 workers 3 __main__" in capsys.readouterr().out
    [result] = read_results(tmp_path / "out" / "results.json")
    assert (result.policy, result.samples, result.num_workers) == ("asp", 64, 3)
    assert result.virtual_s == pytest.approx(6 * 0.01, rel=0.2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch.distributed as dist; dist.init_process_group('gloo')", "init_process_group"),
        ("x = 1", "never called plesio.join"),
        ("def (", "line 1"),
        ("import sys; sys.exit(3)", "ended with status 3"),
    ],
)
def test_a_script_that_cannot_be_simulated_is_one_clear_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert invoke(["simulate", str(script), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_comparison_in_the_virtual_world_is_kept_and_resumed_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'task.name = "quadratic"\nrun = { policies = ["bsp", "asp"], epochs = 1, seeds = [0] }\n'
        'workers = { count = 2, step_time = { kind = "lognormal", mean = "10 ms", cv = 0.5 } }\n'
    )
    line = ["compare", str(recipe), "--out", str(tmp_path / "out"), "--world", "virtual", "--cluster", "4x1gbe"]
    assert invoke(line) == 0
    runs = read_results(tmp_path / "out" / "results.json")
    assert [(run.world, run.policy, run.status) for run in runs] == [
        ("virtual", "bsp", "finished"),
        ("virtual", "asp", "finished"),
    ]
    assert invoke([*line, "--resume", "--seeds", "0,1"]) == 0
    assert len(read_results(tmp_path / "out" / "results.json")) == 4
    capsys.readouterr()
    assert invoke(["compare", str(recipe), "--out", str(tmp_path / "out"), "--resume"]) == 2
    assert "virtual world" in capsys.readouterr().err


def test_ctrl_c_keeps_the_finished_runs_and_the_figures_of_the_other(tmp_path: Path):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'task.name = "quadratic"\nrun = { policies = ["bsp", "asp"], samples = 400_000, seeds = [0] }\n'
        'workers = { count = 2, step_time = { kind = "constant", mean = "10 ms" } }\n'
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "plesio.cli.main", "compare", str(recipe), "--out", str(out), "--world", "virtual"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        deadline_s = time.monotonic() + 60
        while not (out / "runs" / "bsp-seed0" / "trace-0.jsonl").exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "--resume" in errors
    [result] = read_results(out / "runs" / "bsp-seed0" / "results.json")
    assert result.status == "interrupted"
    assert 0 < result.samples < 400_000
