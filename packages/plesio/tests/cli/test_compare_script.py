"""`plesio compare` of a user's own script: its metric, its arguments, its seeds, its mistakes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio.core.results import read_results

pytestmark = pytest.mark.timeout(240)

SCRIPT = """
import argparse
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import plesio

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--seed", type=int)
arguments = parser.parse_args()
BEGIN
if arguments.seed is not None:
    torch.manual_seed(arguments.seed)
x = torch.linspace(-1, 1, 64 * 3).view(64, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=SHUFFLE)
model = torch.nn.Linear(3, 1)
optimizer = OPTIMIZER(model.parameters(), lr=arguments.lr)
with plesio.join(model, optimizerCHOICE) as session:
    for a, b in session.shard(loader):
        loss = (model(a) - b).square().mean()
        loss.backward()
        session.step(loss)
        STEP
    EVALUATE
if session.rank == 0:
    print("lr", arguments.lr)
END
"""
GRID = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import plesio

x = torch.linspace(-1, 1, 64 * 3).view(64, 3)
layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
loss = torch.nn.functional.mse_loss
with plesio.grid(layers, lambda weights: torch.optim.SGD(weights, lr=0.05), loss) as grid:
    for a, b in grid.shard(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)):
        grid.step(a, b)
    grid.evaluate(lambda: {"mse": loss(layers(x), x.sum(1, keepdim=True)).item()})
"""
PACED = """
task = { name = "train.py", arguments = ["--lr", "0.1"] }
run.policies = ["asp"]
[workers]
count = 2
cluster = "2-racks"
step_time = { kind = "trace", path = "steps.txt" }
stalls = { probability = 0.01, factor = 2.0 }
slowdowns = { factor = 2.0, every = "5 s", lasting = "1 s", racks = [[0, 1]] }
unequal = [{ rank = 1, speed = 0.5 }]
"""
EVALUATE = 'session.evaluate(lambda: {"mse": (model(x) - x.sum(1, keepdim=True)).square().mean().item()})'


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_script(**parts: str) -> Path:
        text = SCRIPT
        empty = dict.fromkeys(("CHOICE", "BEGIN", "STEP", "END"), "")
        defaults = {**empty, "EVALUATE": EVALUATE, "SHUFFLE": "True", "OPTIMIZER": "torch.optim.SGD"}
        for name, part in {**defaults, **{name.upper(): part for name, part in parts.items()}}.items():
            text = text.replace(name, part)
        (script := tmp_path / "train.py").write_text(text)
        return script

    return write_script


def virtual(script: Path, out: Path, *more: str, policies: str = "bsp", seeds: str = "0") -> list[str]:
    options = ["--world", "virtual", "--workers", "2", "--policies", policies, "--seeds", seeds, "--out", str(out)]
    return ["compare", str(script), *options, *more]


