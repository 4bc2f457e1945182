"""Racks that share a store: what they equal, what holds between them, and what it saves. Some on real processes."""

import math
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.core.errors import ConfigError, DataError, WorkerLostError
from plesio.cost.faults import Fault
from plesio.cost.step_time import Constant, LogNormal
from plesio.policies import Apply, Joined, parse_policy, read_log, verify
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.testing import LocalJob
from support.problems import Problem, perceptron
from support.processes import on_processes
from support.workers import cluster_of_racks, pretend_hosts, racks_of, workers_of

NUM_SAMPLES, NUM_FEATURES, BATCH_SIZE = 240, 5, 4
TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
"""float64, a few hundred roundings of a contraction; one sample more or less shows in the third digit."""
EQUAL, UNEQUAL = (2, 2), (3, 1)
"""Workers of each rack."""
SLOW = pytest.mark.slow


@dataclass(kw_only=True)
class Worker:
    """The record of one worker, and its end."""

    batches: list[list[int]] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    """Parameters after each step."""
    began: list[tuple[float, int]] = field(default_factory=list)
    """Time and clock at which each step begins."""
    metrics: list[float | None] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    """Parameters and buffers at the end."""


def train(
    policy: str, *, rank: int, num_samples: int = NUM_SAMPLES, batch_size: int = BATCH_SIZE,
    samples: int = 3 * NUM_SAMPLES,
    momentum: float = 0.9, linear: bool = False, batch_norm: bool = False, accumulate: int = 1, epochs: int = 1,
    poison: int = -1, kill: int = -1, trace: Path | None = None, **options: Any,
) -> Worker:  # fmt: skip
    """One worker's training; rank ``poison`` has a gradient of NaN at its fifth step, ``kill`` is killed there."""
    model = perceptron(NUM_FEATURES, 0 if linear else 7, batch_norm=batch_norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    saw, data = Worker(), Problem(num_samples, NUM_FEATURES)
    with plesio.join(
        model, optimizer, policy=policy, trace=trace, options=plesio.JoinOptions(info=RunInfo(seed=7), **options)
    ) as session:
        for _ in range(epochs):
            loader = DataLoader(data, batch_size=batch_size, shuffle=True)
            held = 0
            for index, x, y in session.shard(loader, samples=samples):
                saw.began.append((session.elapsed_s, session.clock))
                saw.batches.append(index.tolist())
                if rank == kill and session.clock == 4:
                    os.kill(os.getpid(), signal.SIGKILL)
                held += 1
                with session.accumulate() if held % accumulate else nullcontext():
                    # a linear loss has the same gradient wherever the parameters are
                    loss = model(x).mean() if linear else (model(x) - y).square().mean()
                    poisoned = rank == poison and session.clock == 4
                    (loss * (float("nan") if poisoned else 1 / accumulate)).backward()
                if held % accumulate:
                    continue
                session.step(loss * float("nan") if poisoned else loss)
                saw.states.append(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
            saw.metrics.append(session.evaluate(lambda: float((model(data.x) - data.y).square().mean())))
        session.finish(lambda: float((model(data.x) - data.y).square().mean()))
        saw.tensors = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    return saw


def run(
    policy: str, *, sizes: Sequence[int] = EQUAL, faults: Sequence[Fault] = (), cv: float = 0.3,
    step_s: float = 0.02, slow: int = -1, **options: Any,
) -> Simulation[Worker]:  # fmt: skip
    """Train on virtual workers whose steps take as long as chance has it, in rack ``slow`` three times as long."""

    def work(job: VirtualJob) -> Worker:
        rank = job.place.rank
        mean_s = step_s * (3 if job.rack == slow else 1)
        pacer = Pacer(
            step_time=LogNormal(mean_s=mean_s, cv=cv) if cv else Constant(mean_s=mean_s),
            seed=5,
            worker=rank,
            clock=job.clock,
        )
        return train(policy, rank=rank, pacer=pacer, **options)

    return simulate(work, num_workers=sum(sizes), cluster=cluster_of_racks(sizes), faults=faults)


def assert_close(one: Worker, other: Worker, **tolerance: Any) -> None:
    for found, wanted in zip(one.tensors, other.tensors, strict=True):
        torch.testing.assert_close(found, wanted, **(tolerance or TOLERANCE))


# What it equals


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "outer", ["ssp:2,update=delta", "asp,weight=inverse", *(pytest.param(it, marks=SLOW) for it in ("ssp:4", "ssp:0"))]
)
def test_racks_of_one_worker_are_the_outer_policy_to_the_bit(outer: str) -> None:
    hier, flat = (run(policy, sizes=(1, 1, 1), batch_norm=True) for policy in (f"hier:bsp/{outer}", outer))
    for one, other in zip(workers_of(hier), workers_of(flat), strict=True):
        assert one.batches == other.batches
        assert one.states == other.states
    assert_close(workers_of(hier)[0], workers_of(flat)[0], rtol=0, atol=0)
    assert (hier.runs[0].staleness, hier.runs[0].max_lead) == (flat.runs[0].staleness, flat.runs[0].max_lead)


def test_in_one_rack_it_is_bsp_and_says_so() -> None:
    hier, bsp = run("hier:bsp/ssp:4", sizes=(4,), epochs=2), run("bsp", sizes=(4,), epochs=2)
    assert hier.runs[0].parameters_sha256 == bsp.runs[0].parameters_sha256
    assert hier.runs[0].fallbacks == ("all workers are in one rack, so hier:bsp/ssp:4 is bsp",)
    assert [worker.metrics for worker in workers_of(hier)] == [worker.metrics for worker in workers_of(bsp)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL, pytest.param((3, 3, 2), marks=SLOW)], ids=str)
