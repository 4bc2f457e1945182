"""Racks that a job finds by itself, on hosts that are network namespaces with slow uplinks."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from plesio.core.results import RunResult, read_results
from plesio.testbed.host import Host
from plesio.testbed.namespaces import why_no_namespaces
from support.hosts import racks_of_hosts

NO_NAMESPACES = why_no_namespaces()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES)),
]
PROGRAMS = Path(__file__).with_name("rack_programs.py")
NIC, UPLINK = 125e6, 25e6
PORT = 29_563


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "trace-0.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line.get("k") == kind]


@contextmanager
def running(hosts: Sequence[Host], *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The program under torchrun on every host, killed when the context ends."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts)), "--nproc-per-node", "1"]
    meet = ["--master-addr", hosts[0].address, "--master-port", str(PORT), str(PROGRAMS), *arguments]
    processes = [
        subprocess.Popen(
            host.command([*torchrun, "--node-rank", str(rank), *meet]),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()  # torchrun ends its workers
        for process in processes:
            process.communicate()


def result_of(processes: Sequence[subprocess.Popen[str]], folder: Path) -> RunResult:
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    [result] = read_results(folder / "results.json")
    return result


def slow_down(host: Host, *, bytes_per_s: float) -> None:
    """Give the way out of the first rack another bandwidth, in both directions."""
    switches = host.namespace.rsplit("-", 2)[0] + "-net"
    for device in ("up0", "down0"):
        rate = ["rate", f"{bytes_per_s * 8:.0f}bit", "burst", "32768", "latency", "50ms"]
        subprocess.run(
            ["ip", "netns", "exec", switches, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *rate], check=True
        )


def test_racks_are_found_and_a_change_of_their_links_is_noticed(tmp_path: Path):
    """The uplink becomes sixteen times slower while the run goes on; 16 more steps are two windows of the watch."""
    changed, trace = tmp_path / "changed", tmp_path / "trace-0.jsonl"
    arguments = ["policy=hier:bsp/local_sgd:1", f"trace={tmp_path}", "size=400", "num_steps=17", f"until={changed}"]
    with (
        racks_of_hosts([2, 2], nic_bytes_per_s=NIC, uplink_bytes_per_s=UPLINK) as testbed,
        running([testbed.hosts[place] for place in (0, 2, 1, 3)], *arguments) as processes,
    ):
        while not (trace.exists() and events(tmp_path, "racks")):
            assert all(process.poll() is None for process in processes), "ended before racks were found"
            time.sleep(0.2)  # the trace is all that can be seen of it
        slow_down(testbed.hosts[0], bytes_per_s=UPLINK / 16)
        changed.touch()
        result = result_of(processes, tmp_path)
    [event] = events(tmp_path, "racks")
    assert (event["how"], event["racks"], event["order"]) == ("probe", [0, 1, 0, 1], [0, 2, 1, 3])
    assert result.racks == (0, 1, 0, 1)
    assert event["found"]["took_s"] < 20
    assert 1e6 < event["found"]["num_bytes"] < 4 * 2 * 3 * 5e6 + 4 * 3 * 5e6
    assert event["found"]["between"]["bytes_per_s"] < 1.3 * UPLINK
    advice, noticed = sorted(result.fallbacks)
    assert "crosses racks 4 times where 2 would do" in advice
    assert "exchanges between racks take" in noticed
    assert "times as long as the probe at the start predicts" in noticed


def test_hosts_of_one_switch_are_racks_by_themselves(tmp_path: Path):
    arguments = ["policy=hier:bsp/local_sgd:2", f"trace={tmp_path}", "size=8", "num_steps=4"]
    with (
        racks_of_hosts([4], nic_bytes_per_s=UPLINK, uplink_bytes_per_s=UPLINK) as testbed,
        running(testbed.hosts, *arguments) as processes,
    ):
        result = result_of(processes, tmp_path)
    assert (result.racks, result.fallbacks) == ((0, 1, 2, 3), ())
    [event] = events(tmp_path, "racks")
    assert (event["how"], event["found"]["racks"]) == ("host", [0, 0, 0, 0])