def test_a_script_is_compared_in_virtual_time_by_its_own_metric(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert invoke(virtual(write(), out, "--", "--lr", "0.1", policies="bsp,asp", seeds="0,1")) == 0
    printed, progress = capsys.readouterr()
    assert "mse" in printed.splitlines()[0]
    assert "lr 0.1" not in printed + progress
    assert "plesio:" not in progress
    runs = read_results(out / "results.json")
    assert [(run.policy, run.seed) for run in runs] == [("bsp", 0), ("bsp", 1), ("asp", 0), ("asp", 1)]
    for run in runs:
        assert (run.task, run.world, run.status, run.num_workers) == ("train.py", "virtual", "finished", 2)
        assert (run.metric_name, run.metric_goal) == ("mse", "min")
        assert run.samples == 64
    assert len({run.parameters_sha256 for run in runs}) == 4  # each seed its own numbers
    assert "lr 0.1" in (out / "runs" / "bsp-seed0" / "output.txt").read_text()
    assert "train.py" in (out / "report.html").read_text()


def test_equal_comparisons_give_equal_runs_and_resume_keeps_them(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = write()
    digests = []
    for name in ("one", "two"):
        assert invoke(virtual(script, tmp_path / name, "--slow", "1:0.5")) == 0
        (run,) = read_results(tmp_path / name / "results.json")
        digests.append((run.parameters_sha256, run.virtual_s))
    assert digests[0] == digests[1]
    capsys.readouterr()
    assert invoke(virtual(script, tmp_path / "one", "--slow", "1:0.5", "--resume", policies="bsp,local_sgd:2")) == 0
    assert "bsp · seed 0: kept" in capsys.readouterr().err
    assert invoke(virtual(script, tmp_path / "one", "--slow", "1:0.5", "--resume", "--", "--lr", "1")) == 2
    assert "other settings (task.arguments)" in capsys.readouterr().err
    assert invoke(["report", str(tmp_path / "one")]) == 0


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        (
            {"begin": "torch.manual_seed(0)", "shuffle": "False"},
            "seeds 0 and 1 ran identically under bsp, local_sgd:2: train.py sets its seed itself",
        ),
        ({"begin": "torch.manual_seed(0)"}, "train.py sets its seed itself: seeds 0 and 1 differ in the order"),
        ({"evaluate": ""}, "train.py never calls session.evaluate, so there is no metric to compare"),
        (
            {"evaluate": "[session.evaluate(lambda found=found: found) for found in (3.0, 2.0)]"},
            "train.py's metric fell in every run, and more of it counts as better; if less of it is, write",
        ),
        ({"choice": ', policy="ssp:4"'}, "train.py asks for the policy ssp:4 itself; here each run has"),
        ({"choice": ', trace="own"'}, "train.py asks for traces in own; here they are beside"),
        (
            {"choice": ', checkpoint="own", every="1 steps"'},
            "train.py asks for checkpoints in own; here they are those",
        ),
    ],
)
def test_what_a_script_chooses_itself_is_told_once(
    parts: dict[str, str], line: str, write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert invoke(virtual(write(**parts), tmp_path / "out", policies="bsp,local_sgd:2", seeds="0,1")) == 0
    (told,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("plesio: ")]
    assert told.startswith(f"plesio: {line}")
    assert not Path("own").exists()


def test_the_seed_is_an_argument_where_the_script_takes_it(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    line = virtual(write(shuffle="False"), tmp_path / "out", "--", "--seed", "{seed}", seeds="0,1")
    assert invoke(line) == 0
    assert "sets its seed" not in capsys.readouterr().err
    runs = read_results(tmp_path / "out" / "results.json")
    assert len({run.parameters_sha256 for run in runs}) == 2


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"begin": 'raise ValueError("boom")'}, "fails before its first step: ValueError: boom (line "),
        ({"begin": "sys.exit(3)"}, "train.py ended with status 3 before its first step\n"),
        ({"begin": "sys.exit('no data')"}, "train.py ended with status 1 before its first step: no data\n"),
        ({"begin": "sys.exit()"}, "never called plesio.join or plesio.grid, so there is no run to show"),
        ({"begin": "def ("}, "train.py, line 12: invalid syntax"),
    ],
)
def test_a_script_that_cannot_be_compared_is_one_clear_line(
    parts: dict[str, str], message: str, write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert invoke(virtual(write(**parts), tmp_path / "out", policies="bsp,asp")) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines(keepends=True) if not line.startswith("[1/2]")]
    assert error.startswith("plesio: error: ")
    assert message in error
    kept = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert kept == [Path("train.py"), *([Path("out/runs/bsp-seed0/output.txt")] if "its output is in" in error else [])]
    assert invoke(virtual(write(), tmp_path / "out")) == 0, "the folder holds nothing of value"


def test_a_script_is_compared_where_as_many_workers_are_lost_as_began(write: Callable[..., Path], tmp_path: Path):
    (tmp_path / "flaky.toml").write_text(
        'hosts = 2\nnic = { latency = "50 us", bandwidth = "1 Gbit/s" }\n'
        'failures = { mtbf = "150 ms", repair = "10 ms" }'
    )
    line = f"compare {write()} --world virtual --cluster {tmp_path / 'flaky.toml'} --policies asp --workers 2"
    assert invoke([*line.split(), "--step-time", "50 ms", "--out", str(tmp_path / "out")]) == 0
    [result] = read_results(tmp_path / "out" / "results.json")
    assert result.status == "finished"
    assert len(result.lost_workers) >= 2


