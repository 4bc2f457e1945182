"""Runs in which racks share the store for a while: held against runs without a change, and what must hold anyway."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plesio.cost.faults import Fault
from plesio.cost.step_time import Constant, LogNormal, StepTime
from plesio.policies import Ready, parse_policy, read_log, verify
from plesio.policies.adaptive.system.setting import ON_THE_STORE, RACKS_ON_THE_STORE
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation
from plesio.testing import LocalJob
from runtime.worlds.virtual import test_switch as switch
from runtime.worlds.virtual.test_switch import NUM_SAMPLES, Worker, assert_same_parameters, seen_in, stages_of
from support.decisions import script, to, to_setting
from support.processes import on_processes, own_job
from support.workers import cluster_of_racks, pretend_hosts, workers_of

EQUAL, UNEQUAL = (2, 2), (3, 2)
"""Workers of each rack."""


def run(policy: str, *, sizes: Sequence[int] = EQUAL, cv: float = 0.4, **options: Any) -> Simulation[Worker]:
    steps: list[StepTime] = [LogNormal(mean_s=0.02, cv=cv) if cv else Constant(mean_s=0.02)] * sum(sizes)
    return switch.run(policy, steps=steps, cluster=cluster_of_racks(sizes), **options)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("sizes", [pytest.param(EQUAL, marks=pytest.mark.slow), UNEQUAL, (1, 1, 1)], ids=str)
@pytest.mark.parametrize("policy", ["switch:bsp/hier:bsp/ssp:0@5/bsp@12", "switch:hier:bsp/ssp:0/bsp@9"])
def test_racks_on_the_store_that_wait_for_all_change_nothing(policy: str, sizes: Sequence[int], optimizer: str) -> None:
    switched, plain = (run(one, sizes=sizes, optimizer=optimizer) for one in (policy, "bsp"))
    for changed, other in zip(workers_of(switched), workers_of(plain), strict=True):
        assert changed.epochs == other.epochs
        assert changed.clock == other.clock
    assert_same_parameters(workers_of(switched)[0], workers_of(plain)[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("outer", ["ssp:3", "asp,update=delta"])
def test_racks_of_one_worker_are_single_workers_to_the_bit(outer: str) -> None:
    """In one loop: who asks first for a block of the next one is a matter of microseconds."""
    hier, flat = (
        run(f"switch:bsp/{one}@5/bsp@14", sizes=(1, 1, 1), samples=3 * NUM_SAMPLES, loops=1)
        for one in (f"hier:bsp/{outer}", outer)
    )
    for one, other in zip(workers_of(hier), workers_of(flat), strict=True):
        assert one.epochs == other.epochs
        assert one.parameters == other.parameters
    assert hier.runs[0].parameters_sha256 == flat.runs[0].parameters_sha256


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "sizes", [UNEQUAL, *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in (EQUAL, (2, 2, 2)))], ids=str
)
@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("switch:bsp/hier:bsp/ssp:4@20/bsp@40", {"loops": 12}),
        ("switch:bsp/hier:bsp/ssp:3@4/local_sgd:4@9/hier:bsp/asp@14", {}),
        ("switch:hier:bsp/local_sgd:4,delay=2/hier:bsp/ssp:2@5/hier:bsp/local_sgd:2@13/bsp@15", {}),
        ("switch:bsp/hier:bsp/ssp:2,period=1@3/bsp@6/hier:bsp/ssp:4@11/bsp@15", {"samples": 250, "loops": 1}),
        pytest.param("switch:bsp/hier:bsp/asp@4/bsp@7", {"loader_workers": 2}, marks=pytest.mark.slow),
    ],
)
def test_every_sample_of_every_epoch_is_seen_once(policy: str, options: dict[str, Any], sizes: Sequence[int]) -> None:
    simulation = run(policy, sizes=sizes, **options)
    workers, [result] = workers_of(simulation), simulation.runs
    loops, samples = options.get("loops", 3), options.get("samples", NUM_SAMPLES)
    for loop in range(loops):
        seen = seen_in(workers, loop)
        assert len(seen) == samples
        times = {seen.count(index) for index in range(NUM_SAMPLES)}
        assert times <= {samples // NUM_SAMPLES, -(-samples // NUM_SAMPLES)}
    assert result.samples == loops * samples
    assert not result.fallbacks
    if parse_policy(result.decisions[-1]["policy"]).exchange == "collective":
        assert all(worker.parameters == workers[0].parameters for worker in workers)


def test_a_run_is_the_same_to_the_bit_each_time_and_its_log_replays(tmp_path: Path) -> None:
    policy = "switch:bsp/hier:bsp/ssp:4@6/bsp@15"
    results = [run(policy, trace=tmp_path / name).runs[0] for name in ("one", "two")]
    assert results[0].parameters_sha256 == results[1].parameters_sha256
    assert [spec for _, spec in stages_of(results[0])] == ["hier:bsp/ssp:4", "bsp"]
    logs = [read_log(tmp_path / name / "events.jsonl") for name in ("one", "two")]
    assert logs[0] == logs[1]
    ready = [entry.event for entry in logs[0].entries if isinstance(entry.event, Ready)]
    assert [(event.worker, event.speaker) for event in ready] == [
        (0, None),
        (1, 0),
        (2, None),
        (3, 2),
        (0, None),
        (2, None),
    ]
    assert verify(logs[0]) is None


def test_a_rack_that_loses_a_worker_is_done_without() -> None:
    faults = [Fault(at_s=0.2, worker=3, kind="lose")]
    simulation = run("switch:bsp/hier:bsp/asp@3/bsp@14", loops=2, cv=0, faults=faults, elastic=False)
    [result] = simulation.runs
    assert (result.status, result.lost_workers) == ("finished", (3,))
    assert [spec for _, spec in stages_of(result)] == ["hier:bsp/asp"], "there is no way back to a collective"
    assert [line for line in result.fallbacks if "worker 3 was lost under hier:bsp/asp" in line]


@pytest.mark.parametrize("lost", [2, 3])
def test_a_loss_while_a_stage_of_racks_comes_to_its_end(lost: int, tmp_path: Path) -> None:
    """Each of rack 0, which stands still and waits for the other, is told how to go on; its collectives end then."""
    policy = "switch:bsp/hier:bsp/ssp:2@4/bsp@12"
    [whole] = run(policy).runs
    ended_s = whole.decisions[-1]["at_s"]
    for before_s in (0.012, 0.004, 0.0001):
        faults = [Fault(at_s=ended_s - before_s, worker=lost, kind="lose")]
        simulation = run(policy, faults=faults, trace=tmp_path / str(before_s))
        [result] = simulation.runs
        assert (result.status, result.lost_workers) == ("finished", (lost,))
        assert [spec for _, spec in stages_of(result)] == ["hier:bsp/ssp:2", "bsp"]
        assert {rank for rank, outcome in simulation.outcomes.items() if outcome.error} == {5 - lost}, "its mate alone"
        one, other = (simulation.outcomes[rank].value for rank in (0, 1))
        assert one is not None
        assert other is not None
        assert (one.clock, one.parameters) == (other.clock, other.parameters)
        assert verify(read_log(tmp_path / str(before_s) / "events.jsonl")) is None


def test_pieces_that_are_too_small_for_a_rack_are_left_out_and_told() -> None:
    """After steps of single workers on the store a plan may be left in pieces of a few samples."""
    simulation = run("switch:asp/hier:bsp/asp@5", sizes=(3, 3), samples=97, loops=1)
    [result] = simulation.runs
    left_out = [line for line in result.fallbacks if "were left out" in line]
    seen = seen_in(workers_of(simulation), 0)
    assert len(seen) == len(set(seen))
    assert len(left_out) == (len(seen) < 97)


def test_an_adaptive_run_goes_to_racks_that_share_the_store_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """And from one kind of stage on the store to the other; shares are those of stages on a collective alone."""
    share, by_racks = to_setting(RACKS_ON_THE_STORE[0]), to(4, 2, by_racks=True, shares=(0.4, 0.2, 0.2, 0.2))
    unequal = to(1, shares=(0.4, 0.2, 0.2, 0.2))
    script(monkeypatch, share, by_racks, share, to_setting(ON_THE_STORE[0]), share, unequal, share, to(1))
    simulation = run("adaptive", samples=20 * NUM_SAMPLES, loops=1)
    workers, [result] = workers_of(simulation), simulation.runs
    changes = [one["policy"] for one in result.decisions if one["policy"] != one["before"]]
    shared = "hier:bsp/ssp:3"
    assert changes == [shared, "hier:bsp/local_sgd:4,delay=2", shared, "ssp:3", shared, "bsp", shared, "bsp"]
    seen = seen_in(workers, 0)
    assert len(seen) == 20 * NUM_SAMPLES - _num_left_out(result.fallbacks)
    assert {seen.count(index) for index in range(NUM_SAMPLES)} <= {19, 20}
    assert all(worker.parameters == workers[0].parameters for worker in workers)


def _num_left_out(fallbacks: Sequence[str]) -> int:
    return sum(int(line.partition(" ")[0]) for line in fallbacks if "were left out" in line)


def test_an_alarm_takes_racks_from_the_store_back_to_a_good_state(monkeypatch: pytest.MonkeyPatch) -> None:
    share = RACKS_ON_THE_STORE[0]
    kept, alarm = to_setting(share, keep=True), to(1, restore=True, alarm=True)
    script(monkeypatch, to_setting(share), kept, kept, alarm, to(1))
    simulation = run("adaptive", samples=20 * NUM_SAMPLES, loops=1)
    workers, [result] = workers_of(simulation), simulation.runs
    assert [one["restore"] for one in result.decisions if one["policy"] == "bsp"] == [True]
    assert workers[0].transitions[-1].restored
    assert all(worker.parameters == workers[0].parameters for worker in workers)


ON_PROCESSES = ["switch:bsp/hier:bsp/ssp:0@5/bsp@12", "switch:bsp/hier:bsp/ssp:4@6/hier:bsp/local_sgd:2@18/bsp@24"]


def train_on_two_hosts() -> list[dict[str, Any]]:
    """Each policy on a real process, for `LocalJob`; ranks 0 and 1 are on one host, and 2 and 3 on another."""
    rank, found = pretend_hosts(2), []
    with own_job() as job:
        for policy in ON_PROCESSES:
            pacer = Pacer(step_time=Constant(mean_s=0.004), seed=5, worker=rank)
            saw = switch.train(policy, optimizer="momentum", loops=6, samples=None, pacer=pacer, job=job)
            found.append({"epochs": saw.epochs, "parameters": saw.parameters})
    return found


def lose_a_rack() -> list[Any]:
    """One worker's program, on two hosts as above: rank 3 is killed while rack 0, which is quicker, waits for it."""
    rank = pretend_hosts(2)
    pacer = Pacer(step_time=Constant(mean_s=0.04 if rank > 1 else 0.004), seed=5, worker=rank)
    policy = "switch:bsp/hier:bsp/ssp:2@4/bsp@12"
    kill_at = 10 if rank == 3 else -1  # the last step of its rack in this stage
    saw = switch.train(policy, optimizer="momentum", loops=3, samples=None, pacer=pacer, kill_at=kill_at)
    return saw.parameters


@pytest.mark.slow
def test_on_processes_a_loss_while_a_stage_of_racks_comes_to_its_end() -> None:
    with LocalJob(4) as job:
        endings = job.run(Path(__file__), "lose_a_rack", timeout_s=100)
    assert endings[2].error == "WorkerLostError", endings[2]
    assert endings[0].error is None, endings[0].trace
    assert endings[1].error is None, endings[1].trace
    assert endings[0].value == endings[1].value


@pytest.mark.slow
def test_on_processes_as_in_the_virtual_world() -> None:
    """DDP in the racks, Gloo, servers and sockets: what waits for all is BSP; every sample is seen once."""
    values = on_processes(4, __file__, "train_on_two_hosts")
    plain = workers_of(run("bsp", cv=0, loops=6))
    for number in range(len(ON_PROCESSES)):
        found = [Worker(**value[number]) for value in values]
        for loop in range(6):
            assert seen_in(found, loop) == list(range(NUM_SAMPLES))
        assert all(worker.parameters == found[0].parameters for worker in found)
        if number == 0:
            assert [worker.epochs for worker in found] == [worker.epochs for worker in plain]
            assert_same_parameters(found[0], plain[0])
