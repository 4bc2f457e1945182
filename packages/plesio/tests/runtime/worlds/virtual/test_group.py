"""Collectives among virtual ranks: what they bring, how long they take, and the bytes that are counted."""

from dataclasses import replace

import pytest
import torch

from plesio.cost.cluster import parse_cluster
from plesio.cost.collectives import all_gather_s
from plesio.cost.host_costs import HostCosts
from plesio.cost.link import Link
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob

RANKS = 4
FOUR, TWO_RACKS = (replace(parse_cluster(name), collectives="nccl") for name in ("4x1gbe", "2-racks"))
NIC = Link(latency_s=50e-6, bytes_per_s=125e6)
"""The interfaces of 4x1gbe."""


def gather(job: VirtualJob) -> tuple[list[list[int]], float, int]:
    begun_s = job.clock.now_s()
    tensor = torch.arange(1000, dtype=torch.uint8).remainder(7) + 7 * job.place.rank
    gathering = job.group("cpu").all_gather(tensor)
    parts = gathering.wait()
    return [part.tolist() for part in parts], job.clock.now_s() - begun_s, job.bytes_sent()["collective"]


def test_all_gather_brings_every_ranks_tensor_in_the_time_and_with_the_bytes_of_a_ring():
    for parts, took_s, sent_bytes in simulate(gather, num_workers=RANKS, cluster=FOUR).values():
        assert parts == [[i % 256 % 7 + 7 * rank for i in range(1000)] for rank in range(RANKS)]
        assert took_s == pytest.approx(all_gather_s(4000, num_ranks=RANKS, link=NIC))
        assert sent_bytes == 3000


def test_where_an_all_reduce_was_measured_an_all_gather_takes_half_of_it():
    costs = HostCosts(all_reduce_s=0.002, all_reduce_bytes_per_s=1e6)
    simulated = simulate(gather, num_workers=RANKS, cluster=FOUR, costs=costs)
    assert [took_s for _, took_s, _ in simulated.values()] == pytest.approx([0.003] * RANKS)


def test_all_gather_and_all_reduce_take_turns():
    def main(job: VirtualJob) -> tuple[float, list[int]]:
        group = job.group("cpu")
        total = torch.full((3,), float(job.place.rank))
        first = group.all_reduce(total)
        second = group.all_gather(torch.tensor([job.place.rank]))
        parts = second.wait()
        first.wait()
        return float(total[0]), [int(part) for part in parts]

    simulated = simulate(main, num_workers=RANKS, cluster=FOUR)
    assert simulated.values() == [(6.0, [0, 1, 2, 3])] * RANKS


def test_bytes_that_cross_racks_are_those_of_the_ranks_whose_next_is_in_another():
    simulated = simulate(gather, num_workers=16, cluster=TWO_RACKS)
    assert simulated.cross_rack_bytes == 2 * 15_000


def test_all_to_all_brings_every_ranks_row_in_the_time_and_with_the_bytes_of_a_ring():
    def main(job: VirtualJob) -> tuple[list[list[int]], float, int]:
        begun_s = job.clock.now_s()
        rows = torch.arange(RANKS, dtype=torch.uint8).repeat_interleave(1000).view(RANKS, 1000) + 10 * job.place.rank
        parts = job.group("cpu").all_to_all(rows).wait()
        return [part.unique().tolist() for part in parts], job.clock.now_s() - begun_s, job.bytes_sent()["collective"]

    values = simulate(main, num_workers=RANKS, cluster=FOUR).values()
    for rank, (parts, took_s, sent_bytes) in enumerate(values):
        assert parts == [[10 * source + rank] for source in range(RANKS)]
        assert took_s == pytest.approx(all_gather_s(4000, num_ranks=RANKS, link=NIC))
        assert sent_bytes == 3000
