import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from plesio.bench.recipe import TaskSection
from plesio.bench.recipe_workers import WorkersSection
from plesio.cli.commands import invoke
from plesio.core.inputs import input_of
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
    for (x,) in session.shard(DataLoader(data, batch_size=4, shuffle=True)):
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


def test_a_script_that_names_another_policy_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (script := tmp_path / "train.py").write_text(SCRIPT.replace("optimizer) as", 'optimizer, policy="bsp") as'))
    line = ["simulate", str(script), "--workers", "2", "--out", str(tmp_path / "out"), "--policy"]
    said = "train.py asks for the policy bsp itself; here it trains under asp"
    for policy, told in (("asp", True), ("bsp", False)):
        assert invoke([*line, policy, "--overwrite", "--", "--lr", "0.1"]) == 0
        assert (said in capsys.readouterr().err) == told


@pytest.mark.parametrize("command", ["simulate {}", "run {}"])
def test_the_environments_policy_is_in_force_or_the_refusal_names_it(
    command: str, tmp_path: Path, refused: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
):
    (script := tmp_path / "train.py").write_text(SCRIPT)
    name, file = command.format(script).split()
    monkeypatch.setenv("PLESIO_POLICY", "asp")
    assert "--policy says bsp, and PLESIO_POLICY says asp; leave one of them out" in refused(
        f"{name} --policy bsp {file}"
    )
    monkeypatch.setenv("PLESIO_POLICY", "aps")
    assert "PLESIO_POLICY=aps: " in refused(f"{name} {file}")
    monkeypatch.setenv("PLESIO_POLICY", "ssp:4")
    if name == "simulate":
        out = tmp_path / "out"
        assert invoke([name, "quadratic", "--epochs", "1", "--out", str(out)]) == 0
        assert read_results(out / "results.json")[0].policy == "ssp:4"


def test_a_script_goes_on_from_its_checkpoint(tmp_path: Path):
    (script := tmp_path / "train.py").write_text(SCRIPT.replace("assert", "assert True or"))
    line = f"simulate {script} --workers 2 --policy asp --checkpoint {tmp_path / 'saved'} --every 3steps --out"
    for name in ("first", "again"):
        assert invoke([*line.split(), str(tmp_path / name), "--", "--lr", "0.1"]) == 0
    first, again = (read_results(tmp_path / name / "results.json")[0] for name in ("first", "again"))
    assert [*(tmp_path / "saved" / "asp-seed0").glob("step-*")]
    assert again.bytes_sent_total < first.bytes_sent_total  # of the steps after the checkpoint
    assert again.parameters_sha256 == first.parameters_sha256


