"""Runs that go to the store and come back while they train, held against the same run without a change, or by hand."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import plesio
from plesio.core.errors import ConfigError
from plesio.core.results import RunResult
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault
from plesio.cost.step_time import Constant, LogNormal, Stalls, StepTime
from plesio.policies import Ready, read_log, verify
from plesio.policies.adaptive.system.setting import ON_THE_STORE, Setting
from plesio.policies.adaptive.system.what_if import predict_step_s
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.adaptive_specs import BY_TIME
from support.problems import Problem, perceptron
from support.processes import on_processes, own_job
from support.workers import workers_of

NUM_SAMPLES, NUM_FEATURES, BATCH_SIZE, NUM_WORKERS = 100, 4, 4, 3
TOLERANCE: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
"""float64, some 30 steps of a contraction; sums are taken in another order."""
Factory = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Factory] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


@dataclass(kw_only=True)
class Worker:
    """The record of one worker, and its end; ``epochs`` holds its batches by loop."""

    epochs: list[list[list[int]]] = field(default_factory=list)
    metrics: list[float | None] = field(default_factory=list)
    transitions: list[plesio.Transition] = field(default_factory=list)
    parameters: list[list[Any]] = field(default_factory=list)
    clock: int = 0


def train(
    policy: str,
    *,
    optimizer: str,
    loops: int,
    samples: int | None,
    pacer: Pacer | None,
    loader_workers: int = 0,
    snapshot_every: int | None = None,
    trace: Path | None = None,
    job: plesio.Job | None = None,
    elastic: bool = True,
    kill_at: int = -1,
) -> Worker:
    """One worker's program; it is killed when it has come to the clock ``kill_at``."""
    model = perceptron(NUM_FEATURES, 6)
    saw = Worker()
    data = Problem(NUM_SAMPLES, NUM_FEATURES)
    session = plesio.join(
        model,
        OPTIMIZERS[optimizer](model.parameters()),
        policy=policy,
        trace=trace,
        on_transition=lambda transition, _: saw.transitions.append(transition),
        options=plesio.JoinOptions(
            pacer=pacer, info=RunInfo(seed=7), snapshot_every=snapshot_every, job=job, elastic=elastic
        ),
    )

    def loss_of_all() -> float:
        return float((model(data.x) - data.y).square().mean())

    with session:
        loader = DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, num_workers=loader_workers)
        for _ in range(loops):
            saw.epochs.append([])
            for index, x, y in session.shard(loader, samples=samples):
                saw.epochs[-1].append(index.tolist())
                (model(x) - y).square().mean().backward()
                session.step()
                if session.clock == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            saw.metrics.append(session.evaluate(loss_of_all))
        session.finish(loss_of_all)
        saw.clock = session.clock
    saw.parameters = [parameter.detach().tolist() for parameter in model.parameters()]
    return saw


def run(
    policy: str,
    *,
    optimizer: str = "momentum",
    loops: int = 3,
    samples: int | None = None,
    steps: Sequence[StepTime] = (Constant(mean_s=0.02),) * NUM_WORKERS,
    faults: Sequence[Fault] = (),
    cluster: Cluster | None = None,
    **options: Any,
) -> Simulation[Worker]:
    """Train on virtual workers, of one host unless a cluster is given."""

    def work(job: VirtualJob) -> Worker:
        rank = job.place.rank
        pacer = Pacer(step_time=steps[rank], seed=5, worker=rank, clock=job.clock)
        return train(policy, optimizer=optimizer, loops=loops, samples=samples, pacer=pacer, **options)

    cluster = Cluster.one_host(NUM_WORKERS) if cluster is None else cluster
    return simulate(work, num_workers=len(steps), cluster=cluster, faults=faults)


def stages_of(result: RunResult) -> list[tuple[int, str]]:
    return [(one["clock"], one["policy"]) for one in result.decisions]


def assert_same_parameters(found: Worker, wanted: Worker) -> None:
    for mine, theirs in zip(found.parameters, wanted.parameters, strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), **TOLERANCE)


def seen_in(workers: Sequence[Worker], loop: int) -> list[int]:
    return sorted(index for worker in workers for batch in worker.epochs[loop] for index in batch)