@pytest.mark.parametrize("num_samples", [240, 233])
def test_with_a_bound_of_zero_it_is_bsp(sizes: Sequence[int], num_samples: int) -> None:
    hier, bsp = (
        workers_of(run(policy, sizes=sizes, num_samples=num_samples, samples=num_samples, epochs=2))
        for policy in ("hier:bsp/ssp:0", "bsp")
    )
    assert [worker.batches for worker in hier] == [worker.batches for worker in bsp]
    assert_close(hier[0], bsp[0])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("policy", ["hier:bsp/asp", "hier:bsp/ssp:4", "hier:bsp/ssp:4,update=delta"])
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=str)
def test_together_racks_move_the_parameters_as_synchronous_steps_of_their_batches_would(
    policy: str, sizes: Sequence[int]
) -> None:
    """If the gradient does not depend on the parameters, every rack's steps add up: m / N of each one's mean."""
    workers = workers_of(run(policy, sizes=sizes, linear=True, momentum=0.0))
    expected = after_synchronous_steps([worker.batches for worker in workers], sizes)
    torch.testing.assert_close(workers[0].tensors[0], expected, **TOLERANCE)


def after_synchronous_steps(batches: Sequence[list[list[int]]], sizes: Sequence[int]) -> torch.Tensor:
    """The weight of the linear model when every rack has stepped with the means of its workers' batches."""
    data, moved = Problem(NUM_SAMPLES, NUM_FEATURES), torch.zeros(NUM_FEATURES, dtype=torch.float64)
    for rack in racks_of(sizes):
        for together in zip(*(batches[rank] for rank in rack), strict=True):
            mean = torch.stack([data.x[batch].mean(0) for batch in together]).mean(0)
            moved -= 0.05 * len(rack) / sum(sizes) * mean
    start, _ = perceptron(NUM_FEATURES, 0).parameters()
    return start.detach() + moved