def test_who_chooses_no_policy_has_adaptive(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert invoke(["simulate", str(script), "--out", str(tmp_path / "out"), "--", "--lr", "0.1"]) == 0
    [result] = read_results(tmp_path / "out" / "results.json")
    assert (result.policy, result.samples) == ("adaptive", 64)


def test_slow_racks_and_stalls_take_time_and_are_repeatable(tmp_path: Path):
    line = ["simulate", "quadratic", "--policy", "asp", "--epochs", "1", "--step-time", "gamma:20ms,cv=0.2"]
    slow = [*line, "--slowdowns", "factor=5, every=200 ms, lasting=200 ms", "--stalls", "probability=0.1,factor=5"]
    results = []
    for name, arguments in (("plain", line), ("one", slow), ("two", slow)):
        assert invoke([*arguments, "--out", str(tmp_path / name)]) == 0
        results += read_results(tmp_path / name / "results.json")
    plain, one, two = results
    # Slow for half of the time and stalled in a tenth of the steps; even half of what that costs is plain to see.
    assert one.wall_s > 2.0 * plain.wall_s
    assert (one.wall_s, one.parameters_sha256) == (two.wall_s, two.parameters_sha256)


def test_workers_of_a_task_are_lost_and_join(tmp_path: Path):
    line = f"simulate quadratic --policy asp --epochs 2 --lose 2@300ms --join 0.5s --out {tmp_path / 'out'}"
    assert invoke(line.split()) == 0
    [result] = read_results(tmp_path / "out" / "results.json")
    assert result.lost_workers == (2,)
    assert [worker.worker for worker in result.workers] == [0, 1, 2, 3, 4]
    assert result.workers[2].steps <= 300 // 20
    assert 0 < result.workers[4].steps < result.workers[0].steps


def test_workers_of_a_script_are_lost_by_chance_and_replaced(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("randn(64", "randn(640").replace("assert", "assert True or"))
    line = f"simulate {script} --policy asp --failures mtbf=1s,rejoin_after=10ms --out {tmp_path / 'out'} -- --lr 0.1"
    assert invoke(line.split()) == 0
    [result] = read_results(tmp_path / "out" / "results.json")
    assert result.lost_workers
    assert len(result.workers) > 4
    assert result.samples >= 640


@pytest.mark.parametrize("what", ["quadratic", "train.py"])
def test_a_collective_that_loses_a_worker_is_finished_by_the_others(what: str, tmp_path: Path):
    if what == "train.py":
        what = str(tmp_path / what)
        Path(what).write_text(SCRIPT.replace('"--lr", type=float', '"--lr", type=float, default=0.1'))
    assert invoke(["simulate", what, "--lose", "1@50ms", "--out", str(tmp_path / "out")]) == 0
    [result] = read_results(tmp_path / "out" / "results.json")
    assert (result.status, result.lost_workers) == ("finished", (1,))


@pytest.mark.parametrize("what", ["quadratic", "train.py"])
def test_faults_that_come_after_the_end_are_told(what: str, tmp_path: Path):
    if what == "train.py":
        what = str(tmp_path / what)
        Path(what).write_text(SCRIPT.replace('"--lr", type=float', '"--lr", type=float, default=0.1'))
    line = f"simulate {what} --lose 1@50ms --lose 2@1h --join 2h --out {tmp_path / 'out'}"
    assert invoke(line.split()) == 0
    [result] = read_results(tmp_path / "out" / "results.json")
    told = [text.partition(", and the run was over before")[0] for text in result.fallbacks if "was over" in text]
    assert told == ["worker 2 was to be lost at 1 h 0 min", "a worker was to join at 2 h 0 min"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--step-time 20", '--step-time: "20" is not a duration'),
        ("--step-time lognormla:20ms", 'there is no kind "lognormla"; did you mean "lognormal"?'),
        ("--step-time lognormal:20ms", "workers.step_time.cv is missing"),
        ("--step-time pareto:shape=2", "workers.step_time.min is missing"),
        ("--step-time gamma:20ms,cf=1", 'workers.step_time: unknown key "cf"'),
        ("--step-time gamma:20ms,1", '--step-time "mean=20ms,1": write keys and their values, as in lognormal:20ms'),
        ("--step-time trace:none.txt", "cannot read the step-time trace"),
        ("--stalls 0.1", '--stalls "0.1": write keys and their values, as in probability=0.01,factor=10'),
        ("--stalls factor=2,factor=3", "factor is there twice"),
        ("--stalls probability=2,factor=3", "workers.stalls: probability is 2; write 0 to 1"),
        ("--slowdowns factor=3,every=2,lasting=1s", "workers.slowdowns.every: 2.0 has no unit"),
        ("--failures shape=1", "workers.failures.mtbf is missing"),
        ("--lose 2", '--lose "2": write a rank and a time, as in 2@1.5s'),
        ("--lose 2@1", '--lose: "1" is not a duration'),
        ("--lose 9@1s", "there is no worker 9 to lose at 1 s: 4 have begun"),
        ("--join soon", '--join: "soon" is not a duration'),
        ("--join 1s --policy hier:bsp/ssp:4", "no worker can join under hier:bsp/ssp:4"),
        ("--slow 4:1", '--slow "4:1": there is no rank 4'),
        ("--cluster 4x1gb", '--cluster: unknown cluster "4x1gb"; did you mean "4x1gbe"?'),
        ("--workers 5 --cluster 4x1gbe", "--cluster: cluster 4x1gbe has room for 4 workers"),
        ("--batch-size 0", "--batch-size is 0; write 1 or more"),
        ("--batch-size many", '--batch-size: "many" is no whole number'),
        ("--epochs 0", "--epochs is 0.0; write more than 0"),
        ("--target nan", "--target is nan; write a finite number"),
        ("--option 0.1", '--option "0.1": write a key and its value, as in learning_rate=0.1'),
        ("--option dimension=4 --option dimension=8", "--option dimension is there twice"),
        ("--option dimensions=8", 'task "quadratic" has no option "dimensions"; it accepts'),
        ("--option dimension=wide", "task \"quadratic\": dimension = 'wide'; write a whole number"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_the_folder_alone(
    options: str, message: str, tmp_path: Path, refused: Callable[[str], str]
):
    policy = "" if "--policy" in options else "--policy asp "
    assert message in refused(f"simulate quadratic {policy}{options} --out {tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_a_task_is_given_options_a_batch_size_and_a_target(tmp_path: Path):
    results = []
    for name, more in {"plain": "", "other": "--option dimension=8 --batch-size 4 --target 0.5"}.items():
        line = f"simulate quadratic --option num_samples=512 --policy bsp --epochs 1 {more} --out {tmp_path / name}"
        assert invoke(line.split()) == 0
        results += read_results(tmp_path / name / "results.json")
    plain, other = results
    assert other.target == 0.5 != plain.target
    assert other.bytes_sent_total / other.steps < plain.bytes_sent_total / plain.steps
    assert other.steps > plain.steps


@pytest.mark.parametrize("options", ["--batch-size 4", "--option lr=0.1", "--target 0.9"])
def test_what_is_for_a_task_is_refused_for_a_script(options: str, tmp_path: Path, refused: Callable[[str], str]):
    (script := tmp_path / "train.py").write_text(SCRIPT)
    error = refused(f"simulate {script} {options} --out {tmp_path / 'out'}")
    assert f"{options.split()[0]} is for a task" in error
    assert "follow --" in error


def test_planned_faults_are_refused_in_the_process_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'task.name = "quadratic"\nrun = { policies = ["asp"], epochs = 1 }\n[workers]\ncount = 2\n'
        'step_time = { kind = "constant", mean = "10 ms" }\nfailures = { mtbf = "1 h" }\ncluster = "4x1gbe"\n'
    )
    line = ["compare", str(recipe), "--out", str(tmp_path / "out")]
    assert invoke(line) == 2
    assert "--world virtual" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert invoke([*line, "--world", "virtual"]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import torch.distributed as dist; dist.init_process_group('gloo')", "init_process_group"),
        ("x = 1", "never called plesio.join"),
        ("def (", "line 1"),
        ("import sys; sys.exit(3)", "ended with status 3"),
        ("import argparse; argparse.ArgumentParser().error('no --lrr')", "no --lrr"),
    ],
)
def test_a_script_that_cannot_be_simulated_is_one_clear_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert invoke(["simulate", str(script), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.count(message) == 1
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
    assert "other settings (workers.cluster, world)" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_keeps_the_finished_runs_and_the_figures_of_the_other(tmp_path: Path):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'task.name = "quadratic"\nrun = { policies = ["bsp", "asp"], samples = 400_000, seeds = [0] }\n'
        'workers = { count = 2, step_time = { kind = "constant", mean = "10 ms" } }\n'
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "plesio", "compare", str(recipe), "--out", str(out), "--world", "virtual"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        trace = out / "runs" / "bsp-seed0" / "trace-0.jsonl"
        deadline_s = time.monotonic() + 60
        while not (trace.exists() and trace.read_text().count("\n") > 1) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "--resume" in errors
    [result] = read_results(out / "runs" / "bsp-seed0" / "results.json")
    assert result.status == "interrupted"
    assert 0 < result.samples < 400_000


@pytest.mark.parametrize("command", ["simulate", "compare", "sweep", "lab calibrate"])
def test_options_for_keys_of_a_recipe_have_the_recipes_explanations(command: str, capsys: pytest.CaptureFixture[str]):
    assert invoke([*command.split(), "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    cluster, batch_size = input_of(WorkersSection, "cluster"), input_of(TaskSection, "batch_size")
    assert (cluster.help in told) == (command != "lab calibrate")
    assert (batch_size.help in told) == (command in ("simulate", "lab calibrate"))
    assert ("Keys: probability, factor." in told) == (command == "simulate")
    assert "Examples:" in told