UNEQUAL = [Constant(mean_s=0.02), LogNormal(mean_s=0.02, cv=0.5), Constant(mean_s=0.05)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "policy",
    ["switch:bsp/ssp:0@5/bsp@12", "switch:ssp:0/bsp@13", "switch:bsp/ssp:0@9", "switch:bsp/ssp:0@4/bsp@7/ssp:0@12"],
)
def test_a_stage_on_the_store_that_waits_for_all_changes_nothing(policy: str, optimizer: str) -> None:
    """Parameters, the optimizer's state and the order of samples go there and back; the epochs end as without."""
    switched, plain = run(policy, optimizer=optimizer), run("bsp", optimizer=optimizer)
    for changed, other in zip(workers_of(switched), workers_of(plain), strict=True):
        assert changed.epochs == other.epochs
        assert changed.clock == other.clock
    assert_same_parameters(workers_of(switched)[0], workers_of(plain)[0])
    assert workers_of(switched)[0].metrics == pytest.approx(workers_of(plain)[0].metrics, rel=1e-9)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("switch:bsp/asp@5/bsp@12", {}),
        ("switch:bsp/ssp:4@3/local_sgd:4@10/asp@14/bsp@20", {}),
        ("switch:local_sgd:4,delay=2/ssp:2,update=delta@6/bsp@13", {}),
        ("switch:asp/bsp@7/ssp:3@11", {"loader_workers": 2}),
        ("switch:bsp/diloco:3,exchange=store@5/bsp@14", {}),
        ("switch:asp,delay=1/bsp@7/ssp:3,period=2,delay=2@11", {}),
        ("switch:bsp/asp@4/ssp:1@9/bsp@15", {}),
        ("switch:bsp/asp@7/bsp@9/asp@11/bsp@13/asp@15/bsp@17/asp@19", {}),
        ("switch:bsp/asp@8/bsp@10", {"samples": 250, "loops": 1}),
        ("switch:bsp/asp@8/bsp@16", {"samples": 51, "loops": 4}),
    ],
)
def test_every_sample_of_every_epoch_is_seen_once(policy: str, options: dict[str, Any]) -> None:
    simulation = run(policy, steps=UNEQUAL, **options)
    workers, [result] = workers_of(simulation), simulation.runs
    loops, samples = options.get("loops", 3), options.get("samples", NUM_SAMPLES)
    assert [spec for _, spec in stages_of(result)] == [stage.rpartition("@")[0] for stage in policy.split("/")[1:]]
    for loop in range(loops):
        seen = seen_in(workers, loop)
        assert len(seen) == samples
        times = {seen.count(index) for index in range(NUM_SAMPLES)}
        assert times <= {samples // NUM_SAMPLES, -(-samples // NUM_SAMPLES)}
    assert result.samples == loops * samples
    assert not result.fallbacks


def test_all_go_on_from_the_clock_of_the_furthest_worker() -> None:
    simulation = run("switch:bsp/asp@5/bsp@12", steps=UNEQUAL, loops=4)
    workers, [result] = workers_of(simulation), simulation.runs
    (_, _), (back, _) = stages_of(result)
    assert 12 <= back <= 13
    assert len({worker.clock for worker in workers}) == 1
    steps = [sum(map(len, worker.epochs)) for worker in workers]
    assert steps[0] > steps[2], "the slow worker made fewer steps while nobody waited for it"
    for worker in workers:
        assert worker.transitions == workers[0].transitions
        assert [transition.clock for transition in worker.transitions] == [5, back]


def test_a_switching_run_is_the_same_to_the_bit_each_time_and_its_log_replays(tmp_path: Path) -> None:
    policy = "switch:bsp/ssp:3@5/local_sgd:2@12/asp@17"
    results = [run(policy, steps=UNEQUAL, trace=tmp_path / name).runs[0] for name in ("one", "two")]
    assert results[0].parameters_sha256 == results[1].parameters_sha256
    assert results[0].decisions == results[1].decisions
    logs = [read_log(tmp_path / name / "events.jsonl") for name in ("one", "two")]
    assert logs[0] == logs[1]
    assert any(isinstance(entry.event, Ready) for entry in logs[0].entries)
    assert verify(logs[0]) is None


def test_without_equal_speeds_the_store_saves_the_waiting() -> None:
    slow = [Constant(mean_s=0.02)] * 2 + [Constant(mean_s=0.06)]
    switched, plain = run("switch:bsp/asp@3", steps=slow), run("bsp", steps=slow)
    assert switched.runs[0].wall_s < 0.6 * plain.runs[0].wall_s


@pytest.mark.parametrize("lost", [0, 2])
def test_a_worker_lost_on_the_store_is_done_without(lost: int) -> None:
    faults = [Fault(at_s=0.2, worker=lost, kind="lose")]
    simulation = run("switch:bsp/asp@3/bsp@14", loops=2, faults=faults, elastic=False)
    [result] = simulation.runs
    assert (result.status, result.lost_workers) == ("finished", (lost,))
    assert [spec for _, spec in stages_of(result)] == ["asp"], "there is no way back to a collective"
    assert [line for line in result.fallbacks if f"worker {lost} was lost under asp" in line]
    rest = workers_of(simulation)
    assert len(rest) == NUM_WORKERS - 1
    assert seen_in(rest, 1) == list(range(NUM_SAMPLES))


def test_a_worker_lost_while_all_stop_lets_the_others_go_on_on_the_store() -> None:
    """Two have stopped at step 6 when the third, which is slow, is lost in the middle of its own."""
    slow = [Constant(mean_s=0.02)] * 2 + [Constant(mean_s=0.5)]
    faults = [Fault(at_s=1.8, worker=2, kind="lose")]
    [result] = run("switch:bsp/asp@3/bsp@6", steps=slow, loops=1, faults=faults, elastic=False).runs
    assert (result.status, result.lost_workers) == ("finished", (2,))
    assert [spec for _, spec in stages_of(result)] == ["asp"]
    assert result.samples >= NUM_SAMPLES


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError])
def test_a_worker_that_ends_on_the_store_holds_nobody_up(end: type[BaseException]) -> None:
    """Ctrl-C on one worker, or an error in its loop: the others finish on the store, what it held included."""

    def work(job: VirtualJob) -> list[int]:
        model, data = perceptron(NUM_FEATURES, 6), Problem(NUM_SAMPLES, NUM_FEATURES)
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=5, worker=job.place.rank, clock=job.clock)
        seen: list[int] = []
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        try:
            with plesio.join(
                model, optimizer, policy="switch:bsp/asp@3/bsp@12", options=plesio.JoinOptions(pacer=pacer)
            ) as session:
                for index, x, y in session.shard(
                    DataLoader(data, batch_size=BATCH_SIZE, shuffle=True), samples=3 * NUM_SAMPLES
                ):
                    if job.place.rank == 1 and session.clock == 7:
                        raise end
                    (model(x) - y).square().mean().backward()
                    session.step()
                    seen += index.tolist()
        except (KeyboardInterrupt, ValueError):
            pass
        return seen

    simulation = simulate(work, num_workers=NUM_WORKERS, cluster=Cluster.one_host(NUM_WORKERS))
    seen = [index for value in simulation.values() for index in value or ()]
    assert {seen.count(index) for index in range(NUM_SAMPLES)} == {3}
    [result] = simulation.runs
    assert [spec for _, spec in stages_of(result)] == ["asp"]
    assert result.status == ("interrupted" if end is KeyboardInterrupt else "failed")


