"""DDP's gradient in virtual time: in buckets, behind the backward pass where the cluster says how long that is."""

from dataclasses import replace

import pytest
import torch

from plesio.cost.buckets import ddp_exposed_s
from plesio.cost.cluster import Cluster, Collectives
from plesio.cost.link import Link
from plesio.cost.placement import all_reduce_on, bucket_all_reduce_on
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from support.workers import workers_of

FOUR = Cluster(
    name="four",
    hosts=4,
    workers_per_host=1,
    cores_per_host=1,
    nic=Link(latency_s=1e-3, bytes_per_s=125e6),
    collectives="nccl",
)
STEP_S = 0.3


def a_step_s(cluster: Cluster, *, num_bytes: int) -> float:
    """Seconds until a step's gradient is added up on all workers."""

    def main(job: VirtualJob) -> float:
        group = job.group("cpu")
        job.clock.sleep_until_s(STEP_S)
        group.all_reduce_gradient(torch.ones(num_bytes // 4)).wait()
        return job.clock.now_s()

    [first, *others] = workers_of(simulate(main, num_workers=4, cluster=cluster))
    assert others == [first] * 3
    return first


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("num_bytes", [2**20 + 4, 30 * 2**20])
def test_a_gradient_takes_what_the_formula_says(num_bytes: int, share: float):
    cluster = replace(FOUR, backward_share=share)
    exposed_s = ddp_exposed_s(
        num_bytes,
        backward_s=share * STEP_S,
        all_reduce_s=lambda size: bucket_all_reduce_on(cluster, range(4), size),
    )
    assert a_step_s(cluster, num_bytes=num_bytes) == pytest.approx(STEP_S + exposed_s)


def test_more_of_the_backward_pass_never_makes_a_step_slower():
    steps_s = [
        a_step_s(replace(FOUR, backward_share=share), num_bytes=60 * 2**20) for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    assert steps_s == sorted(steps_s, reverse=True)
    assert steps_s[0] > steps_s[-1] > STEP_S


@pytest.mark.parametrize("collectives", ["gloo", "nccl"])
def test_a_gradient_that_fits_the_first_bucket_is_one_all_reduce_to_the_bit(collectives: Collectives):
    cluster = replace(FOUR, collectives=collectives)
    assert a_step_s(cluster, num_bytes=2**20) == STEP_S + all_reduce_on(cluster, range(4), 2**20)
