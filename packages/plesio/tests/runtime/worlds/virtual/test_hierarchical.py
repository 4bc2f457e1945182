"""Hierarchical runs: held against training written out by hand, what crosses racks, and how long that takes."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import plesio
from plesio.core.errors import WorkerLostError
from plesio.cost.collectives import all_gather_s
from plesio.cost.faults import Fault
from plesio.cost.link import Link
from plesio.policies import parse_policy
from plesio.runtime.worker.exchange.racks import BetweenRacks, Racks
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support import noted_training
from support.by_hand import ByHand, flat_of
from support.noted_training import NUM_FEATURES, Worker, build, train
from support.problems import Problem
from support.processes import on_processes
from support.workers import cluster_of_racks, pretend_hosts, racks_of, workers_of

NUM_SAMPLES = 240
TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
"""float64, a few hundred roundings of a contraction; one sample more or less shows in the third digit."""
EQUAL, UNEQUAL = (2, 2), (3, 2)
"""Workers of each rack."""


def run(
    policy: str, *, sizes: Sequence[int] = EQUAL, faults: Sequence[Fault] = (), poison: int = -1, **options: Any
) -> Simulation[Worker]:
    """Train on virtual workers in racks; the worker of rank ``poison`` has a gradient of NaN at its fifth step."""

    def before_step(session: plesio.Session, model: nn.Module) -> None:
        if session.rank == poison and session.clock == 4:
            next(model.parameters()).grad.fill_(torch.nan)

    return noted_training.run(
        policy, cluster=cluster_of_racks(sizes), num_workers=sum(sizes), faults=faults, before_step=before_step,
        num_samples=NUM_SAMPLES, epochs=3, **options,
    )  # fmt: skip


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
    expected = flat_of(hand.train(workers))
    for worker in workers:
        torch.testing.assert_close(worker.final, expected, **TOLERANCE)


@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=str)
def test_replicas_of_a_rack_are_equal_to_the_bit_after_every_step_and_racks_drift(sizes: Sequence[int]) -> None:
    workers = workers_of(run("hier:bsp/local_sgd:4,delay=2", sizes=sizes))
    racks = racks_of(sizes)
    for step in range(len(workers[0].after)):
        for rack in racks:
            assert all(torch.equal(workers[rank].after[step], workers[rack[0]].after[step]) for rank in rack)
        assert not torch.equal(*(workers[rack[0]].after[step] for rack in racks))


def test_in_one_rack_it_is_its_inner_policy_and_says_so() -> None:
    hier, bsp = run("hier:bsp/local_sgd:4", sizes=(4,)), run("bsp", sizes=(4,))
    assert hier.runs[0].parameters_sha256 == bsp.runs[0].parameters_sha256
    assert hier.runs[0].fallbacks == ("all workers are in one rack, so hier:bsp/local_sgd:4 is bsp",)
    assert hier.runs[0].policy == "hier:bsp/local_sgd:4"


def test_buffers_end_as_the_mean_over_racks() -> None:
    workers = workers_of(run("hier:bsp/local_sgd:4", batch_norm=True))
    for worker in workers[1:]:
        torch.testing.assert_close(worker.buffers, workers[0].buffers, rtol=0, atol=0)


def test_a_gradient_that_is_not_finite_costs_its_rack_the_step_and_no_other() -> None:
    clean, poisoned = (run("hier:bsp/local_sgd:8", poison=rank) for rank in (-1, 1))
    assert poisoned.runs[0].refused_updates == {"0": {"not_finite": 1}}  # the loss it reported was finite
    pairs = zip(workers_of(clean), workers_of(poisoned), strict=True)
    assert [torch.equal(one.after[4], other.after[4]) for one, other in pairs] == [False, False, True, True]
    assert all(worker.final.isfinite().all() for worker in workers_of(poisoned))


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
    pretend_hosts(2)
    saw = train(policy, num_samples=NUM_SAMPLES, epochs=3)
    assert saw.result is not None
    sent_bytes = saw.result.bytes_sent.get("collective", 0)
    return {"batches": saw.batches, "final": saw.final.tolist(), "sent_bytes": sent_bytes}


@pytest.mark.slow
def test_processes_on_two_hosts_make_what_virtual_workers_make() -> None:
    policy = "hier:bsp/local_sgd:4,delay=2"
    expected = workers_of(run(policy))
    found = on_processes(4, __file__, "pretend_two_hosts", policy=policy)
    for mine, wanted in zip(found, expected, strict=True):
        assert mine["batches"] == wanted.batches
        torch.testing.assert_close(torch.tensor(mine["final"], dtype=torch.float64), wanted.final, **TOLERANCE)
    # of gradients alone each of the two ranks of a host sends a tensor a step, over connections made for the part
    gradient_bytes = 8 * expected[0].final.numel()
    assert found[0]["sent_bytes"] > 4 * len(expected[0].batches) * gradient_bytes