def test_a_worker_lost_on_a_collective_ends_the_run_also_after_the_store() -> None:
    faults = [Fault(at_s=0.5, worker=1, kind="lose")]
    simulation = run("switch:bsp/asp@3/bsp@8", loops=4, faults=faults, elastic=False)
    [result] = simulation.runs
    assert (result.status, result.lost_workers) == ("failed", (1,))
    assert [spec for _, spec in stages_of(result)] == ["asp", "bsp"]


def test_snapshots_are_taken_at_the_same_samples_whatever_the_exchange() -> None:
    policy = "switch:bsp/ssp:0@5/bsp@12/ssp:0@17"
    switched, plain = (run(spec, snapshot_every=30, loops=3).runs[0] for spec in (policy, "bsp"))
    assert [one.samples for one in switched.evaluations] == [one.samples for one in plain.evaluations]
    assert [one.metric for one in switched.evaluations] == pytest.approx([one.metric for one in plain.evaluations])


def test_the_store_needs_samples_that_it_can_deal_out() -> None:
    def work(job: VirtualJob) -> None:
        model = perceptron(NUM_FEATURES, 6)
        data = Problem(NUM_SAMPLES, NUM_FEATURES)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with plesio.join(model, optimizer, policy="switch:bsp/asp@3") as session:
            for _ in range(6):
                (model(data.x) - data.y).square().mean().backward()
                session.step()

    with pytest.raises(ConfigError, match=r"session\.shard"):
        simulate(work, num_workers=2, cluster=Cluster.one_host(2)).values()


