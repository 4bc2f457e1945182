"""Real processes join a running collective, in the place of one that is killed and beside those that are there."""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plesio.core.results import read_results
from plesio.testing import LocalJob

pytestmark = pytest.mark.timeout(300)

WORKER = Path(__file__).with_name("fault_worker.py")
NUM_SAMPLES = 480
SLOW = pytest.mark.slow


def train(policy: str, folder: Path, plan: dict[str, Any], *, begun: str) -> None:
    """Three workers, and a fourth that joins when the others' file ``begun`` is there."""
    told = {"policy": policy, "folder": folder}
    plan = {"step_s": 0.01, "epochs": 4000, "await": True, **plan}
    with LocalJob(3) as job:
        for rank in range(3):
            job.start(rank, WORKER, "train", plan=plan, **told)
        while not (folder / begun).exists():
            time.sleep(0.02)
        job.start(3, WORKER, "train", plan=plan | {"fault": "none"}, **told)
        job.wait(timeout_s=200)


def train_by_the_command(policy: str, folder: Path, plan: dict[str, Any], *options: str) -> None:
    """The same by `plesio run`, and `plesio run --join` when the others have begun; all end well."""
    program = [str(WORKER), policy, str(folder), json.dumps({"step_s": 0.01, "epochs": 4000, "await": True, **plan})]
    run = [sys.executable, "-m", "plesio", "run", *options]
    with subprocess.Popen(
        [*run, "--workers", "3", *program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as first:
        assert first.stdout is not None
        line = next(line for line in first.stdout if "--join" in line)
        address = line.split("--join ")[1].split()[0]
        while not (folder / "started").exists():
            time.sleep(0.02)
        done = subprocess.run(
            [*run, "--join", address, *program], capture_output=True, text=True, timeout=200, check=False
        )
        output, _ = first.communicate(timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr + output
    assert first.returncode == 0, output


def outcomes(folder: Path) -> dict[int, dict[str, Any]]:
    return {int(path.stem.split("-")[1]): json.loads(path.read_text()) for path in folder.glob("rank-*.json")}


@pytest.mark.parametrize(
    "policy",
    [
        "bsp",
        *(
            pytest.param(policy, marks=SLOW)
            for policy in (
                "local_sgd:8",
                "delayed:2",
                "switch:bsp/local_sgd:4@30",
                "bsp,compress=fp16",
                "fsdp,mirror=1",
            )
        ),
    ],
)
def test_one_joins_in_the_place_of_a_killed_worker(policy: str, tmp_path: Path) -> None:
    train(policy, tmp_path, {"fault": "kill", "rank": 1, "step": 7}, begun="went-on-2")
    found = outcomes(tmp_path)
    rest = [found[rank] for rank in (0, 2, 3)]
    assert [one["error"] for one in rest] == [None] * 3, rest
    assert len({one["digest"] for one in rest}) == 1, "replicas differ"
    assert found[3]["cut_off"] == 0
    [result] = read_results(tmp_path / "trace" / "results.json")
    assert (result.status, result.error, result.lost_workers) == ("finished", None, (1,))
    assert result.workers[-1].worker == 3
    assert result.workers[-1].steps > 0
    assert result.samples % NUM_SAMPLES == 0
    if policy.startswith("delayed"):  # after a loss the last steps of everybody are done again
        return
    visited = Counter(number for one in rest for number in one["visited"])
    own = Counter(found[1]["visited"])
    epochs = result.samples // NUM_SAMPLES
    assert all(epochs - own[number] <= visited[number] <= epochs for number in range(NUM_SAMPLES))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bsp", "local_sgd:8", "fsdp"])
def test_while_one_joins_no_step_is_done_twice(policy: str, tmp_path: Path) -> None:
    train(policy, tmp_path, {"fault": "none"}, begun="started")
    found = outcomes(tmp_path)
    assert [found[rank]["cut_off"] for rank in range(4)] == [0] * 4
    assert len({one["digest"] for one in found.values()}) == 1, "replicas differ"
    [result] = read_results(tmp_path / "trace" / "results.json")
    visited = Counter(number for one in found.values() for number in one["visited"])
    assert set(visited.values()) == {result.samples // NUM_SAMPLES}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bsp", "fsdp"])
def test_one_joins_beside_checkpoints(policy: str, tmp_path: Path) -> None:
    options = ("--checkpoint", str(tmp_path / "ck"), "--every", "20 steps")
    train_by_the_command(policy, tmp_path, {"fault": "none"}, *options)
    assert len({one["digest"] for one in outcomes(tmp_path).values()}) == 1, "replicas differ"
