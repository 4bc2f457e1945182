"""Hierarchical runs: held against training written out by hand, what crosses racks, and how long that takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import plesio
from plesio.core.errors import WorkerLostError
from plesio.cost.collectives import all_gather_s
from plesio.cost.faults import Fault
from plesio.cost.link import Link
from plesio.cost.step_time import LogNormal
from plesio.policies import parse_policy
from plesio.protocol.figures import RunInfo
from plesio.runtime.worker.exchange.racks import BetweenRacks, Racks
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.testing import LocalJob
from support.by_hand import ByHand
from support.problems import Problem, perceptron
from support.workers import cluster_of_racks, pretend_hosts, racks_of, workers_of

NUM_SAMPLES, NUM_FEATURES, BATCH_SIZE = 240, 5, 4
TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
"""float64, a few hundred roundings of a contraction; one sample more or less shows in the third digit."""
EQUAL, UNEQUAL = (2, 2), (3, 2)
"""Workers of each rack."""


def build(*, momentum: float = 0.9, batch_norm: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = perceptron(NUM_FEATURES, 7, batch_norm=batch_norm)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


@dataclass(kw_only=True)
class Worker:
    """The record of one worker, and its end."""

    batches: list[list[int]] = field(default_factory=list)
    states: list[bytes] = field(default_factory=list)
    """Parameters and momentum after each step."""
    tensors: list[torch.Tensor] = field(default_factory=list)
    """Parameters and buffers at the end."""
    fallbacks: list[str] = field(default_factory=list)
    sent_bytes: int = 0


def train(
    policy: str, *, momentum: float = 0.9, epochs: int = 3, poison: int = -1, batch_norm: bool = False, rank: int = 0,
    pacer: Pacer | None = None, elastic: bool = True,
) -> Worker:  # fmt: skip
    """One worker's training; the worker of rank ``poison`` has a gradient of NaN at its fifth step."""
    model, optimizer = build(momentum=momentum, batch_norm=batch_norm)
    saw = Worker()
    with plesio.join(
        model, optimizer, policy=policy, options=plesio.JoinOptions(info=RunInfo(seed=7), pacer=pacer, elastic=elastic)
    ) as session:
        loader = DataLoader(Problem(NUM_SAMPLES, NUM_FEATURES), batch_size=BATCH_SIZE, shuffle=True)
        for index, x, y in session.shard(loader, samples=epochs * NUM_SAMPLES):
            saw.batches.append(index.tolist())
            loss = (model(x) - y).square().mean()
            (loss * float("nan") if rank == poison and session.clock == 4 else loss).backward()
            session.step(loss)
            momenta = [
                state["momentum_buffer"]
                for state in optimizer.state.values()
                if state.get("momentum_buffer") is not None
            ]
            saw.states.append(b"".join(t.detach().numpy().tobytes() for t in (*model.parameters(), *momenta)))
    saw.tensors = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    saw.sent_bytes = session.report().bytes_sent.get("collective", 0)
    saw.fallbacks = list(session.report().fallbacks)
    return saw


def run(
    policy: str, *, sizes: Sequence[int] = EQUAL, faults: Sequence[Fault] = (), **options: Any
) -> Simulation[Worker]:
    """Train on virtual workers whose steps take as long as chance has it."""

    def work(job: VirtualJob) -> Worker:
        rank = job.place.rank
        pacer = Pacer(step_time=LogNormal(mean_s=0.02, cv=0.3), seed=5, worker=rank, clock=job.clock)
        return train(policy, rank=rank, pacer=pacer, **options)

    return simulate(work, num_workers=sum(sizes), cluster=cluster_of_racks(sizes), faults=faults)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "sizes", [UNEQUAL, (1, 1), *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in (EQUAL, (2, 2, 2)))], ids=str
)
@pytest.mark.parametrize("outer", ["local_sgd:1", "local_sgd:4", "local_sgd:4,delay=2", "local_sgd:3,delay=3"])
def test_it_is_the_training_written_out_by_hand(outer: str, sizes: Sequence[int]) -> None:
    policy = parse_policy(f"hier:bsp/{outer}")
    workers = workers_of(run(policy.spec, sizes=sizes))
    assert [len(worker.batches) for worker in workers] == [len(workers[0].batches)] * sum(sizes)
    hand = ByHand(policy, build, sizes=sizes, data=Problem(NUM_SAMPLES, NUM_FEATURES))
    expected = list(hand.train(workers).parameters())
    for worker in workers:
        torch.testing.assert_close(worker.tensors, expected, **TOLERANCE)


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=str)
def test_replicas_of_a_rack_are_equal_to_the_bit_after_every_step_and_racks_drift(sizes: Sequence[int]) -> None:
    workers = workers_of(run("hier:bsp/local_sgd:4,delay=2", sizes=sizes))
    first, second = (list(zip(*(workers[rank].states for rank in rack), strict=True)) for rack in racks_of(sizes))
    assert all(len(set(states)) == 1 for states in first + second)
    assert all(one[0] != other[0] for one, other in zip(first, second, strict=True))


