"""The main job on real worker processes: results, traces, resuming, Ctrl-C, and a worker that is killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio.core.results import read_results
from plesio.core.trace import read_trace
from plesio.policies import read_log, verify

pytestmark = pytest.mark.timeout(240)

RECIPE = """
[task]
name = "{task}"

[run]
policies = {policies}
seeds = [0]
samples = {samples}
evaluate_every = 320

[workers]
count = 2
step_time = {{ kind = "constant", mean = "{mean}" }}
"""

SUICIDAL = """
import dataclasses, os, signal
from plesio.tasks.digits import digits

def task():
    made = digits()

    def per_worker(worker, num_workers):
        steps = 0

        def loss(model, batch):
            nonlocal steps
            steps += 1
            if worker == 1 and steps == 5 and not os.path.exists("{flag}"):
                open("{flag}", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return made.loss(model, batch)

        return dataclasses.replace(made, loss=loss)

    return dataclasses.replace(made, per_worker=per_worker)
"""


def write_recipe(
    folder: Path, *, policies: list[str], task: str = "digits", samples: int = 640, mean: str = "1 ms"
) -> Path:
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(task=task, policies=json.dumps(policies), samples=samples, mean=mean))
    return path


def start(*args: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "plesio", "compare", *map(str, args)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def compare(*args: str | Path) -> int:
    """In this process, whose fork server has imported torch already."""
    return invoke(["compare", *map(str, args)])


def test_comparison_writes_results_traces_and_report_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    recipe = write_recipe(tmp_path, policies=["bsp", "asp"])
    out = tmp_path / "out"
    assert compare(recipe, "--out", out, "--policies", "bsp") == 0
    capsys.readouterr()
    assert compare(recipe, "--out", out, "--resume") == 0
    printed, progress = capsys.readouterr()
    assert "[1/2] bsp · seed 0: kept" in progress
    assert "bsp" in printed
    assert str(out / "report.html") in printed
    runs = read_results(out / "results.json")
    assert [(run.policy, run.status, run.samples) for run in runs] == [
        ("bsp", "finished", 640),
        ("asp", "finished", 640),
    ]
    text = recipe.read_text()
    recipe.write_text(text.replace("evaluate_every = 320", "evaluate_every = 320\ntarget = 0.0"))
    assert recipe.read_text() != text
    assert compare(recipe, "--out", out, "--resume") == 0
    assert all(run.time_to_target_s is not None for run in read_results(out / "results.json"))
    for result in runs:
        assert [point.samples for point in result.evaluations] == [320, 640]
        assert result.final_metric == result.evaluations[-1].metric
        assert result.parameters_sha256 is not None
        assert result.bytes_sent_total > 0
        assert len(result.workers) == 2
        assert result.environment is not None
        folder = out / "runs" / f"{result.policy}-seed0"
        trace = read_trace(folder / "trace-1.jsonl")
        assert {"compute"} <= {record.kind for record in trace.records}
        assert json.loads((folder / "perfetto.json").read_text())["traceEvents"]
        assert verify(read_log(folder / "events.jsonl")) is None


@pytest.mark.slow
def test_bsp_is_repeatable_from_its_seed(tmp_path: Path):
    recipe = write_recipe(tmp_path, policies=["bsp"])
    digests = []
    for name in ("first", "second"):
        assert compare(recipe, "--out", tmp_path / name) == 0
        digests.append(read_results(tmp_path / name / "results.json")[0].parameters_sha256)
    assert digests[0] == digests[1]


def test_ctrl_c_keeps_finished_runs_and_leaves_nothing_behind(tmp_path: Path):
    recipe = write_recipe(tmp_path, policies=["bsp", "local_sgd:2"], samples=1920, mean="30 ms")
    out = tmp_path / "out"
    with start(recipe, "--out", out, "--policies", "local_sgd:4,local_sgd:2") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "[2/2]" in line and "started" in line:
                break
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        rest = process.stdout.read()
        assert process.wait(60) == 130, rest
    assert "--resume" in rest
    assert "Traceback" not in rest
    assert [run.policy for run in read_results(out / "results.json")] == ["local_sgd:4"]
    # that servers and workers are gone is looked at after every test (conftest.py)


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [True, False])
def test_a_killed_worker_ends_its_collective_run_only_if_asked_to_and_the_next_has_fresh_workers(
    elastic: bool, tmp_path: Path
):
    (tmp_path / "suicidal.py").write_text(SUICIDAL.format(flag=tmp_path / "flag"))
    recipe = write_recipe(tmp_path, policies=["bsp", "asp"], task="suicidal.py:task")
    if not elastic:
        recipe.write_text(recipe.read_text().replace("[run]", "[run]\nelastic = false"))
    assert compare(recipe, "--out", tmp_path / "out") == (0 if elastic else 1)
    first, second = read_results(tmp_path / "out" / "results.json")
    assert (first.policy, first.status, first.lost_workers) == ("bsp", "finished" if elastic else "failed", (1,))
    assert not elastic or first.samples == 640
    assert (second.policy, second.status, second.samples, second.lost_workers) == ("asp", "finished", 640, ())


@pytest.mark.slow
def test_killed_worker_of_a_store_run_is_done_without(tmp_path: Path):
    (tmp_path / "suicidal.py").write_text(SUICIDAL.format(flag=tmp_path / "flag"))
    recipe = write_recipe(tmp_path, policies=["ssp:2"], task="suicidal.py:task", mean="5 ms")
    compare(recipe, "--out", tmp_path / "out")
    (result,) = read_results(tmp_path / "out" / "results.json")
    assert result.status == "finished"
    assert result.lost_workers == (1,)
    assert result.samples >= 640  # what the lost worker had begun was done by the other
    assert result.final_metric is not None


@pytest.mark.slow
def test_model_without_parameters_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty.py").write_text(
        "import dataclasses, torch\nfrom plesio.tasks.digits import digits\n"
        "def task():\n"
        "    build = lambda seed: (torch.nn.Identity(), torch.optim.SGD([torch.zeros(1)], lr=0.1))\n"
        "    return dataclasses.replace(digits(), build=build)\n"
    )
    recipe = write_recipe(tmp_path, policies=["bsp"], task="empty.py:task")
    assert compare(recipe, "--out", tmp_path / "out") == 2
    complaints = capsys.readouterr().err
    assert "no trainable parameters" in complaints
    assert "Traceback" not in complaints
