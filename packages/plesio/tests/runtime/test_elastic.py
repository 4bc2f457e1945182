"""Real processes go on in a collective without a worker that is killed, or that sleeps past its lease."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plesio.core.results import RunResult, read_results
from plesio.runtime.job_store import listen
from plesio.testing import LocalJob

pytestmark = pytest.mark.timeout(180)

WORKER = Path(__file__).with_name("fault_worker.py")
NUM_SAMPLES, NUM_WORKERS = 480, 4
SLOW = pytest.mark.slow


def outcomes(folder: Path) -> dict[int, dict[str, Any]]:
    return {int(path.stem.split("-")[1]): json.loads(path.read_text()) for path in folder.glob("rank-*.json")}


def result_in(folder: Path) -> RunResult:
    path = folder / "trace" / "results.json"
    deadline_s = time.monotonic() + 30  # the server closes the records a moment after the last worker
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return read_results(path)[0]


def run(policy: str, folder: Path, plan: dict[str, Any]) -> tuple[dict[int, dict[str, Any]], RunResult]:
    with LocalJob(NUM_WORKERS) as job:
        waker = threading.Thread(target=wake, args=(folder, plan), daemon=True)
        waker.start()
        job.run(WORKER, "train", timeout_s=120, policy=policy, folder=folder, plan={"step_s": 0.01, **plan})
        waker.join()
    return outcomes(folder), result_in(folder)


def wake(folder: Path, plan: dict[str, Any]) -> None:
    """Wake the worker that sleeps when the others have gone on without it."""
    others = [folder / f"went-on-{rank}" for rank in range(NUM_WORKERS) if rank != plan["rank"]]
    while plan["fault"] == "stop" and not all(path.exists() for path in others):
        time.sleep(0.05)
    if plan["fault"] == "stop":
        os.kill(int((folder / "stopped").read_text()), signal.SIGCONT)


def assert_went_on(found: dict[int, dict[str, Any]], result: RunResult, *, lost: int, epochs: int = 1) -> None:
    rest = [found[rank] for rank in range(NUM_WORKERS) if rank != lost]
    assert [one["error"] for one in rest] == [None] * 3, rest
    assert len({one["digest"] for one in rest}) == 1, "replicas differ"
    assert (result.status, result.error, result.lost_workers) == ("finished", None, (lost,))
    assert result.final_metric is not None
    assert result.samples == epochs * NUM_SAMPLES
    visited = Counter(number for one in rest for number in one["visited"])
    assert set(visited.values()) <= {epochs, epochs - 1}, "a sample was trained on too often by who is left"
    assert set(visited) | set(found[lost]["visited"]) == set(range(NUM_SAMPLES))


@pytest.mark.parametrize(
    ("policy", "lost"),
    [
        ("bsp", 1),
        pytest.param("local_sgd:4,delay=2", 0, marks=SLOW),
        pytest.param("bsp", 0, marks=SLOW),
        pytest.param("local_sgd:4", 1, marks=SLOW),
        pytest.param("local_sgd:4,compress=qsgd:8", 2, marks=SLOW),
        pytest.param("bsp,compress=fp16", 2, marks=SLOW),
        pytest.param("fsdp,mirror=1", 0, marks=SLOW),
        pytest.param("adaptive", 2, marks=SLOW),
        pytest.param("switch:bsp/asp@9/bsp@14", 3, marks=SLOW),
        pytest.param("switch:bsp/asp@3/bsp@10", 1, marks=SLOW),
        pytest.param("switch:local_sgd:4/bsp@6", 0, marks=SLOW),
    ],
)
def test_the_others_finish_without_a_killed_worker(policy: str, lost: int, tmp_path: Path) -> None:
    found, result = run(policy, tmp_path, {"fault": "kill", "rank": lost, "step": 7})
    assert_went_on(found, result, lost=lost)
    if policy.startswith("switch"):
        assert result.decisions[-1]["policy"] == "bsp", "a loss on the store does not bar the way back"


@pytest.mark.parametrize("policy", ["bsp", *(pytest.param(it, marks=SLOW) for it in ("local_sgd:4", "fsdp,mirror=1"))])
def test_the_others_finish_without_a_worker_that_sleeps_and_it_is_refused(policy: str, tmp_path: Path) -> None:
    found, result = run(policy, tmp_path, {"fault": "stop", "rank": 1, "step": 7, "epochs": 8})
    assert_went_on(found, result, lost=1, epochs=8)
    assert found[1]["error"] == "WorkerLostError"
    assert "counted lost; it comes back as a new process" in found[1]["message"]
    assert len(found[1]["visited"]) == 6 * 8, "a step of an expelled worker came back as if it had counted"


@pytest.mark.parametrize(
    ("policy", "lost"),
    [("bsp", 0), ("asp", 1), *(pytest.param(policy, lost, marks=SLOW) for policy, lost in (("bsp", 1), ("asp", 0)))],
)
def test_a_worker_that_wakes_up_when_the_others_have_ended_is_told_so(policy: str, lost: int, tmp_path: Path) -> None:
    """Worker 0 has started the server, which then ends with it; else the server has ended when the other wakes up."""
    plan = {"fault": "stop", "rank": lost, "step": 7}
    with LocalJob(2) as job:
        for rank in range(2):
            job.start(rank, WORKER, "train", policy=policy, folder=tmp_path, plan=plan)
        job.wait(timeout_s=60, ranks=[1 - lost])
        os.kill(int((tmp_path / "stopped").read_text()), signal.SIGCONT)
        job.wait(timeout_s=12)
    found = outcomes(tmp_path)
    assert (found[lost]["error"], found[1 - lost]["error"]) == ("WorkerLostError", None)
    said = "the run ended without this worker" if lost == 0 else "the job's server does not answer it"
    assert said in found[lost]["message"]
    assert result_in(tmp_path).lost_workers == (lost,)


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "lost"), [("bsp", 2), ("ssp:2", 2), ("asp", 0)])
def test_a_worker_that_holds_its_interpreter_past_its_lease_is_done_without(
    policy: str, lost: int, tmp_path: Path
) -> None:
    """Worker 0 has started the server, which the others go on with."""
    found, result = run(policy, tmp_path, {"fault": "hold", "rank": lost, "step": 7, "epochs": 50})
    assert (result.status, result.lost_workers) == ("finished", (lost,))
    assert found[lost]["error"] == "WorkerLostError"
    assert [found[rank]["error"] for rank in range(NUM_WORKERS) if rank != lost] == [None] * 3


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_the_launcher_says_in_a_line_that_the_others_have_finished_and_exits_0(policy: str, tmp_path: Path) -> None:
    plan = json.dumps({"fault": "kill", "rank": 1, "step": 7, "step_s": 0.01})
    command = [sys.executable, "-m", "plesio", "run", "--workers", "4", str(WORKER), policy, str(tmp_path)]
    done = subprocess.run([*command, plan], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "more can join" not in line]
    assert said == [
        "plesio: rank 1 was killed by SIGKILL; 3 of 4 go on",
        "plesio: the others have finished the run without rank 1",
    ]


@pytest.mark.slow
def test_where_rank_0_hosts_the_key_value_store_the_others_meet_elsewhere(tmp_path: Path) -> None:
    """A launcher that only sets the variables does the same: the store is gone with the worker that is killed."""
    with listen(0) as listener:
        port = listener.getsockname()[1]
    plan = json.dumps({"fault": "kill", "rank": 0, "step": 7, "step_s": 0.01})
    workers = []
    for rank in range(NUM_WORKERS):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
        command = [sys.executable, str(WORKER), "bsp", str(tmp_path), plan]
        workers.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    endings = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [-signal.SIGKILL, 0, 0, 0], endings
    assert_went_on(outcomes(tmp_path), result_in(tmp_path), lost=0)
