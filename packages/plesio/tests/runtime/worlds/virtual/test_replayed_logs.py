"""Differential: the event log that a job wrote, on processes and in virtual time, through the policy once more."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.results import RunResult, read_results
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import Constant
from plesio.policies import Arrived, Event, EventLog, Left, parse_policy, read_log, replay, verify, write_log
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.processes import on_processes, own_job

NUM_WORKERS, NUM_SAMPLES, BATCH_SIZE, EPOCHS = 2, 64, 4, 2
STEP_S = (0.001, 0.004)
"""By rank: under a relaxed policy one worker takes more steps, and waits at the bound."""
POLICIES = ["bsp,exchange=store", "ssp:2", "local_sgd:3,exchange=store"]
WORLDS = ["process", "virtual"]


def train(policy: str, *, folder: Path, rank: int, **options: Any) -> None:
    torch.manual_seed(rank)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x = torch.randn(NUM_SAMPLES, 6, generator=torch.Generator().manual_seed(1))
    pacer = Pacer(step_time=Constant(mean_s=STEP_S[rank]), seed=0, worker=rank, **options.pop("paced_by", {}))
    with plesio.join(
        model, optimizer, policy=policy, trace=folder, options=plesio.JoinOptions(pacer=pacer, **options)
    ) as session:
        for _ in range(EPOCHS):
            for (batch,) in session.shard(DataLoader(TensorDataset(x), batch_size=BATCH_SIZE, shuffle=True)):
                loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                loss.backward()
                session.step(loss)


def train_on_processes(*, folders: dict[str, Path]) -> None:
    """All policies in one job, for `LocalJob`."""
    with own_job() as job:
        for policy, folder in folders.items():
            train(policy, folder=folder, rank=job.place.rank, job=job)


def train_on_virtual_workers(policy: str, folder: Path) -> None:
    def main(job: VirtualJob) -> None:
        train(policy, folder=folder, rank=job.place.rank, paced_by={"clock": job.clock})

    simulate(main, num_workers=NUM_WORKERS, cluster=Cluster.one_host(NUM_WORKERS)).values()


@dataclass(frozen=True)
class Recorded:
    path: Path
    result: RunResult
    log: EventLog

    @property
    def events(self) -> list[Event]:
        return [entry.event for entry in self.log.entries]

    def arrivals(self, worker: int) -> list[tuple[int, int]]:
        """Clock and steps of each update."""
        found = [event for event in self.events if isinstance(event, Arrived) and event.worker == worker]
        return [(event.clock, event.num_steps) for event in found]


Logs = dict[tuple[str, str], Recorded]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """By policy and world."""
    root = tmp_path_factory.mktemp("logs")
    folders = {
        (policy, world): root / f"{number}-{world}" for number, policy in enumerate(POLICIES) for world in WORLDS
    }
    real = {policy: folders[policy, "process"] for policy in POLICIES}
    on_processes(NUM_WORKERS, __file__, "train_on_processes", folders=real)
    for policy in POLICIES:
        train_on_virtual_workers(policy, folders[policy, "virtual"])
    found = {}
    for key, folder in folders.items():
        [result] = read_results(folder / "results.json")
        found[key] = Recorded(folder / "events.jsonl", result, read_log(folder / "events.jsonl"))
    return found


def kinds(events: list[Event]) -> set[str]:
    """Return the kinds of events, and the reasons why workers left."""
    return {f"left, {event.reason}" if isinstance(event, Left) else type(event).__name__.lower() for event in events}


each_policy = pytest.mark.parametrize("policy", POLICIES)
each_world = pytest.mark.parametrize("world", WORLDS)


@each_policy
@each_world
def test_a_log_replays_through_the_policy_to_the_actions_that_were_taken(logs: Logs, policy: str, world: str):
    recorded = logs[policy, world]
    assert recorded.result.world == world
    assert recorded.log.policy == parse_policy(policy)
    assert verify(recorded.log) is None
    assert replay(recorded.log.policy, recorded.events) == [entry.actions for entry in recorded.log.entries]
    machine = recorded.log.policy.start()
    for event in recorded.events:
        machine.handle(event)
        machine.validate()


@each_policy
@each_world
def test_a_log_is_complete(logs: Logs, policy: str, world: str, tmp_path: Path):
    """Every step of the results is in it, and it is written again byte by byte as it was."""
    recorded = logs[policy, world]
    assert recorded.result.samples == EPOCHS * NUM_SAMPLES
    for worker in recorded.result.workers:
        assert sum(num_steps for _, num_steps in recorded.arrivals(worker.worker)) == worker.steps > 0
    write_log(tmp_path / "again.jsonl", recorded.log)
    assert (tmp_path / "again.jsonl").read_bytes() == recorded.path.read_bytes()


@each_policy
def test_both_worlds_write_the_same_kinds_of_events(logs: Logs, policy: str):
    process, virtual = (logs[policy, world].events for world in WORLDS)
    assert kinds(process) == kinds(virtual)
    # under a relaxed policy who has no samples left rests, and has nothing more to leave when it closes
    leaving = "left, closed" if parse_policy(policy).synchronous else "left, resting"
    assert kinds(process) >= {"joined", "arrived", leaving}


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if parse_policy(policy).synchronous])
def test_each_worker_sends_the_same_updates_in_both_worlds_where_no_clock_has_a_say(logs: Logs, policy: str):
    for worker in range(NUM_WORKERS):
        process, virtual = (logs[policy, world].arrivals(worker) for world in WORLDS)
        assert process == virtual


@each_world
def test_bsp_and_ssp_with_a_bound_of_0_answer_a_real_log_alike(logs: Logs, world: str):
    """And a policy that lets workers run ahead does not."""
    recorded = logs["bsp,exchange=store", world]
    actions = [entry.actions for entry in recorded.log.entries]
    assert replay(parse_policy("ssp:0"), recorded.events) == actions
    assert replay(parse_policy("asp"), recorded.events) != actions
