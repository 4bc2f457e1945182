"""Plain torchrun on two hosts that are network namespaces of this machine, with a wire between them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plesio.core.results import read_results

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
]

SCRIPT = Path(__file__).parents[2] / "examples" / "train_digits.py"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    names = [f"plt{os.getpid()}-{number}" for number in range(2)]
    wires = [f"plv{number}" for number in range(2)]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", wires[0], "netns", names[0], "type", "veth", "peer", "name", wires[1], "netns", names[1])
        for number, (name, wire) in enumerate(zip(names, wires, strict=True)):
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", wire)
            ip("-n", name, "link", "set", wire, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


@pytest.mark.parametrize("policy", ["bsp", "ssp:2"])
def test_torchrun_on_two_hosts(hosts: list[str], policy: str, tmp_path: Path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    meet = ["--master-addr", "10.77.0.1", "--master-port", "29517"]
    script = [str(SCRIPT), "--policy", policy, "--epochs", "2", "--trace", str(tmp_path)]
    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *torchrun, "--node-rank", str(rank), *meet, *script],
            env={**os.environ, "PLESIO_SECRET": "0123456789abcdef" * 2},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    [result] = read_results(tmp_path / "results.json")
    assert (result.status, result.num_workers) == ("finished", 4)
    if policy == "ssp:2":  # a server on each host: half of the parameters by shared memory, half over the wire
        assert result.bytes_sent["ipc"] > 0
        assert result.bytes_sent["tcp"] == pytest.approx(result.bytes_sent["ipc"], rel=0.2)