STALLS = Stalls(steps=LogNormal(mean_s=0.04, cv=0.1), probability=0.05, factor=5.0)


def test_adaptive_goes_to_the_store_where_rare_stalls_are_all_that_is_waited_for(tmp_path: Path) -> None:
    steps = [STALLS] * NUM_WORKERS
    simulation = run(BY_TIME, steps=steps, loops=1, samples=12 * NUM_SAMPLES, trace=tmp_path)
    workers, [result] = workers_of(simulation), simulation.runs
    assert any(spec.startswith("ssp:") for _, spec in stages_of(result)), stages_of(result)
    assert set(map(seen_in(workers, 0).count, range(NUM_SAMPLES))) == {12}
    assert verify(read_log(tmp_path / "events.jsonl")) is None
    collective = run(f"{BY_TIME},store=off", steps=steps, loops=1, samples=12 * NUM_SAMPLES)
    assert result.wall_s < collective.runs[0].wall_s


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "steps",
    [STALLS, pytest.param(LogNormal(mean_s=0.05, cv=0.4), marks=pytest.mark.slow)],
    ids=["stalls", "spread"],
)
@pytest.mark.parametrize("setting", ON_THE_STORE, ids=lambda setting: setting.spec)
def test_a_step_on_the_store_takes_as_long_as_was_predicted(setting: Setting, steps: StepTime) -> None:
    num_steps = 100
    samples = num_steps * NUM_WORKERS * BATCH_SIZE
    [result] = run(setting.spec, steps=[steps] * NUM_WORKERS, loops=1, samples=samples).runs
    drawn = [[Pacer(step_time=steps, seed=5, worker=w).draw_s(k + 1) for k in range(num_steps)] for w in range(3)]
    exchanges = result.steps / setting.period
    transfer_s = sum(worker.communicate_s for worker in result.workers) / exchanges
    predicted_s = predict_step_s(np.array(drawn), transfer_s=transfer_s, setting=setting)
    assert result.wall_s / (result.steps / NUM_WORKERS) == pytest.approx(predicted_s, rel=0.1)


RUNS = [
    ("switch:bsp/ssp:0@5/bsp@12", "momentum", (0.004, 0.004, 0.004)),
    ("switch:bsp/ssp:0@5/bsp@12", "adam", (0.004, 0.004, 0.004)),
    ("switch:bsp/asp@5/local_sgd:2@12/ssp:2@16/bsp@22", "momentum", (0.002, 0.004, 0.012)),
]


def train_on_process() -> list[dict[str, Any]]:
    """All of `RUNS` on a real process, for `LocalJob`."""
    rank, found = int(os.environ["RANK"]), []
    with own_job() as job:
        for policy, optimizer, step_s in RUNS:
            pacer = Pacer(step_time=Constant(mean_s=step_s[rank]), seed=5, worker=rank)
            saw = train(policy, optimizer=optimizer, loops=3, samples=None, pacer=pacer, job=job)
            found.append({"epochs": saw.epochs, "parameters": saw.parameters, "clock": saw.clock})
    return found


@pytest.mark.slow  # packages/plesio/tests/runtime/test_worlds.py has runs that switch on processes
def test_on_processes_as_in_the_virtual_world() -> None:
    """DDP, Gloo, servers and sockets: what waits for all is BSP; there and back every sample is seen once."""
    values = on_processes(NUM_WORKERS, __file__, "train_on_process")
    *waiting, free = zip(*([Worker(**one) for one in value] for value in values), strict=True)
    for (_, optimizer, _), workers in zip(RUNS, waiting, strict=False):
        plain = workers_of(run("bsp", optimizer=optimizer))
        assert [worker.epochs for worker in workers] == [worker.epochs for worker in plain]
        assert_same_parameters(workers[0], plain[0])
    for loop in range(3):
        assert seen_in(free, loop) == list(range(NUM_SAMPLES))
    assert len({worker.clock for worker in free}) == 1