# What holds


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sizes", [pytest.param(EQUAL, marks=SLOW), UNEQUAL, (2, 2, 1)], ids=str)
def test_a_rack_steps_as_one_and_racks_never_drift_beyond_the_bound(sizes: Sequence[int]) -> None:
    simulation = run("hier:bsp/ssp:2,period=2", sizes=sizes, slow=0, samples=2000)
    workers, racks = workers_of(simulation), racks_of(sizes)
    for rack in racks:
        steps = list(zip(*(workers[rank].states for rank in rack), strict=True))
        assert all(len(set(states)) == 1 for states in steps)
    assert simulation.runs[0].max_lead == 2
    last_s = min(worker.began[-1][0] for worker in workers)  # from then on some rest
    leads = []
    for rank, worker in enumerate(workers):
        for at_s, clock in worker.began:
            others = [other.began for number, other in enumerate(workers) if number != rank]
            finished = [sum(begun_s <= at_s for begun_s, _ in began) - 1 for began in others]
            leads.append(clock - min(finished) if at_s < last_s else 0)
    assert max(leads) == 2
    rates = [workers[rack[0]].batches for rack in racks]
    assert len(rates[0]) <= min(map(len, rates[1:]))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "policy", ["hier:bsp/ssp:4", *(pytest.param(it, marks=SLOW) for it in ("hier:bsp/asp", "hier:bsp/ssp:0"))]
)
@pytest.mark.parametrize(
    ("sizes", "num_samples", "batch_size", "samples"),
    [(EQUAL, 240, 4, 720), (UNEQUAL, 211, 5, 422), ((4, 1), 83, 3, 83), ((3, 2), 7, 8, 21), ((2, 2), 64, 1, 100)],
    ids=str,
)
def test_every_sample_is_trained_on_once_an_epoch(
    policy: str, sizes: Sequence[int], num_samples: int, batch_size: int, samples: int
) -> None:
    simulation = run(policy, sizes=sizes, num_samples=num_samples, batch_size=batch_size, samples=samples, slow=1)
    seen = Counter(index for worker in workers_of(simulation) for batch in worker.batches for index in batch)
    epochs, rest = divmod(samples, num_samples)
    assert set(seen.values()) <= {epochs, epochs + 1}
    assert seen.total() == simulation.runs[0].samples == samples
    assert sum(times == epochs + 1 for times in seen.values()) == rest
    assert len(seen) == num_samples


def test_a_slow_rack_gets_fewer_samples() -> None:
    workers = workers_of(run("hier:bsp/asp", slow=1, samples=4 * NUM_SAMPLES))
    of_racks = [sum(len(batch) for rank in rack for batch in workers[rank].batches) for rack in racks_of(EQUAL)]
    assert of_racks[0] > 2.2 * of_racks[1]


def test_a_last_rest_that_is_no_batch_of_a_rack_is_left_out_as_on_a_collective() -> None:
    for policy in ("hier:bsp/ssp:2", "bsp"):
        assert run(policy, num_samples=100, samples=101).runs[0].samples == 100


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "policy", [pytest.param("hier:bsp/ssp:4", marks=SLOW), "hier:bsp/asp,period=2", "hier:bsp/ssp:0"]
)
def test_the_log_replays_and_says_how_many_workers_a_rack_has(policy: str, tmp_path: Path) -> None:
    run(policy, sizes=UNEQUAL, trace=tmp_path, epochs=2)
    log = read_log(tmp_path / "events.jsonl")
    assert verify(log) is None
    machine = parse_policy(policy).start()
    for entry in log.entries:
        machine.handle(entry.event)
        machine.validate()
    joined = {(e.event.worker, e.event.num_workers) for e in log.entries if isinstance(e.event, Joined)}
    assert joined == {(0, 3), (3, 1)}
    applied = [action for entry in log.entries for action in entry.actions if isinstance(action, Apply)]
    assert {worker for action in applied for worker, _ in action.updates} == {0, 3}


def test_time_in_the_books_is_the_time_that_passed() -> None:
    [result] = run("hier:bsp/ssp:2", slow=1, epochs=2).runs
    for worker in result.workers:
        assert worker.compute_s + worker.wait_s + worker.communicate_s == pytest.approx(result.wall_s, rel=0.03)
    quick, slow = result.workers[:2], result.workers[2:]
    assert min(worker.wait_s for worker in quick) > 2 * max(worker.wait_s for worker in slow)
    # who follows waited with its leader, and not for it
    assert quick[1].wait_s == pytest.approx(quick[0].wait_s, rel=0.2)


def test_accumulated_gradients_make_one_step_of_the_rack() -> None:
    simulation = run("hier:bsp/ssp:2", accumulate=2, samples=NUM_SAMPLES)
    workers = workers_of(simulation)
    for rack in racks_of(EQUAL):
        assert len({tuple(workers[rank].states) for rank in rack}) == 1
        assert len(workers[rack[0]].states) == len(workers[rack[0]].batches) // 2
    seen = Counter(index for worker in workers for batch in worker.batches for index in batch)
    assert set(seen.values()) == {1}


