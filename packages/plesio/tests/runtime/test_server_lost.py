"""The server of a run on a collective is killed: its workers finish the run, and its results are those of all."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from plesio.core.results import RunResult, read_results
from plesio.testing import LocalJob

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(__file__).with_name("programs.py")
WORKER = Path(__file__).with_name("fault_worker.py")
NUM_SAMPLES = 480


def run(
    policy: str, folder: Path, plan: dict[str, Any], *, workers: int = 3
) -> tuple[dict[int, dict[str, Any]], RunResult | None]:
    with LocalJob(workers) as job:
        job.run(WORKER, "train", timeout_s=120, policy=policy, folder=folder, plan=plan)
    found = {int(path.stem.split("-")[1]): json.loads(path.read_text()) for path in folder.glob("rank-*.json")}
    results = folder / "trace" / "results.json"
    return found, read_results(results)[0] if results.exists() else None


@pytest.mark.parametrize(
    "policy",
    [
        "bsp",
        *(
            pytest.param(slow, marks=pytest.mark.slow)
            for slow in ("local_sgd:4", "delayed:2", "bsp,compress=qsgd:8", "hier:bsp/local_sgd:2")
        ),
    ],
)
def test_workers_of_a_collective_finish_without_their_server_as_with_it(policy: str, tmp_path: Path):
    plan = {"fault": "none", "step_s": 0.02, "epochs": 2}
    undisturbed, expected = run(policy, tmp_path / "with", plan)
    (tmp_path / "without").mkdir()
    found, result = run(policy, tmp_path / "without", {**plan, "server_step": 8})
    assert [found[rank]["error"] for rank in range(3)] == [None] * 3, found
    assert expected is not None
    assert result is not None
    assert {one["digest"] for one in found.values()} == {one["digest"] for one in undisturbed.values()}
    for name in ("status", "steps", "samples", "final_metric", "parameters_sha256", "racks", "num_workers", "error"):
        assert getattr(result, name) == getattr(expected, name), name
    assert [(one.worker, one.steps, one.samples) for one in result.workers] == [
        (one.worker, one.steps, one.samples) for one in expected.workers
    ]
    assert [(point.clock, point.loss) for point in result.losses] == [
        (point.clock, pytest.approx(point.loss)) for point in expected.losses
    ]
    assert all(one.compute_s > 0 and one.communicate_s > 0 for one in result.workers)
    assert result.bytes_sent["collective"] == pytest.approx(expected.bytes_sent["collective"], rel=0.5)
    assert len([line for line in result.fallbacks if line.startswith("the job's server was lost at step ")]) == 1


def test_samples_of_a_worker_that_was_lost_before_its_server_count(tmp_path: Path):
    plan = {"fault": "kill", "rank": 1, "step": 4, "step_s": 0.05, "server_step": 12}
    found, result = run("bsp", tmp_path, plan)
    assert [found[rank]["error"] for rank in (0, 2)] == [None, None], found
    assert result is not None
    assert (result.status, result.lost_workers, result.samples) == ("finished", (1,), NUM_SAMPLES)
    assert found[0]["digest"] == found[2]["digest"]
    assert {number for one in found.values() for number in one["visited"]} == set(range(NUM_SAMPLES))


def test_a_worker_that_is_lost_after_the_server_ends_the_run_at_once(tmp_path: Path):
    plan = {"fault": "kill", "rank": 1, "step": 12, "step_s": 0.05, "server_step": 4}
    began_s = time.time()
    found, result = run("bsp", tmp_path, plan)
    for rank in (0, 2):
        assert found[rank]["error"] == "TransportError", found
        assert "a worker was lost after the job's server" in found[rank]["message"]
        assert found[rank]["ended_s"] - began_s < 30
    assert result is None


@pytest.mark.parametrize(
    ("policy", "fails", "num_servers"),
    [("bsp,exchange=store", "apply", 1), ("asp", "apply", 1), ("asp", "pull", 1), ("bsp,exchange=store", "apply", 2)],
)
def test_a_server_that_cannot_do_what_was_decided_ends_the_run_for_all(policy: str, fails: str, num_servers: int):
    with LocalJob(2) as job:
        endings = job.run(
            PROGRAMS, "with_a_failing_shard", timeout_s=60, policy=policy, fails=fails, num_servers=num_servers
        )
    for ending in endings.values():
        assert ending.error == "TransportError", ending
        assert "has ended the connection" in ending.message


@pytest.mark.parametrize("policy", ["bsp,exchange=store", "asp"])
def test_a_worker_whose_update_another_server_than_the_first_refuses_is_lost_and_the_others_go_on(policy: str):
    with LocalJob(2) as job:
        endings = job.run(PROGRAMS, "with_a_refused_update", timeout_s=60, policy=policy)
    assert (endings[0].error, endings[0].value) == (None, (1,)), endings[0]
    # the others may be done, and the servers gone, before it asks
    assert endings[1].error in ("WorkerLostError", "TransportError"), endings[1]
