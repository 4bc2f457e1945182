import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from plesio.cli.commands import invoke
from plesio.cost.topology_file import read_topology
from support.narrow import narrow, too_long


def test_probes_this_machine_and_writes_what_a_simulation_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    narrow(monkeypatch)
    out, numbers, page = (tmp_path / name for name in ("cluster.toml", "probe.json", "probe.html"))
    line = f"lab probe --workers 2 --size 1MB --out {out} --json {numbers} --page {page}"
    assert invoke(line.split()) == 0
    text = capsys.readouterr().out
    assert "2 hosts, every pair three times" in text
    assert "an all-reduce of 1 MB" in " ".join(text.split())
    assert too_long(text) == []
    assert read_topology(out).matrix.hosts == ("worker 0", "worker 1")
    values = json.loads(numbers.read_text())
    assert values["plan"]["rank_order"] == [0, 1]
    assert values["plan"]["num_bytes"] == 1_000_000
    assert "Bandwidth of each pair alone" in page.read_text()
    assert not list(tmp_path.glob("*.part"))
    simulation = f"simulate quadratic --cluster {out} --workers 2 --policy bsp --epochs 1 --out {tmp_path / 'runs'}"
    assert invoke(simulation.split()) == 0


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(tmp_path: Path):
    out = tmp_path / "cluster.toml"
    process = subprocess.Popen(
        [sys.executable, "-m", "plesio", "lab", "probe", "--workers", "3", "--out", str(out)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    with process:
        while len(_workers(process)) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        workers = _workers(process)
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert b"Traceback" not in output
    assert not any(worker.is_running() for worker in workers)
    assert not list(tmp_path.iterdir())


def _workers(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """The processes that the fork server has made."""
    servers = [child for child in psutil.Process(process.pid).children() if "forkserver" in " ".join(child.cmdline())]
    return [worker for server in servers for worker in server.children()]


def test_workers_that_torchrun_has_started_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert invoke(["lab", "probe", "--workers", "2"]) == 2
    assert "2 hosts take part already (WORLD_SIZE); leave it out" in capsys.readouterr().err
