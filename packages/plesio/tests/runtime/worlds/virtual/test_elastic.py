"""A collective goes on without a worker that is lost: what counts is every sample once, and replicas stay equal."""

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

from plesio.core.errors import WorkerLostError
from plesio.core.results import RunResult
from plesio.cost.link import Link
from plesio.policies import read_log, verify
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support import counted_training
from support.counted_training import NUM_SAMPLES, Worker, lose, pacer_of, train
from support.workers import cluster_of_racks, workers_of

NUM_WORKERS, LOOPS = 4, 3
IN_STEP = ["bsp", "bsp,compress=qsgd:8", "bsp,compress=topk:0.2"]
ALONE = ["local_sgd:4", "local_sgd:4,delay=2", "local_sgd:4,compress=qsgd:8", "local_sgd:3,inner_rate=0.5,momentum=0.5"]
OUTER = ["diloco:4", "diloco:4,fragments=2,delay=1"]
CHANGING = [
    "adaptive",
    "switch:bsp/local_sgd:4@8/bsp@14",
    "switch:bsp/asp@5/bsp@12",
    "switch:bsp/diloco:4@8/bsp@14",
    "switch:local_sgd:4/ssp:2@9/bsp@16",
]


run = partial(counted_training.run, num_workers=NUM_WORKERS, loops=LOOPS)


def assert_went_on(simulation: Simulation[Worker], *lost: int) -> RunResult:
    [result] = simulation.runs
    assert (result.status, result.error, set(result.lost_workers)) == ("finished", None, set(lost))
    rest = workers_of(simulation)
    assert len({worker.clock for worker in rest}) == 1
    assert all(worker.parameters == rest[0].parameters for worker in rest), "replicas differ"
    assert torch.isfinite(torch.tensor([x for p in rest[0].parameters for x in p])).all()
    assert result.final_metric is not None
    left_out = [int(line.split()[0]) for line in result.fallbacks if "that a lost worker had not handed in" in line]
    assert result.samples + sum(left_out) == LOOPS * NUM_SAMPLES
    return result


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "at_s", [0.11, 0.25, *(pytest.param(at_s, marks=pytest.mark.slow) for at_s in (0.2, 0.31, 0.34))]
)
@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("policy", [*IN_STEP, *ALONE, *OUTER, "delayed:2", *CHANGING])
def test_the_others_go_on_and_each_sample_counts_once(policy: str, lost: int, at_s: float, tmp_path: Path) -> None:
    assert_went_on(run(policy, lose(lost, at_s=at_s), trace=tmp_path), lost)
    assert verify(read_log(tmp_path / "events.jsonl")) is None


@pytest.mark.parametrize("middle", ["asp", "ssp:2", "diloco:4,exchange=store"])
def test_a_loss_while_the_store_stands_still_for_a_checkpoint(middle: str, tmp_path: Path) -> None:
    """Between two batches: all have left the store, and wait for each other to enter it again."""
    policy = f"switch:bsp/{middle}@6/bsp@12"
    [whole] = run(policy, checkpoint=tmp_path / "whole").runs
    left_at_s = whole.decisions[0]["latest"]["at_s"]
    for lost, after_s in ((2, 0.0), (0, 0.0004), (2, 0.0008)):
        folder = tmp_path / str(after_s)
        assert_went_on(run(policy, lose(lost, at_s=left_at_s + after_s), checkpoint=folder, trace=folder), lost)
        assert verify(read_log(folder / "events.jsonl")) is None


@pytest.mark.parametrize("at_s", [0.1, 0.17, 0.25, 0.3])
def test_what_survivors_train_on_are_other_samples_and_all_of_them_in_later_loops(at_s: float) -> None:
    simulation = run("bsp", lose(1, at_s=at_s))
    assert_went_on(simulation, 1)
    seen = [Counter(i for worker in workers_of(simulation) for i in worker.counted[loop]) for loop in range(LOOPS)]
    assert all(set(numbers.values()) == {1} for numbers in seen), "a sample was trained on twice"
    assert len(seen[-1]) == NUM_SAMPLES
    assert any(len(numbers) < NUM_SAMPLES for numbers in seen), "the lost worker had done something"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "adaptive"])
@pytest.mark.parametrize("times_s", [(0.2, 0.2), (0.2, 0.2003), (0.2, 0.25), (0.2, 0.35)])
def test_two_losses_at_once_or_while_the_others_regroup(policy: str, times_s: tuple[float, float]) -> None:
    assert_went_on(run(policy, lose(0, at_s=times_s[0]), lose(3, at_s=times_s[1])), 0, 3)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4,delay=2", "switch:bsp/asp@5/bsp@12"])
