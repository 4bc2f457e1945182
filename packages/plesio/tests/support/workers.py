"""Virtual workers, and the racks they are in."""

import os
from collections.abc import Sequence
from typing import TypeVar

from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.runtime.worlds.virtual import Simulation

T = TypeVar("T")
NIC = Link(latency_s=50e-6, bytes_per_s=1e8)
UPLINK = Link(latency_s=100e-6, bytes_per_s=2e7)


def workers_of(simulation: Simulation[T]) -> list[T]:
    """Return the results of the workers that were not lost, in the order of ranks."""
    return [value for value in simulation.values() if value is not None]


def racks_of(sizes: Sequence[int]) -> list[list[int]]:
    """The ranks of racks of so many workers."""
    firsts = [sum(sizes[:rack]) for rack in range(len(sizes))]
    return [list(range(first, first + size)) for first, size in zip(firsts, sizes, strict=True)]


def cluster_of_racks(
    sizes: Sequence[int], *, workers_per_host: int = 1, nic: Link = NIC, uplink: Link = UPLINK
) -> Cluster:
    """Racks of as many hosts as the first has workers; only the last may have fewer, as ranks fill rack by rack."""
    assert set(sizes[:-1]) <= {sizes[0]}
    assert sizes[-1] <= sizes[0]
    return Cluster(
        name="racks",
        hosts=len(sizes) * sizes[0] // workers_per_host,
        racks=len(sizes),
        workers_per_host=workers_per_host,
        cores_per_host=workers_per_host,
        nic=nic,
        uplink=uplink,
        collectives="nccl",
    )


def pretend_hosts(workers_per_host: int) -> int:
    """Tell this process of a `LocalJob` that its job is on hosts of so many workers; returns its rank."""
    rank = int(os.environ["RANK"])
    os.environ.update(LOCAL_WORLD_SIZE=str(workers_per_host), LOCAL_RANK=str(rank % workers_per_host))
    return rank
