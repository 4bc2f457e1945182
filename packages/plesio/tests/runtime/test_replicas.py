"""Servers with a backup, in real processes: one of the two is killed at a random moment, and nothing is lost."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio.core.results import RunResult, read_results
from plesio.policies import Apply, Arrived, read_log, verify
from plesio.runtime.join_options import JoinOptions
from plesio.testing import LocalJob

pytestmark = pytest.mark.timeout(180)

COUNTING = Path(__file__).with_name("counting_worker.py")
FAULTS = Path(__file__).with_name("fault_worker.py")
STEPS = 400


def count(policy: str, folder: Path, *, victim: str, seed: int) -> tuple[float, RunResult]:
    """Train, check that each update has counted once, and return the parameter and the results."""
    with LocalJob(2) as job:
        arguments = {"policy": policy, "folder": folder, "steps": STEPS, "victim": victim, "seed": seed}
        endings = job.run(COUNTING, "count", timeout_s=120, **arguments)
    assert [one.error for one in endings.values()] == [None, None], endings
    log = read_log(folder / "events.jsonl")
    assert verify(log) is None
    events = [entry.event for entry in log.entries]
    arrived = Counter((event.worker, event.clock) for event in events if isinstance(event, Arrived))
    assert arrived == Counter({(worker, clock): 1 for worker in range(2) for clock in range(1, STEPS + 1)})
    applied = [action for entry in log.entries for action in entry.actions if isinstance(action, Apply)]
    updates = Counter(update for action in applied for update in action.updates)
    assert updates == arrived
    weight = endings[0].value["weight"]
    assert weight == pytest.approx(sum(action.weight for action in applied), abs=1e-3)
    return weight, read_results(folder / "results.json")[0]


@pytest.mark.parametrize(
    ("policy", "seed"),
    [
        ("asp", 1),
        *(pytest.param("asp", seed, marks=pytest.mark.slow) for seed in (2, 3, 4)),
        *(pytest.param("ssp:4", seed, marks=pytest.mark.slow) for seed in (5, 6, 7, 8)),
        *(pytest.param("bsp,exchange=store", seed, marks=pytest.mark.slow) for seed in (9, 10)),
    ],
)
def test_no_update_is_lost_or_counts_twice_when_the_server_is_killed(policy: str, seed: int, tmp_path: Path):
    _, result = count(policy, tmp_path, victim="primary", seed=seed)
    assert (result.status, result.lost_workers, result.steps) == ("finished", (), 2 * STEPS)
    assert [line for line in result.fallbacks if "its backup has taken over" in line]


@pytest.mark.slow
def test_a_run_goes_on_when_the_replica_is_killed(tmp_path: Path):
    _, result = count("asp", tmp_path, victim="backup", seed=1)
    assert result.status == "finished"
    assert [line for line in result.fallbacks if "the backup of the job's server was lost" in line]


def faults(policy: str, folder: Path, plan: dict[str, Any]) -> tuple[dict[int, dict[str, Any]], RunResult]:
    with LocalJob(3) as job:
        job.run(FAULTS, "train", timeout_s=120, policy=policy, folder=folder, plan=plan)
    found = {int(path.stem.split("-")[1]): json.loads(path.read_text()) for path in folder.glob("rank-*.json")}
    return found, read_results(folder / "trace" / "results.json")[0]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["bsp", "adaptive", "local_sgd:4"])
def test_server_0_is_killed_in_a_run_on_collectives(policy: str, tmp_path: Path):
    plan = {"fault": "none", "step_s": 0.02, "epochs": 2, "replicas": 2, "server_step": 9}
    found, result = faults(policy, tmp_path, plan)
    assert [found[rank]["error"] for rank in range(3)] == [None] * 3, found
    assert (result.status, result.samples, result.steps) == ("finished", 960, 120)
    assert len(result.losses) == 40
    assert [line for line in result.fallbacks if "its backup has taken over" in line]
    if policy != "adaptive":  # which may end on the store, where rank 0 has the final parameters
        assert len({one["digest"] for one in found.values()}) == 1
    assert verify(read_log(tmp_path / "trace" / "events.jsonl")) is None


@pytest.mark.slow
def test_a_worker_that_is_lost_after_the_server_is_done_without(tmp_path: Path):
    plan = {"fault": "kill", "rank": 1, "step": 12, "step_s": 0.05, "server_step": 4, "replicas": 2}
    found, result = faults("bsp", tmp_path, plan)
    assert [found[rank]["error"] for rank in (0, 2)] == [None, None], found
    assert (result.status, result.lost_workers, result.samples) == ("finished", (1,), 480)


def test_replicas_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="write a whole number of 1 to 2"):
        JoinOptions(replicas=3)
    with pytest.raises(ConfigError, match="leave num_servers out"):
        JoinOptions(replicas=2, num_servers=2)
    monkeypatch.setenv("PLESIO_REPLICAS", "2")
    assert JoinOptions().num_replicas == 2
    assert JoinOptions(replicas=1).num_replicas == 1
    monkeypatch.setenv("PLESIO_REPLICAS", "many")
    with pytest.raises(ConfigError, match="PLESIO_REPLICAS=many"):
        _ = JoinOptions().num_replicas
