"""Backup workers: what a step is made of, that each sample counts once, what a straggler costs. Some on processes."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import plesio
from plesio.core.clock import MonotonicClock
from plesio.core.results import read_results
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.link import Link
from plesio.cost.step_time import LogNormal
from plesio.policies import Apply, Arrived, EventLog, Refuse, RefuseReason, read_log, verify
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio_planning.studies.order_statistics import LogNormalTimes
from support.problems import Problem, perceptron
from support.processes import on_processes

NUM_SAMPLES, NUM_FEATURES, BATCH_SIZE, RATE = 240, 5, 4, 0.05
EQUAL, STRAGGLER = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 0.25)
"""Speeds of the workers."""
STEP_S, CV = 0.05, 0.2


def train(
    policy: str, *, trace: Path | None, linear: bool = False, momentum: float = 0.9, epochs: int = 2,
    samples: int = NUM_SAMPLES, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """One worker's training: the samples of each of its steps, and what it ended with."""
    model, data = perceptron(NUM_FEATURES, 0 if linear else 7), Problem(NUM_SAMPLES, NUM_FEATURES)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    batches: list[list[int]] = []
    joined = plesio.JoinOptions(info=RunInfo(seed=7), **options)
    with plesio.join(model, optimizer, policy=policy, trace=trace, options=joined) as session:
        for _ in range(epochs):
            for index, x, y in session.shard(DataLoader(data, batch_size=BATCH_SIZE, shuffle=True), samples=samples):
                # a linear loss has the same gradient wherever the parameters are
                loss = model(x).mean() if linear else (model(x) - y).square().mean()
                loss.backward()
                session.step(loss)
                batches.append(index.tolist())
        session.finish(lambda: float((model(data.x) - data.y).square().mean()))
    return {"batches": batches, "weights": [p.tolist() for p in model.parameters()]}


def run(
    policy: str, *, speeds: Sequence[float] = EQUAL, trace: Path | None = None, cv: float = CV,
    faults: Sequence[Fault] = (), **options: Any,
) -> Simulation[dict[str, Any]]:  # fmt: skip
    def work(job: VirtualJob) -> dict[str, Any]:
        rank = job.place.rank
        speed = speeds[rank] if rank < len(speeds) else 1.0
        pacer = Pacer(step_time=LogNormal(mean_s=STEP_S, cv=cv), speed=speed, seed=5, worker=rank, clock=job.clock)
        return train(policy, trace=trace, pacer=pacer, **options)

    hosts = len(speeds) + sum(fault.kind == "join" for fault in faults)
    link = Link(latency_s=1e-5, bytes_per_s=1e9)
    cluster = Cluster(name="c", hosts=hosts, workers_per_host=1, cores_per_host=1, racks=1, nic=link)
    return simulate(work, num_workers=len(speeds), cluster=cluster, faults=faults)


Step = tuple[int, int]
"""A worker, and which of its steps; clocks go back when a worker has rested."""


def outcomes(log: EventLog) -> tuple[set[Step], list[list[Step]]]:
    """The steps that were dropped, and those of each version."""
    made: Counter[int] = Counter()
    step_at: dict[tuple[int, int], Step] = {}
    late, versions = set(), []
    for entry in log.entries:
        if isinstance(entry.event, Arrived):
            worker = entry.event.worker
            step_at[worker, entry.event.clock] = worker, made[worker]
            made[worker] += 1
        for action in entry.actions:
            if isinstance(action, Refuse) and action.reason is RefuseReason.LATE:
                late.add(step_at[action.worker, action.clock])
            elif isinstance(action, Apply):
                versions.append([step_at[update] for update in action.updates])
    return late, versions


def check_that_each_sample_counts_once(values: Sequence[dict[str, Any]], log: EventLog, *, epochs: int = 2) -> None:
    late, versions = outcomes(log)
    assert late
    counted = Counter(index for steps in versions for rank, step in steps for index in values[rank]["batches"][step])
    assert counted == dict.fromkeys(range(NUM_SAMPLES), epochs)
    assert sum(len(value["batches"]) for value in values) == len(late) + sum(map(len, versions))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("speeds", [EQUAL, STRAGGLER, (1.0, 0.7, 0.5)], ids=str)
def test_each_sample_counts_once_and_those_of_dropped_gradients_are_trained_on_by_others(
    speeds: Sequence[float], tmp_path: Path
) -> None:
    simulation = run("bsp,backup=1", speeds=speeds, trace=tmp_path)
    log = read_log(tmp_path / "events.jsonl")
    assert verify(log) is None
    check_that_each_sample_counts_once([value or {} for value in simulation.values()], log)
    [result] = simulation.runs
    assert (result.status, result.samples, result.staleness.max) == ("finished", 2 * NUM_SAMPLES, 0)
    assert sum(worker.samples for worker in result.workers) == 2 * NUM_SAMPLES
    by_worker = Counter(str(worker) for worker, _ in outcomes(log)[0])
    assert result.refused_updates == {worker: {"late": number} for worker, number in sorted(by_worker.items())}