def test_metrics_are_known_in_the_rack_that_evaluates_and_snapshots_are_by_all_samples() -> None:
    simulation = run("hier:bsp/ssp:2", epochs=2, samples=NUM_SAMPLES, snapshot_every=80)
    first, second, *others = (worker.metrics for worker in workers_of(simulation))
    assert first == second
    assert all(metric is not None and math.isfinite(metric) for metric in first)
    assert others == [[None, None]] * 2
    points = [point.samples for point in simulation.runs[0].evaluations]
    assert sum(samples < 2 * NUM_SAMPLES for samples in points) >= 5
    assert points[-1] == 2 * NUM_SAMPLES
    assert simulation.runs[0].evaluations[-1].metric < simulation.runs[0].evaluations[0].metric


def test_a_gradient_that_is_not_finite_costs_its_rack_the_step_and_no_other() -> None:
    clean, poisoned = (run("hier:bsp/ssp:4,period=3", poison=rank) for rank in (-1, 1))
    assert poisoned.runs[0].refused_updates == {"1": {"not_finite": 1}}
    states = [[worker.states[4] for worker in workers_of(simulation)] for simulation in (clean, poisoned)]
    assert states[0][2:] == states[1][2:]
    assert states[0][0] != states[1][0] == states[1][1]
    assert all(torch.isfinite(tensor).all() for tensor in workers_of(poisoned)[0].tensors)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_worker_takes_its_rack_with_it_and_no_other(lost: int) -> None:
    simulation = run("hier:bsp/ssp:2", faults=[Fault(at_s=0.3, kind="lose", worker=lost)])
    [result] = simulation.runs
    own, other = ([2, 3], [0, 1]) if lost > 1 else ([0, 1], [2, 3])
    [mate] = [rank for rank in own if rank != lost]
    assert isinstance(simulation.outcomes[mate].error, WorkerLostError)
    assert [simulation.outcomes[rank].error for rank in other] == [None, None]
    assert (result.status, result.lost_workers) == ("finished", (lost,))
    survivors = [simulation.outcomes[rank].value for rank in other]
    seen = Counter(index for worker in survivors if worker is not None for batch in worker.batches for index in batch)
    # what the lost rack had handed in is trained on already: two exchanges of a block of at most 8 batches of 8 samples
    assert seen.total() > 3 * NUM_SAMPLES - 300
    assert result.evaluations[-1].metric < 0.3


def test_the_last_rack_that_loses_a_worker_ends_the_run() -> None:
    faults = [Fault(at_s=0.2, kind="lose", worker=0), Fault(at_s=0.4, kind="lose", worker=3)]
    simulation = run("hier:bsp/ssp:2", faults=faults)
    assert all(isinstance(simulation.outcomes[rank].error, WorkerLostError) for rank in (1, 2))
    assert simulation.runs[0].status == "failed"
    assert "worker 3 was lost" in str(simulation.runs[0].error)


def test_what_cannot_be_is_refused_in_one_line() -> None:
    with pytest.raises(DataError, match="3 samples are too few for racks of 4, 1 workers: use fewer"):
        run("hier:bsp/ssp:2", sizes=(4, 1), num_samples=3, samples=6).values()
    joining = run("hier:bsp/ssp:2", faults=[Fault(at_s=0.2, kind="join")])
    with pytest.raises(ConfigError, match="no worker can join hier:bsp/ssp:2 while it runs"):
        joining.values()


# What it saves


def test_racks_whose_steps_vary_hold_each_other_up_less_than_under_bsp_or_local_sgd() -> None:
    """Averaging as often as the bounded policy exchanges waits for whoever is slow then; a bound lets that pass."""
    policies = ("bsp", "hier:bsp/local_sgd:3", "hier:bsp/ssp:4,period=3")
    bsp, local_sgd, ssp = (run(policy, cv=1.0, step_s=0.1, samples=1600).runs[0].samples_per_s for policy in policies)
    assert bsp < local_sgd < ssp
    assert ssp > 1.08 * local_sgd


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sizes", [(4, 4), (2, 2, 2)], ids=str)
def test_one_push_and_one_pull_a_rack_cross_racks(sizes: Sequence[int]) -> None:
    def crossed(num_samples: int) -> tuple[int, int, int]:
        """Bytes from rack to rack, updates of all racks, bytes of the parameters."""

        def work(job: VirtualJob) -> int:
            model = nn.Linear(500, 200)
            with plesio.join(model, torch.optim.SGD(model.parameters(), lr=1e-3), policy="hier:bsp/ssp:4") as session:
                loader = DataLoader(TensorDataset(torch.randn(num_samples, 500)), batch_size=1, shuffle=True)
                for (x,) in session.shard(loader):
                    loss = model(x).square().mean()
                    loss.backward()
                    session.step(loss)
            return sum(p.numel() * p.element_size() for p in model.parameters())

        simulation = simulate(work, num_workers=sum(sizes), cluster=cluster_of_racks(sizes))
        return simulation.cross_rack_bytes, sum(simulation.runs[0].staleness.counts), simulation.values()[0] or 0

    (few, few_updates, num_bytes), (many, many_updates, _) = crossed(5 * sum(sizes)), crossed(20 * sum(sizes))
    exact = 2 * (len(sizes) - 1) / len(sizes) * num_bytes * (many_updates - few_updates)
    assert many - few == pytest.approx(exact, rel=0.03)


