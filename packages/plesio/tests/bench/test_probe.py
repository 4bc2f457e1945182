"""The probe's schedule, the probe on loopback, and on racks of network namespaces with a slow uplink."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.bench.probe import probe_here, probe_locally
from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster
from plesio.cost.topology_file import read_topology
from plesio.cost.tournament import tournament
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testbed.host import Host
from plesio.testbed.namespaces import why_no_namespaces
from support.hosts import racks_of_hosts

NO_NAMESPACES = why_no_namespaces()
needs_namespaces = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES)),
]
PORT = 29_551
NIC, UPLINK = 125e6, 25e6


@given(st.integers(2, 40), st.none() | st.integers(0, 5))
def test_every_pair_meets_once_and_nobody_is_in_two_places(num_hosts: int, seed: int | None):
    rounds = tournament(num_hosts, seed=seed)
    assert len(rounds) == num_hosts - 1 + num_hosts % 2
    for pairs in rounds:
        hosts = [host for pair in pairs for host in pair]
        assert len(hosts) == len(set(hosts)) >= num_hosts - 1
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(num_hosts), 2))


def test_the_second_time_pairs_meet_in_other_company():
    first, second = ({frozenset(pairs) for pairs in tournament(8, seed=seed)} for seed in (None, 0))
    assert first.isdisjoint(second)


def test_every_pair_of_processes_is_measured():
    steps: list[tuple[int, int]] = []
    probe = probe_locally(3, on_step=lambda what, done, total: steps.append((done, total)))
    matrix = probe.topology.matrix
    assert matrix.hosts == ("worker 0", "worker 1", "worker 2")
    for one, other in combinations(range(3), 2):
        assert 1e-6 < matrix.latency_s[one][other] < 1
        assert matrix.latency_s[one][other] == pytest.approx(matrix.latency_s[other][one], rel=0.5, abs=1e-3)
        assert min(matrix.bytes_per_s[one][other], probe.contended_bytes_per_s[one][other]) > 1e6
    assert probe.topology.racks == (0, 0, 0)  # no two of three processes can share a way that the third does not
    assert [done for done, _ in steps] == list(range(len(steps)))
    assert all(done < total for done, total in steps)
    assert probe.to_json()["topology"]["uplink_bytes_per_s"] == [None]
    json.dumps(probe.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"WORLD_SIZE": "1", "RANK": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}, "one host has nobody to probe"),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, "2 processes on a host; start one on each"),
    ],
)
def test_who_cannot_be_probed_is_told_at_once(changes: dict[str, str], message: str):
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **changes}
    place = WorkerPlace.from_environment(environment)
    assert place is not None
    with pytest.raises(ConfigError, match=message):
        probe_here(place)


def on_hosts(hosts: Sequence[Host], *arguments: str) -> str:
    """Return the output of `plesio lab probe` on rank 0, started by torchrun on every host."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts)), "--nproc-per-node", "1"]
    meet = ["--master-addr", hosts[0].address, "--master-port", str(PORT), "-m", "plesio", "lab", "probe"]
    running = [
        subprocess.Popen(
            host.command([*torchrun, "--node-rank", str(rank), *meet, *arguments]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        outputs = [process.communicate(timeout=200)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * len(hosts), outputs
    return outputs[0]


class TestOnRacks:
    pytestmark = needs_namespaces

    def test_finds_two_racks_and_a_plan_that_spares_the_uplink(self, tmp_path: Path):
        out, page, numbers = tmp_path / "cluster.toml", tmp_path / "probe.html", tmp_path / "probe.json"
        with racks_of_hosts([3, 2], nic_bytes_per_s=NIC, uplink_bytes_per_s=UPLINK) as testbed:
            dealt = [testbed.hosts[place] for place in (0, 3, 1, 4, 2)]
            files = ["--out", str(out), "--page", str(page), "--json", str(numbers)]
            text = on_hosts(dealt, *files)
        assert "2 racks, of 3, 2 hosts" in text
        topology = read_topology(out)
        assert topology.matrix.hosts == tuple(testbed.hosts[place].address for place in (0, 1, 2, 3, 4))
        assert topology.racks == (0, 0, 0, 1, 1)
        # what TCP carries of a link, and what a loaded machine makes of that
        assert all(0.5 * UPLINK < rate < 1.3 * UPLINK for rate in topology.uplink_bytes_per_s)
        cluster = Cluster.read(out)
        assert (cluster.hosts, cluster.racks) == (5, 2)
        values = json.loads(numbers.read_text())
        assert values["plan"]["saving"] > 0.28
        assert values["num_at_once"] == [2, 2]
        assert "<h1>The network between 5 hosts</h1>" in page.read_text()

    def test_an_uplink_that_is_slow_only_for_many_is_found(self, tmp_path: Path):
        out = tmp_path / "cluster.toml"
        with racks_of_hosts([4, 4], nic_bytes_per_s=UPLINK, uplink_bytes_per_s=UPLINK) as testbed:
            on_hosts([testbed.hosts[place] for place in (0, 4, 1, 5, 2, 6, 3, 7)], "--out", str(out))
        topology = read_topology(out)
        assert topology.racks == (0, 0, 0, 0, 1, 1, 1, 1)
        assert topology.matrix.bytes_per_s[0][4] > 0.6 * UPLINK  # a pair by itself has all of it
        assert all(0.5 * UPLINK < rate < 1.5 * UPLINK for rate in topology.uplink_bytes_per_s)

    def test_one_switch_is_one_rack(self, tmp_path: Path):
        out = tmp_path / "cluster.toml"
        with racks_of_hosts([4], nic_bytes_per_s=UPLINK, uplink_bytes_per_s=UPLINK) as testbed:
            text = on_hosts(testbed.hosts, "--out", str(out))
        assert "One rack" in text
        assert read_topology(out).uplink_bytes_per_s == (math.inf,)
        assert "a ring in the given order" in text

    def test_nothing_is_left_of_the_hosts(self):
        def fail_in_between(names: list[str]) -> None:
            with racks_of_hosts([1, 1], nic_bytes_per_s=NIC, uplink_bytes_per_s=UPLINK) as testbed:
                names += [host.namespace for host in testbed.hosts]
                assert set(names) <= namespaces()
                raise KeyboardInterrupt

        names: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            fail_in_between(names)
        assert not set(names) & namespaces()


def namespaces() -> set[str]:
    lines = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0] for line in lines}
