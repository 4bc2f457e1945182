"""Plain torchrun on two hosts that are network namespaces of this machine, with a wire between them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plesio.core.results import read_results

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
]

SCRIPT = Path(__file__).parents[4] / "examples" / "train_digits.py"


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


def test_a_host_with_the_server_is_lost_and_the_backup_on_the_other_takes_over(hosts: list[str], tmp_path: Path):
    program = Path(__file__).with_name("counting_worker.py")
    arguments = {"policy": "asp", "folder": str(tmp_path), "steps": 3000, "victim": "nobody", "seed": 0}
    meet = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29518", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, str(program), json.dumps(arguments)],
            env={**os.environ, **meet, "RANK": str(rank), "LOCAL_RANK": "0", "PLESIO_SECRET": "0123456789abcdef" * 2},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    trace = tmp_path / "trace-1.jsonl"
    while not trace.exists() or trace.read_text().count('"push"') < 100:
        assert running[1].poll() is None, running[1].communicate()[0]
        time.sleep(0.05)
    for process in subprocess.run(["ip", "netns", "pids", hosts[0]], capture_output=True, text=True).stdout.split():
        os.kill(int(process), signal.SIGKILL)
    output = running[1].communicate(timeout=150)[0]
    running[0].communicate()
    assert running[1].returncode == 0, output
    [result] = read_results(tmp_path / "results.json")
    assert (result.status, result.lost_workers, result.workers[1].steps) == ("finished", (0,), 3000)
    assert [line for line in result.fallbacks if "its backup has taken over" in line]
    for folder in Path(tempfile.gettempdir()).glob("plesio-*"):  # of the server, which the next one would remove
        shutil.rmtree(folder)


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
