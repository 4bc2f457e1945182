"""Links that change while a run goes on: messages, collectives, and whole runs on either exchange."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import plesio
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.link_changes import LinkChange
from plesio.cost.step_time import Constant
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import Simulation, simulate
from plesio.runtime.worlds.virtual.fabric import Fabric
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.sim.kernel import Kernel
from support.problems import Problem, perceptron
from support.workers import workers_of

TWO = Cluster(
    name="two",
    hosts=2,
    workers_per_host=1,
    cores_per_host=1,
    nic=Link(latency_s=0.5, bytes_per_s=100.0),
    collectives="nccl",
)


def nic(at_s: float, bytes_per_s: float | None = None, **more: Any) -> LinkChange:
    return LinkChange(at_s=at_s, link="nic", bytes_per_s=bytes_per_s, **more)


@pytest.mark.parametrize(
    ("changes", "arrivals"),
    [
        ((), [2.5, 4.5]),
        ((nic(1.0, 50.0),), [3.5, 7.5]),  # 100 bytes in the first second, 300 at half the rate
        ((nic(1.0, 50.0), nic(2.0, 100.0)), [3.0, 5.0]),  # and back: a second at half the rate
        ((nic(1.0, 50.0, number=1),), [3.5, 7.5]),  # where the receiver's interface is the narrow one
        ((nic(1.0, 10.0, number=0), nic(1.0, 50.0)), [3.5, 7.5]),  # what comes later is said of all
        ((nic(3.0, latency_s=2.0),), [2.5, 6.0]),
        ((nic(0.0, 50.0),), [4.5, 8.5]),
        ((nic(100.0, 1.0),), [2.5, 4.5]),
    ],
)
def test_a_message_under_way_is_charged_by_what_goes_before_and_after(
    changes: tuple[LinkChange, ...], arrivals: list[float]
):
    kernel = Kernel()
    channel = Fabric(kernel, replace(TWO, changes=changes)).channel(0, 1)
    arrived: list[float] = []
    for _ in range(2):
        channel.send(200, lambda: arrived.append(kernel.now_s))
    kernel.run()
    assert arrived == pytest.approx(arrivals)


def test_a_connection_that_is_opened_later_has_the_links_of_then():
    kernel = Kernel()
    local = Link(latency_s=0.0, bytes_per_s=100.0, shared=False)
    changes = (nic(1.0, 50.0), LinkChange(at_s=1.0, link="local", number=0, bytes_per_s=25.0))
    fabric = Fabric(kernel, replace(TWO, local=local, changes=changes))
    arrived: list[float] = []
    kernel.at(2.0, lambda: fabric.channel(0, 1).send(100, lambda: arrived.append(kernel.now_s)))
    kernel.at(2.0, lambda: fabric.channel(0, 0).send(100, lambda: arrived.append(kernel.now_s)))
    kernel.run()
    assert arrived == pytest.approx([4.5, 6.0])


def all_reduces(*changes: LinkChange) -> list[float]:
    """When each of two all-reduces of 400 bytes, one after the other, is over: 2 messages of 200 bytes and 0.5 s."""

    def main(job: VirtualJob) -> list[float]:
        group = job.group("cpu")
        ended_s = []
        for _ in range(2):
            group.all_reduce(torch.ones(100)).wait()
            ended_s.append(job.clock.now_s())
        return ended_s

    [first, second] = workers_of(simulate(main, num_workers=2, cluster=replace(TWO, changes=changes)))
    assert first == second
    return first


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), [5.0, 10.0]),
        ((nic(5.0, 50.0),), [5.0, 14.0]),  # 9 s from then on
        ((nic(2.5, 50.0),), [7.0, 16.0]),  # half of the first was done
        ((nic(2.5, 50.0), nic(4.75, 100.0)), [6.0, 11.0]),  # half, a quarter at half the rate, a quarter
    ],
)
def test_a_collective_under_way_is_charged_by_what_is_done_before_and_after(
    changes: tuple[LinkChange, ...], expected: list[float]
):
    assert all_reduces(*changes) == pytest.approx(expected)


def run(policy: str, *changes: LinkChange) -> Simulation[list[float]]:
    def work(job: VirtualJob) -> list[float]:
        model = perceptron(5, 6)
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=0, worker=job.place.rank, clock=job.clock)
        ended_s = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with plesio.join(model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer)) as session:
            for _, x, y in session.shard(DataLoader(Problem(160, 5), batch_size=4, shuffle=True)):
                (model(x) - y).square().mean().backward()
                session.step()
                ended_s.append(job.clock.now_s())
        return ended_s

    nic_ = Link(latency_s=50e-6, bytes_per_s=1e6)
    cluster = Cluster(name="four", hosts=4, workers_per_host=1, cores_per_host=1, nic=nic_, changes=changes)
    return simulate(work, num_workers=4, cluster=cluster)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", ["bsp", "local_sgd:2", "bsp,exchange=store", "ssp:1"])
def test_a_run_is_what_it_was_up_to_the_change_and_slower_afterwards(policy: str):
    plain = run(policy)
    half_s = workers_of(plain)[0][4] + 0.001
    for slow in (nic(half_s, 1e4), nic(half_s, 1e4, number=3)):
        changed = run(policy, slow)
        assert changed.runs[0].samples == plain.runs[0].samples
        for before, after in zip(workers_of(plain), workers_of(changed), strict=True):
            num_before = sum(end_s < half_s for end_s in before)
            assert after[:num_before] == before[:num_before]
        assert changed.virtual_s > plain.virtual_s + 0.1
    late = run(policy, nic(1e6, 1.0))
    assert late.virtual_s == plain.virtual_s, "a change to come keeps nobody waiting"
    assert late.runs[0].parameters_sha256 == plain.runs[0].parameters_sha256