def test_a_step_is_the_mean_of_the_gradients_that_came_in_time(tmp_path: Path) -> None:
    """A linear model's gradients are the means of inputs: all steps together, by hand."""
    simulation = run("bsp,backup=1", speeds=STRAGGLER, trace=tmp_path, linear=True, momentum=0.0)
    values = [value or {} for value in simulation.values()]
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    expected = next(perceptron(NUM_FEATURES, 0).parameters()).detach().clone()
    _, versions = outcomes(read_log(tmp_path / "events.jsonl"))
    for steps in versions:
        means = [data.x[values[rank]["batches"][step]].mean(0) for rank, step in steps]
        expected -= RATE * torch.stack(means).mean(0)
    torch.testing.assert_close(torch.tensor(values[0]["weights"][0], dtype=torch.float64), expected)


@pytest.mark.parametrize("policy", ["bsp,backup=1", pytest.param("bsp,backup=3", marks=pytest.mark.slow)])
def test_equal_arguments_give_equal_runs_to_the_bit(policy: str, tmp_path: Path) -> None:
    one, other = (run(policy, speeds=STRAGGLER, trace=tmp_path / name) for name in ("one", "other"))
    assert one.values() == other.values()
    assert one.runs == other.runs
    assert (tmp_path / "one" / "events.jsonl").read_bytes() == (tmp_path / "other" / "events.jsonl").read_bytes()


def test_with_a_backup_worker_a_straggler_costs_nothing_like_what_it_costs_without() -> None:
    def time_s(policy: str, speeds: Sequence[float]) -> float:
        return run(policy, speeds=speeds, epochs=1, samples=2 * NUM_SAMPLES).runs[0].wall_s

    assert time_s("bsp,exchange=store", STRAGGLER) > 3 * time_s("bsp,exchange=store", EQUAL)
    with_it = time_s("bsp,backup=1", STRAGGLER)
    assert with_it < 1.1 * time_s("bsp,backup=1", EQUAL)
    assert with_it < 1.1 * time_s("bsp,exchange=store", EQUAL[:3])


def test_a_step_takes_about_as_long_as_the_model_says(tmp_path: Path) -> None:
    """The mean of an order statistic, and a little more, for who was late begins late."""
    result = run("bsp,backup=1", trace=tmp_path, epochs=1, samples=6 * NUM_SAMPLES).runs[0]
    times = LogNormalTimes(mean_s=STEP_S, cv=CV)
    _, versions = outcomes(read_log(tmp_path / "events.jsonl"))
    step_s = result.wall_s / len(versions)
    assert 1.0 < step_s / times.expected_s(rank=3, of=4) < 1.1


@pytest.mark.parametrize("fault", ["lose fast", pytest.param("lose slow", marks=pytest.mark.slow), "join"])
def test_workers_may_come_and_go(fault: str, tmp_path: Path) -> None:
    kind, worker = ("join", -1) if fault == "join" else ("lose", 0 if fault == "lose fast" else 3)
    faults = [Fault(at_s=0.42, kind=kind, worker=worker)]
    simulation = run("bsp,backup=1", speeds=STRAGGLER, trace=tmp_path, faults=faults)
    [result] = simulation.runs
    assert verify(read_log(tmp_path / "events.jsonl")) is None
    assert (result.status, result.staleness.max) == ("finished", 0)
    assert 2 * NUM_SAMPLES <= result.samples <= 2 * NUM_SAMPLES + BATCH_SIZE  # a lost worker's last push counts


def on_a_process(trace: str, pace_s: dict[int, float]) -> dict[str, Any]:
    """This file's program on a process."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    steps = LogNormal(mean_s=pace_s[rank], cv=0.1)
    pacer = Pacer(step_time=steps, seed=5, worker=rank, clock=MonotonicClock())
    return train("bsp,backup=1", trace=Path(trace), pacer=pacer, num_servers=2)


@pytest.mark.slow
def test_on_processes_a_straggler_is_left_behind_and_each_sample_counts_once(tmp_path: Path) -> None:
    pace_s = {0: 0.005, 1: 0.005, 2: 0.03}
    found = on_processes(3, __file__, "on_a_process", trace=str(tmp_path), pace_s=pace_s)
    log = read_log(tmp_path / "events.jsonl")
    assert verify(log) is None
    check_that_each_sample_counts_once(found, log)
    [result] = read_results(tmp_path / "results.json")
    assert (result.status, result.samples, result.staleness.max) == ("finished", 2 * NUM_SAMPLES, 0)
    assert result.refused_updates["2"]["late"] == sum(worker == 2 for worker, _ in outcomes(log)[0]) > 0