def test_the_last_one_finishes_alone(policy: str) -> None:
    assert_went_on(run(policy, *(lose(worker, at_s=0.1 + 0.07 * worker) for worker in range(3))), 0, 1, 2)


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "local_sgd:4,delay=2"])
def test_the_lowest_rank_that_is_left_evaluates_and_all_hear_the_metric(policy: str) -> None:
    simulation = run(policy, lose(0, at_s=0.25), evaluates=True)
    assert_went_on(simulation, 0)
    metrics = [worker.metrics for worker in workers_of(simulation)]
    assert all(one == metrics[0] for one in metrics)
    assert None not in metrics[0]
    assert len(metrics[0]) == LOOPS


@pytest.mark.parametrize("policy", ["asp", "ssp:2"])
def test_on_the_store_the_lowest_rank_that_is_left_evaluates_at_the_end(policy: str) -> None:
    [result] = run(policy, lose(0, at_s=0.25), evaluates=True).runs
    assert result.evaluations[-1].samples == LOOPS * NUM_SAMPLES


@pytest.mark.parametrize("policy", ["diloco:5,exchange=store", "switch:bsp/diloco:5,exchange=store@6/bsp@40"])
@pytest.mark.parametrize("at_s", [0.22, 0.25])
def test_local_steps_that_a_lost_worker_had_not_handed_in_do_not_count(policy: str, at_s: float) -> None:
    [result] = run(policy, lose(1, at_s=at_s)).runs
    assert result.samples == LOOPS * NUM_SAMPLES
    if policy.startswith("diloco"):  # else the last report before the store may be of an earlier step
        assert sum(worker.samples for worker in result.workers) == LOOPS * NUM_SAMPLES


@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4"])
def test_snapshots_go_on_where_rank_0_left_them(policy: str) -> None:
    [result] = run(policy, lose(0, at_s=0.2), snapshot_every=30).runs
    samples = [point.samples for point in result.evaluations]
    assert samples == sorted(samples)
    assert samples[-1] == LOOPS * NUM_SAMPLES
    assert len(samples) >= 3


@pytest.mark.one_in(4)
@pytest.mark.parametrize("policy", ["hier:bsp/local_sgd:4", "hier:bsp/local_sgd:4,delay=2"])
@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize("at_s", [0.15, *(pytest.param(at_s, marks=pytest.mark.slow) for at_s in (0.24, 0.33))])
def test_a_rack_goes_on_without_one_of_its_workers(policy: str, lost: int, at_s: float) -> None:
    assert_went_on(run(policy, lose(lost, at_s=at_s), racks=(2, 2)), lost)


def test_at_the_end_of_a_stage_without_steps_all_have_the_shared_state_to_the_bit() -> None:
    """No worker asks the others for it, which may have left or be lost by then."""
    last = workers_of(run("bsp", racks=(2, 1)))[0].clock
    result = assert_went_on(run(f"switch:bsp/hier:bsp/local_sgd:4@{last}", racks=(2, 1)))
    assert result.decisions[-1]["clock"] == last


def test_a_loss_before_the_first_step_says_so() -> None:
    """While rank 0's parameters are on their way to the others, over a slow link."""
    slow = Link(latency_s=50e-6, bytes_per_s=1e5)

    def work(job: VirtualJob) -> Worker:
        return train("bsp", pacer_of(job), loops=LOOPS)

    cluster = cluster_of_racks((2, 2, 2), nic=slow)
    simulation = simulate(work, num_workers=6, cluster=cluster, faults=[lose(5, at_s=0.02)])
    assert simulation.runs[0].status == "failed"
    assert "before the first step" in str(simulation.runs[0].error)
    errors = [outcome.error for rank, outcome in simulation.outcomes.items() if rank != 5]
    assert all(isinstance(error, WorkerLostError) for error in errors)


def test_where_it_is_turned_off_a_loss_ends_the_run() -> None:
    simulation = run("bsp", lose(1, at_s=0.2), elastic=False)
    assert simulation.runs[0].status == "failed"
    assert isinstance(simulation.outcomes[0].error, WorkerLostError)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", ["bsp", "local_sgd:4", "hier:bsp/local_sgd:4", "adaptive"])
def test_without_a_loss_nothing_is_sent_or_waited_for(policy: str) -> None:
    racks = (2, 2) if policy.startswith("hier") else ()
    on, off = (run(policy, racks=racks, elastic=elastic) for elastic in (True, False))
    assert on.runs[0].parameters_sha256 == off.runs[0].parameters_sha256
    assert on.runs[0].bytes_sent == off.runs[0].bytes_sent
    assert on.runs[0].wall_s == pytest.approx(off.runs[0].wall_s, rel=1e-3)