@pytest.mark.parametrize(
    "line", ["compare --world virtual", "simulate", pytest.param("compare --policies asp", marks=pytest.mark.slow)]
)
def test_a_script_that_leaves_its_session_open_is_told_to_close_it(
    line: str, write: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    text = write().read_text()
    opened = text.replace(
        "with plesio.join(model, optimizer) as session:", "session = plesio.join(model, optimizer)\nif 1:"
    )
    (script := tmp_path / "train.py").write_text(opened)
    command, *options = line.split()
    assert invoke([command, str(script), *options, "--workers", "2", "--out", str(tmp_path / "out")]) == 2
    *_, error = capfd.readouterr().err.splitlines()
    assert "train.py ends without closing its session, so there is no run to show; write `with plesio.join(" in error
    assert sorted(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("compare", "--world virtual"),
        ("sweep", "--bounds 0 --cluster 4x1gbe --target 1"),
        ("simulate", ""),
        ("lab validate", ""),
    ],
)
def test_a_mistake_among_the_arguments_of_a_script_is_quoted_and_leaves_nothing(
    command: str,
    options: str,
    write: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    write()
    monkeypatch.chdir(tmp_path)
    line = f"{command} train.py --workers 2 {options} -- --lrr 0.1"
    assert invoke(line.split()) == 2
    *_, last = capfd.readouterr().err.splitlines()
    assert "train.py ended with status 2" in last
    assert ("train.py: error: unrecognized arguments: --lrr 0.1" in last) == (command in ("compare", "sweep"))
    assert sorted(tmp_path.iterdir()) == [tmp_path / "train.py"]


def test_a_script_that_fails_later_is_a_failed_run(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert invoke(virtual(write(end="sys.exit(3)"), tmp_path / "out", policies="bsp,asp")) == 1
    err = capsys.readouterr().err
    assert err.count("failed: ended with status 3; its output is in ") == 2
    assert "2 of 2 runs did not finish" in err
    runs = read_results(tmp_path / "out" / "results.json")
    assert [run.status for run in runs] == ["failed", "failed"]
    assert all(run.final_metric is not None for run in runs)


def test_a_run_that_failed_goes_on_from_its_checkpoint(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flag = tmp_path / "flag"
    flag.touch()
    step = f'print("clock", session.clock); session.clock == 3 and pathlib.Path("{flag}").exists() and sys.exit(3)'
    line = virtual(write(begin="import pathlib", step=step), tmp_path / "out", policies="ssp:1")
    line += ["--checkpoint", str(tmp_path / "checkpoints"), "--every", "2 steps"]
    assert invoke(line) == 1
    assert [path.name for path in tmp_path.glob("checkpoints/ssp-1-seed0/step-*")] == ["step-00000002"]
    flag.unlink()
    assert invoke([*line, "--resume"]) == 0
    (run,) = read_results(tmp_path / "out" / "results.json")
    assert (run.status, run.samples) == ("finished", 64)
    output = (tmp_path / "out" / "runs" / "ssp-1-seed0" / "output.txt").read_text()
    assert re.findall(r"clock (\d)", output)[0] == "3"
    assert "PLESIO_CHECKPOINT" not in os.environ


def test_a_policy_that_refuses_the_script_leaves_the_others(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = write(begin="class Own(torch.optim.SGD): pass", optimizer="Own")  # the servers cannot run it
    assert invoke(virtual(script, tmp_path / "out", policies="asp,bsp")) == 1
    runs = read_results(tmp_path / "out" / "results.json")
    assert [(run.policy, run.status) for run in runs] == [("asp", "failed"), ("bsp", "finished")]
    assert "1 of 2 runs did not finish" in capsys.readouterr().err
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--every 1s", "--every is about checkpoints; add --checkpoint DIR"),
        ("--checkpoint ck --every soon", '--every: checkpoints every "soon"'),
        ("--cluster 4x1gbe --world process", "--cluster 4x1gbe: real workers are on this machine"),
        ("--workers 0", "--workers is 0; write 1 or more"),
        ("--policies bps", '--policies: unknown policy "bps"'),
        ("--world testbed", "a testbed needs a cluster"),
        ("--slow 2:0.5 --workers 2", "there is no rank 2"),
        ("--lr 0.1", "train.py itself come after --; `plesio compare --help`"),
    ],
)
def test_an_option_that_a_script_cannot_have_is_refused_and_leaves_the_folder_alone(
    options: str, message: str, write: Callable[..., Path], tmp_path: Path, refused: Callable[[str], str]
):
    if "testbed" in options and os.geteuid():
        pytest.skip("testbeds need root")
    assert message in refused(f"compare {write()} --out {tmp_path / 'out'} {options}")
    assert not (tmp_path / "out").exists()


def test_a_folder_is_neither(tmp_path: Path, refused: Callable[[str], str]):
    assert f"{tmp_path} is a folder; write the name of a recipe (.toml) or" in refused(f"compare {tmp_path} --out o")


def test_a_recipe_takes_no_arguments(tmp_path: Path, refused: Callable[[str], str]):
    (recipe := tmp_path / "r.toml").write_text('task.name = "quadratic"\nrun.policies = ["bsp"]\nworkers.count = 2\n')
    assert "only a script has arguments of its own" in refused(f"compare {recipe} --out {tmp_path / 'o'} -- --lr 1")
    assert "a run's length is" in refused(f"compare {recipe} --out {tmp_path / 'o'}")


def test_a_script_stands_in_a_recipe_too(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Callable[[str], str]
):
    write()
    text = 'task = { name = "train.py", arguments = ["--lr", "0.1"] }\nrun.policies = ["bsp"]\n'
    (recipe := tmp_path / "r.toml").write_text(
        text + 'workers = { count = 2, step_time = { kind = "constant", mean = "5 ms" } }\n'
    )
    assert invoke(["compare", str(recipe), "--world", "virtual", "--out", str(tmp_path / "out")]) == 0
    (run,) = read_results(tmp_path / "out" / "results.json")
    assert (run.task, run.virtual_s) == ("train.py", pytest.approx(4 * 0.005, rel=0.2))
    capsys.readouterr()
    recipe.write_text(text.replace('"bsp"]', '"bsp"]\nrun.epochs = 2') + "workers.count = 2\n")
    assert "epochs is for a task; the script train.py says it itself" in refused(f"compare {recipe} --out x")


def test_a_script_of_a_grid_is_compared_under_grids(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (script := tmp_path / "train.py").write_text(GRID)
    assert invoke(virtual(script, tmp_path / "out", policies="grid:1x2,grid:2x1")) == 0
    runs = read_results(tmp_path / "out" / "results.json")
    assert [(run.policy, run.status, run.task) for run in runs] == [
        ("grid:1x2", "finished", "train.py"),
        ("grid:2x1", "finished", "train.py"),
    ]
    capsys.readouterr()
    assert invoke(virtual(script, tmp_path / "other", policies="bsp")) == 2
    assert "plesio.grid is compared under grids" in capsys.readouterr().err


def test_a_script_is_swept_over_bandwidths(
    write: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script, out = write(choice=', policy="asp"'), tmp_path / "out"
    line = f"sweep {script} --workers 2 --cluster 4x1gbe --bounds 0,inf --out {out}"
    assert invoke([*line.split(), "--bandwidths", "10 Mbit/s,1 Gbit/s"]) == 2
    assert "train.py has no target to time; add --target X" in capsys.readouterr().err
    assert invoke([*line.split(), "--bandwidths", "10 Mbit/s,1 Gbit/s", "--target", "5", "--", "--lr", "0.1"]) == 0
    assert capsys.readouterr().err.count("train.py asks for the policy asp itself") == 1
    for folder in ("10-Mbit-s", "1-Gbit-s"):
        runs = read_results(out / folder / "results.json")
        assert [(run.policy, run.target) for run in runs] == [("ssp:0", 5.0), ("ssp:inf", 5.0)]
        assert all(run.time_to_target_s is not None for run in runs)
    assert "train.py" in (out / "1-Gbit-s" / "setting.json").read_text()


def test_a_script_is_compared_on_processes(
    write: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    write(choice=', policy="ssp:4"')
    (tmp_path / "steps.txt").write_text("10 ms\n10 ms")
    (recipe := tmp_path / "r.toml").write_text(PACED)
    assert invoke(["compare", str(recipe), "--out", str(out)]) == 0
    printed, err = capfd.readouterr()
    assert "lr 0.1" not in printed + err
    assert err.splitlines()[0] == "[1/1] asp · seed 0: started"
    assert err.splitlines()[-1].startswith("plesio: train.py asks for the policy ssp:4 itself")
    assert err.count("plesio:") == 1
    (run,) = read_results(out / "results.json")
    assert (run.policy, run.task, run.world, run.status) == ("asp", "train.py", "process", "finished")
    assert (run.metric_name, run.samples, run.num_workers) == ("mse", 64, 2)
    assert run.workers[1].compute_s > 0.02 * run.workers[1].steps, "it is told of its speed"
    assert "[0] lr 0.1" in (out / "runs" / "asp-seed0" / "output.txt").read_text()
    assert json.loads((out / "runs" / "asp-seed0" / "perfetto.json").read_text())["traceEvents"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "status", "message"),
    [
        (
            {"begin": 'import os\nif os.environ["RANK"] == "1": raise ValueError("boom")'},
            2,
            "fails before its first step: ValueError: boom (line 13) (worker 1); its output is in ",
        ),
        ({"begin": "sys.exit(3)"}, 2, "train.py ended with status 3 before its first step\n"),
        (
            {"begin": "parser.error('no')"},
            2,
            "train.py ended with status 2 before its first step: train.py: error: no\n",
        ),
        ({"begin": "sys.exit()"}, 2, "never called plesio.join or plesio.grid, so there is no run to show"),
        ({"end": "sys.exit(3)"}, 1, "failed: ended with status 3; its output is in "),
    ],
)
def test_a_script_that_fails_on_processes_is_one_clear_line(
    parts: dict[str, str],
    status: int,
    message: str,
    write: Callable[..., Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    line = f"compare {write(**parts)} --workers 2 --policies bsp --out {tmp_path / 'out'}"
    assert invoke(line.split()) == status
    err = capfd.readouterr().err
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "lost"), [('raise ValueError("boom")', 1, ()), ("os.kill(os.getpid(), signal.SIGKILL)", 0, (1,))]
)
def test_a_worker_that_raises_fails_the_run_and_one_that_is_killed_is_lost(
    end: str,
    status: int,
    lost: tuple[int, ...],
    write: Callable[..., Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
):
    step = f"if session.rank == 1 and session.clock == 1: {end}"
    script = write(step=step, begin="import os, signal")
    line = f"compare {script} --workers 3 --policies asp --out {tmp_path / 'out'}"
    assert invoke(line.split()) == status
    (run,) = read_results(tmp_path / "out" / "results.json")
    assert run.lost_workers == lost
    told = run.fallbacks[-1] if lost else run.error
    assert told is not None
    assert ("was killed by SIGKILL (worker 1)" if lost else "ValueError: boom (line 24) (worker 1)") in told
    assert "Traceback" not in capfd.readouterr().err


def test_ctrl_c_stops_the_workers_of_a_script_and_tells_how_to_go_on(write: Callable[..., Path], tmp_path: Path):
    script = write(begin='import time\nprint("begun", flush=True)\ntime.sleep(100)')
    out = tmp_path / "out"
    line = f"compare {script} --workers 2 --policies asp,bsp --out {out} -- --lr 0.1"
    command = [sys.executable, "-m", "plesio", *line.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        output = out / "runs" / "asp-seed0" / "output.txt"
        while process.poll() is None and not (output.exists() and output.read_text().count("begun") == 2):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert f"plesio compare {script} --out {out} --policies asp,bsp --workers 2 --resume -- --lr 0.1" in told
    assert "Traceback" not in told
    # that workers are gone is looked at after every test (conftest.py)
