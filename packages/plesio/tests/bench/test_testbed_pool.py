"""A comparison on hosts of their own: real workers, whose bytes go over interfaces, and what is planned happens."""

import re
from pathlib import Path
from typing import Any

import pytest

from plesio.bench.assignment import Assignment
from plesio.bench.recipe import Recipe, make_recipe
from plesio.bench.testbed_pool import TestbedPool, check_for_testbed
from plesio.bench.worker_pool import PoolRun
from plesio.core.errors import ConfigError
from plesio.core.results import RunResult, read_results
from plesio.cost.cluster import Cluster
from plesio.cost.link import Link
from plesio.cost.link_changes import LinkChange
from plesio.protocol.figures import RunFigures
from plesio.testbed.namespaces import why_no_namespaces

NO_NAMESPACES = why_no_namespaces()
needs_namespaces = pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))


def hosts(*, bytes_per_s: float = 125e6, changes: tuple[LinkChange, ...] = ()) -> Cluster:
    nic = Link(latency_s=0.0, bytes_per_s=bytes_per_s)
    return Cluster(name="two", hosts=2, workers_per_host=1, cores_per_host=1, nic=nic, changes=changes)


def recipe(cluster: Cluster | None, *, samples: int = 1280, replicas: int = 1, **workers: Any) -> Recipe:
    return make_recipe(
        {
            "task": {"name": "digits", "batch_size": 32},
            "run": {"policies": ["bsp"], "samples": samples, "replicas": replicas},
            "workers": {"count": 2, "cluster": cluster} | workers,
        },
        folder=Path(),
        where="test",
    )


def ignore(figures: RunFigures) -> None:
    pass


@needs_namespaces
@pytest.mark.slow
def test_bytes_of_interfaces_are_those_of_the_books_and_a_slow_link_is_slow_from_then_on(tmp_path: Path):
    slower = LinkChange(at_s=0.3, link="nic", bytes_per_s=4e6)
    pool = TestbedPool(recipe(hosts(changes=(slower,)), samples=1600, step_time={"kind": "constant", "mean": "20 ms"}))
    network, rates = pool.testbed.network, list[float]()

    def on_figures(figures: RunFigures) -> None:
        rates.append(network.rate(network.nics[0]))

    try:
        before = [host.traffic() for host in pool.testbed.hosts]
        for policy in ("bsp", "asp"):
            done = pool.run(Assignment(policy=policy, seed=0, folder=tmp_path / policy), on_figures=on_figures)
            assert done.problems == {}
            assert done.result is not None
            result = RunResult.from_json(done.result)
            after = [host.traffic() for host in pool.testbed.hosts]
            sent = sum(b.sent_payload - a.sent_payload for a, b in zip(before, after, strict=True))
            assert result.bytes_sent["tcp" if policy == "asp" else "collective"] == pytest.approx(sent, rel=0.03)
            before = after
        rates.append(network.rate(network.nics[0]))
    finally:
        pool.close()
    assert 4e6 in rates  # while a run went on
    assert (rates[0], rates[-1]) == (125e6, 125e6)


@needs_namespaces
@pytest.mark.slow
def test_a_worker_is_lost_when_the_recipe_says_so_and_one_that_is_cut_off_for_a_moment_goes_on(tmp_path: Path):
    nic = Link(latency_s=0.0, bytes_per_s=125e6)
    three = Cluster(name="three", hosts=3, workers_per_host=1, cores_per_host=1, nic=nic)
    cut = {"at": "0.4 s", "kind": "cut", "worker": 1, "lasting": "0.4 s"}
    lose = {"at": "1 s", "kind": "lose", "worker": 2}
    step_time = {"kind": "constant", "mean": "20 ms"}
    plan = recipe(three, count=3, samples=5120, step_time=step_time, faults=[cut, lose])
    pool = TestbedPool(plan)
    try:
        done = pool.run(Assignment(policy="asp", seed=0, folder=tmp_path), on_figures=ignore)
        assert not pool.usable
    finally:
        pool.close()
    assert list(done.problems) == [2]
    assert done.result is not None
    result = RunResult.from_json(done.result)
    assert (result.status, result.lost_workers, result.samples) == ("finished", (2,), 5120)


def cut_off(policy: str, *, folder: Path, worker: int = 2, replicas: int = 1) -> PoolRun:
    """A run of three workers, each on a host of its own, of which one is cut off for good."""
    cut = {"at_step": 30, "kind": "cut", "worker": worker}
    nic = Link(latency_s=0.0, bytes_per_s=125e6)
    three = Cluster(name="three", hosts=3, workers_per_host=1, cores_per_host=1, nic=nic)
    step_time = {"kind": "constant", "mean": "20 ms"}
    pool = TestbedPool(recipe(three, count=3, samples=3840, replicas=replicas, step_time=step_time, faults=[cut]))
    try:
        return pool.run(Assignment(policy=policy, seed=0, folder=folder), on_figures=ignore)
    finally:
        pool.close()


@pytest.mark.slow  # a connection is given up after 35 seconds without a sign
@needs_namespaces
def test_the_others_go_on_without_a_worker_that_is_cut_off(tmp_path: Path):
    done = cut_off("bsp", folder=tmp_path)
    assert list(done.problems) == [2]
    assert "worker 2 is cut off: neither the job's server nor its meeting place" in done.problems[2]
    assert done.result is not None
    result = RunResult.from_json(done.result)
    assert (result.status, result.lost_workers, result.samples) == ("finished", (2,), 3840)


@pytest.mark.slow
@needs_namespaces
def test_a_server_that_is_cut_off_with_its_worker_ends_the_run_by_name(tmp_path: Path):
    done = cut_off("asp", folder=tmp_path)
    assert sorted(done.problems) == [0, 1, 2]
    for rank in (0, 1):
        assert re.search(r"the server at tcp://10.77.0.3:\d+ has ended the connection", done.problems[rank])


@pytest.mark.slow
@needs_namespaces
def test_the_side_with_most_of_the_workers_goes_on_when_a_server_and_its_backup_are_cut_apart(tmp_path: Path):
    done = cut_off("asp", folder=tmp_path, worker=0, replicas=2)
    assert list(done.problems) == [0]
    assert done.result is None  # worker 0's
    [result] = read_results(tmp_path / "results.json")
    assert (result.status, result.lost_workers, result.samples) == ("finished", (0,), 3840)


@pytest.mark.parametrize(
    ("cluster", "workers", "message"),
    [
        (None, {}, "a testbed needs a cluster"),
        (hosts(changes=(LinkChange(at_s=1.0, link="nic", latency_s=0.1),)), {}, "and no latency"),
        (hosts(changes=(LinkChange(at_s=1.0, link="local", bytes_per_s=1e6),)), {}, "of nic and uplink"),
        (hosts(), {"failures": {"mtbf": "5 s"}}, "for the virtual world"),
    ],
)
def test_what_only_the_virtual_world_does_is_refused(cluster: Cluster | None, workers: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        check_for_testbed(recipe(cluster, **workers))