def test_without_a_bound_a_slow_rack_holds_nobody_up() -> None:
    bsp, asp = (run(policy, cv=0.0, slow=1, samples=1600).runs[0].samples_per_s for policy in ("bsp", "hier:bsp/asp"))
    # one rack at full pace and one at a third of it, against two at a third: twice as many, less the exchanges
    assert asp > 1.7 * bsp


# Real processes


def pretend_two_hosts(policy: str, sizes: Sequence[int], **options: Any) -> dict[str, Any]:
    """This file's program on a process: what it saw and made, as plain values."""
    torch.set_num_threads(1)
    rank = pretend_hosts(max(sizes))
    if "trace" in options:
        options["trace"] = Path(options["trace"])
    saw = train(policy, rank=rank, **options)
    return {"batches": saw.batches, "states": saw.states, "tensors": [tensor.tolist() for tensor in saw.tensors]}


@pytest.mark.slow  # test_switch_racks.py has a stage of such racks on processes
@pytest.mark.parametrize(("sizes", "accumulate"), [((2, 1), 2), ((2, 2), 1)], ids=str)
def test_processes_of_two_hosts_are_two_racks(sizes: Sequence[int], accumulate: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"sizes": sizes, "accumulate": accumulate, "epochs": 2, "samples": NUM_SAMPLES}
    values = on_processes(
        sum(sizes), __file__, "pretend_two_hosts", policy="hier:bsp/ssp:2", trace=str(tmp_path), **options
    )
    for rack in racks_of(sizes):
        assert len({tuple(values[rank]["states"]) for rank in rack}) == 1
    seen = Counter(index for value in values for batch in value["batches"] for index in batch)
    assert set(seen.values()) == {2}
    assert len(seen) == NUM_SAMPLES
    log = read_log(tmp_path / "events.jsonl")
    assert verify(log) is None
    joined = {(e.event.worker, e.event.num_workers) for e in log.entries if isinstance(e.event, Joined)}
    assert joined == {(0, 2), (2, sizes[1])}


@pytest.mark.slow
def test_on_processes_the_steps_of_an_update_add_up() -> None:
    """DDP's gradients are views of its buckets, into which the next backward pass writes."""
    sizes = (2, 1)
    values = on_processes(
        sum(sizes), __file__, "pretend_two_hosts", policy="hier:bsp/asp,period=3", sizes=sizes,
        linear=True, momentum=0.0, samples=NUM_SAMPLES,
    )  # fmt: skip
    expected = after_synchronous_steps([value["batches"] for value in values], sizes)
    found = torch.tensor(values[0]["tensors"][0], dtype=torch.float64)
    torch.testing.assert_close(found, expected, **TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [1, 2, 3])
def test_a_killed_process_takes_its_rack_with_it_and_no_other(killed: int) -> None:
    with LocalJob(4) as job:
        endings = job.run(
            Path(__file__), "pretend_two_hosts", timeout_s=100, policy="hier:bsp/ssp:2", sizes=EQUAL, kill=killed
        )
    [mate] = [rank for rank in ([0, 1] if killed < 2 else [2, 3]) if rank != killed]
    assert endings[mate].error == "WorkerLostError", endings[mate]
    for rank in [2, 3] if killed < 2 else [0, 1]:
        assert endings[rank].error is None, endings[rank].trace
