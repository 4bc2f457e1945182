"""The racks of a run: the workers' wishes, the choice that follows from them, and its effect."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio.core.records import from_values, to_values
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.host_racks import HostRacks, PairSpeed
from plesio.runtime.worker.rack_choice import RackChoice, Racks, RackWish, check_racks, choose
from plesio.testing.local_job import LocalJob
from support.processes import on_processes

PROGRAMS = Path(__file__).with_name("rack_programs.py")


def wishes(
    hosts: Sequence[int], *, racks: Racks = "auto", named: Sequence[int | None] | None = None, policy: str = "adaptive"
) -> list[RackWish]:
    """Make the wishes of workers on these hosts, named by their first ranks."""
    names = [None] * len(hosts) if named is None else named
    return [
        RackWish(
            policy=policy, by_racks=True, racks=racks if isinstance(racks, str) else tuple(racks), host=host, named=name
        )
        for host, name in zip(hosts, names, strict=True)
    ]


def found(*racks: int) -> HostRacks:
    way = PairSpeed(latency_s=1e-4, bytes_per_s=1e8)
    return HostRacks(racks=racks, within=way, between=way if max(racks) else None, num_bytes=1, took_s=1.0)


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        (wishes([0, 0, 2, 2]), RackChoice(racks=(0, 0, 2, 2), how="host")),  # two hosts cannot form two racks
        (wishes([0, 1, 2]), RackChoice(racks=(0, 1, 2), how="host")),
        (wishes([0, 1, 2, 3]), None),
        (wishes([0, 1, 2, 3], racks="host"), RackChoice(racks=(0, 1, 2, 3), how="host")),
        (wishes([0, 1, 2, 3], racks=(5, 5, 6, 6)), RackChoice(racks=(5, 5, 6, 6), how="caller")),
        (wishes([0, 1, 2, 3], named=[1, 1, 0, 0]), RackChoice(racks=(1, 1, 0, 0), how="PLESIO_RACK")),
        (wishes([0, 1], racks=(0, 0), named=[1, 2]), RackChoice(racks=(0, 0), how="caller")),
        (wishes([0, 1], racks="host", named=[1, 1]), RackChoice(racks=(0, 1), how="host")),
        # the run itself says that policies differ: nobody waits in a probe for one who will not come
        (wishes([0, 1, 2, 3])[:3] + wishes([3], policy="hier:bsp/ssp:4"), RackChoice(racks=(0, 1, 2, 3), how="host")),
    ],
)
def test_what_follows_from_what_workers_ask_for(asked: list[RackWish], choice: RackChoice | None):
    assert choose([from_values(json.loads(json.dumps(to_values(wish))), RackWish) for wish in asked]) == choice


def test_workers_that_ask_for_different_racks_are_told():
    with pytest.raises(ConfigError, match=r"worker 1 has racks=\(0, 1\) and worker 0 'auto'; write the same for all"):
        choose(wishes([0]) + wishes([1], racks=(0, 1)))
    with pytest.raises(ConfigError, match="PLESIO_RACK is set for 1 of 2 workers, not for worker 1; set it for all"):
        choose(wishes([0, 1], named=[3, None]))


@pytest.mark.parametrize(
    ("racks", "message"),
    [
        ((0, 0, 1), "racks names the racks of 3 workers and there are 4; write a number for each rank"),
    ],
)
def test_racks_that_cannot_be_are_refused(racks: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        check_racks(racks, num_workers=4)


def test_a_probe_of_hosts_says_the_racks_of_their_workers():
    hosts = (0, 0, 2, 2, 4, 4, 6, 6)
    choice = RackChoice.probed(hosts, found(0, 1, 0, 1))
    assert (choice.how, choice.racks, choice.order) == ("probe", (0, 0, 1, 1, 0, 0, 1, 1), (0, 4, 2, 6))
    assert "crosses racks 4 times where 2 would do" in choice.advice()
    assert "start those of ranks 0, 4, 2, 6 in this order" in choice.advice()
    assert from_values(json.loads(json.dumps(to_values(choice))), RackChoice) == choice
    assert RackChoice.probed(hosts, found(0, 0, 1, 1)).advice() == ""


def test_hosts_of_one_rack_are_each_a_rack_for_their_workers():
    choice = RackChoice.probed((0, 0, 2, 2, 4, 4, 6, 6), found(0, 0, 0, 0))
    assert (choice.how, choice.racks, choice.advice()) == ("host", (0, 0, 2, 2, 4, 4, 6, 6), "")
    assert from_values(json.loads(json.dumps(to_values(choice))), RackChoice) == choice


def test_a_wish_has_the_workers_place():
    place = WorkerPlace(
        rank=5, num_workers=8, local_rank=1, local_workers=2, address="", port=0, agent_hosts_store=False, rack=3
    )
    assert RackWish.of(place, [0] * 8, policy="bsp", by_racks=False) == RackWish(
        policy="bsp", by_racks=False, racks=(0,) * 8, host=4, named=3
    )


def events(folder: Path, kind: str, *, rank: int = 0) -> list[dict[str, Any]]:
    lines = (folder / f"trace-{rank}.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line.get("k") == kind]


@pytest.mark.parametrize(
    "policy",
    ["hier:bsp/local_sgd:2", *(pytest.param(it, marks=pytest.mark.slow) for it in ("hier:bsp/ssp:2", "adaptive"))],
)
def test_racks_that_are_named_are_those_of_the_run(policy: str, tmp_path: Path):
    arguments = {"policy": policy, "trace": str(tmp_path), "racks": (0, 0, 1, 1)}
    assert on_processes(4, PROGRAMS, "train", **arguments) == [((0, 0, 1, 1), ())] * 4
    for rank in range(4):
        [event] = events(tmp_path, "racks", rank=rank)
        assert (event["how"], event["racks"]) == ("caller", [0, 0, 1, 1])


def test_one_host_is_one_rack_and_is_not_probed(tmp_path: Path):
    racks, fallbacks = on_processes(4, PROGRAMS, "train", policy="hier:bsp/local_sgd:2", trace=str(tmp_path))[0]
    assert racks == (0, 0, 0, 0)
    assert fallbacks == ("all workers are in one rack, so hier:bsp/local_sgd:2 is bsp",)
    [event] = events(tmp_path, "racks")
    assert (event["how"], event["found"]) == ("host", None)


def test_a_policy_without_racks_decides_nothing(tmp_path: Path):
    assert on_processes(2, PROGRAMS, "train", policy="bsp", trace=str(tmp_path)) == [((0, 0), ())] * 2
    assert events(tmp_path, "racks") == []


def test_workers_that_disagree_on_racks_all_end_with_the_reason(tmp_path: Path):
    with LocalJob(2) as job:
        for rank, racks in enumerate([(0, 1), (0, 0)]):
            job.start(rank, PROGRAMS, "train", policy="hier:bsp/ssp:2", trace=str(tmp_path), racks=racks)
        endings = job.wait(timeout_s=60)
    for ending in endings.values():
        assert (ending.error, "write the same for all" in ending.message) == ("ConfigError", True)