def test_averaging_every_step_is_flat_bsp_for_plain_sgd() -> None:
    hier, bsp = (workers_of(run(policy, momentum=0.0)) for policy in ("hier:bsp/local_sgd:1", "bsp"))
    assert hier[0].batches == bsp[0].batches
    for one, other in zip(hier[0].tensors, bsp[0].tensors, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


def test_racks_of_one_worker_are_flat_local_sgd() -> None:
    hier, flat = (
        workers_of(run(policy, sizes=(1, 1))) for policy in ("hier:bsp/local_sgd:4,delay=2", "local_sgd:4,delay=2")
    )
    for one, other in zip(hier[0].tensors, flat[0].tensors, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


def test_in_one_rack_it_is_its_inner_policy_and_says_so() -> None:
    hier, bsp = run("hier:bsp/local_sgd:4", sizes=(4,)), run("bsp", sizes=(4,))
    assert hier.runs[0].parameters_sha256 == bsp.runs[0].parameters_sha256
    assert hier.runs[0].fallbacks == ("all workers are in one rack, so hier:bsp/local_sgd:4 is bsp",)
    assert hier.runs[0].policy == "hier:bsp/local_sgd:4"


def test_buffers_end_as_the_mean_over_racks() -> None:
    workers = workers_of(run("hier:bsp/local_sgd:4", batch_norm=True))
    for worker in workers[1:]:
        for one, other in zip(worker.tensors, workers[0].tensors, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_gradient_that_is_not_finite_costs_its_rack_the_step_and_no_other() -> None:
    clean, poisoned = (run("hier:bsp/local_sgd:8", poison=rank) for rank in (-1, 1))
    assert poisoned.runs[0].refused_updates == {"0": {"not_finite": 1}}  # the loss it reported was finite
    states = [[worker.states[4] for worker in workers_of(simulation)] for simulation in (clean, poisoned)]
    assert states[0][2:] == states[1][2:]
    assert states[0][:2] != states[1][:2]
    assert all(torch.isfinite(tensor).all() for tensor in workers_of(poisoned)[0].tensors)


def test_time_in_the_books_is_the_time_that_passed() -> None:
    """Gradients and parameters are exchanged in the same step; neither is forgotten."""
    [result] = run("hier:bsp/local_sgd:2").runs
    for worker in result.workers:
        assert worker.compute_s + worker.wait_s + worker.communicate_s == pytest.approx(result.wall_s, rel=0.02)


def test_a_lost_worker_ends_the_run_for_both_racks() -> None:
    faults = [Fault(at_s=0.3, kind="lose", worker=3)]
    simulation = run("hier:bsp/local_sgd:4,delay=4", faults=faults, elastic=False)
    errors = [simulation.outcomes[rank].error for rank in range(3)]
    assert all(isinstance(error, WorkerLostError) for error in errors)


# What crosses racks


def measure(
    sizes: Sequence[int], num_numbers: int, *, sums: int = 1, workers_per_host: int = 1
) -> tuple[list[Any], int]:
    """Sum a tensor between racks: who got what, seconds between racks and in all; and the bytes that crossed racks."""

    def work(job: VirtualJob) -> tuple[torch.Tensor, float, float]:
        group = job.group("cpu")
        between = BetweenRacks(group, Racks.among(group))
        group.broadcast(torch.zeros(1))
        begun_s, between_s = job.clock.now_s(), 0.0
        tensor = torch.arange(num_numbers, dtype=torch.float32) + 1000 * group.rack
        for _ in range(sums):
            summed = between.all_reduce(tensor)
            summed.wait()
            between_s += summed.took_s()
        return tensor, between_s, job.clock.now_s() - begun_s

    place = cluster_of_racks(sizes, workers_per_host=workers_per_host)
    simulation = simulate(work, num_workers=sum(sizes), cluster=place)
    return simulation.values(), simulation.cross_rack_bytes


@pytest.mark.parametrize(("sizes", "num_rails"), [((4, 4), 4), ((3, 3, 3), 3), ((3, 2), 1), ((1, 1, 1, 1), 1)], ids=str)
@pytest.mark.parametrize("num_numbers", [1200, 1201])
def test_what_crosses_racks_is_what_one_replica_a_rack_would_send(
    sizes: Sequence[int], num_rails: int, num_numbers: int
) -> None:
    (_, none), (_, three) = (measure(sizes, num_numbers, sums=sums) for sums in (0, 3))
    padded_bytes = 4 * num_rails * -(-num_numbers // num_rails)
    # each rank's bytes are whole, at most half a byte off, and a rail has one of each rack
    exact = 3 * 2 * (len(sizes) - 1) * padded_bytes
    assert three - none == pytest.approx(exact, abs=3 * 0.5 * num_rails * len(sizes))


@pytest.mark.parametrize(("sizes", "num_numbers"), [((4, 4), 1000), ((4, 4), 3), ((3, 2), 1000), ((2, 2, 2), 7)])
def test_the_sum_is_over_all_ranks(sizes: Sequence[int], num_numbers: int) -> None:
    expected = sum(size * (torch.arange(num_numbers) + 1000.0 * rack) for rack, size in enumerate(sizes))
    for total, *_ in measure(sizes, num_numbers)[0]:
        torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("workers_per_host", [1, 2])
def test_rails_share_the_uplink(workers_per_host: int) -> None:
    num_bytes, rails = 4_000_000, 4
    found, _ = measure((rails, rails), num_bytes // 4, workers_per_host=workers_per_host)
    between_s = 2 * (150e-6 + num_bytes / 2 / 2e7)  # two rounds of half the tensor, over all rails together
    assert [took_s for _, took_s, _ in found] == pytest.approx([between_s] * 2 * rails)
    if workers_per_host == 1:
        gather_s = all_gather_s(num_bytes, num_ranks=rails, link=Link(latency_s=50e-6, bytes_per_s=1e8))
        assert [took_s for *_, took_s in found] == pytest.approx([between_s + gather_s] * 2 * rails)


# Real processes


def pretend_two_hosts(policy: str) -> dict[str, Any]:
    """This file's program on a process: what it saw and made, as plain values."""
    saw = train(policy, rank=pretend_hosts(2))
    tensors = [tensor.tolist() for tensor in saw.tensors]
    return {"batches": saw.batches, "tensors": tensors, "sent_bytes": saw.sent_bytes}


@pytest.mark.slow
def test_processes_on_two_hosts_make_what_virtual_workers_make() -> None:
    policy = "hier:bsp/local_sgd:4,delay=2"
    expected = workers_of(run(policy))
    with LocalJob(4) as job:
        endings = job.run(Path(__file__), "pretend_two_hosts", timeout_s=100, policy=policy)
    for rank, ending in endings.items():
        assert ending.error is None, ending.trace
        assert ending.value["batches"] == expected[rank].batches
        for found, wanted in zip(ending.value["tensors"], expected[rank].tensors, strict=True):
            torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted, **TOLERANCE)
    # of gradients alone each of the two ranks of a host sends a tensor a step, over connections made for the part
    gradient_bytes = 8 * sum(tensor.numel() for tensor in expected[0].tensors)
    assert endings[0].value["sent_bytes"] > 4 * len(expected[0].batches) * gradient_bytes
