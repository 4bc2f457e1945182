"""A run's progress as its display sees it, through stages on the collective and on the store."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

from bench.kept_progress import KeptProgress
from plesio.bench.compare import run_comparison
from plesio.bench.recipe import load_recipe

RECIPE = """
[task]
name = "digits"

[run]
policies = ["switch:bsp/asp@10/bsp@110"]
seeds = [0]
samples = 8000

[workers]
count = 2
step_time = { kind = "constant", mean = "20 ms" }
"""
NUM_SAMPLES, BATCH_SIZE, NUM_WORKERS = 8000, 32, 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", [pytest.param("process", marks=pytest.mark.slow), "virtual"])
def test_progress_rises_through_a_stage_on_the_store(
    tmp_path: Path, world: Literal["process", "virtual"], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("plesio.runtime.worlds.virtual.simulation.LOOK_S", 0.0)
    recipe, heard = tmp_path / "recipe.toml", KeptProgress()
    recipe.write_text(RECIPE)
    [result] = run_comparison(load_recipe(recipe), out=tmp_path, resume=False, progress=heard, world=world)
    assert (result.status, result.samples) == ("finished", NUM_SAMPLES)
    samples = [snapshot.samples for snapshot in heard.snapshots]
    assert all(before <= after for before, after in pairwise(samples))
    entered, left = (decision["clock"] * NUM_WORKERS * BATCH_SIZE for decision in result.decisions)
    on_the_store = {number for number in samples if entered < number < 0.9 * left}
    assert on_the_store  # none, if it stood still there; on a busy machine there are few looks
    assert any(snapshot.mean_staleness for snapshot in heard.snapshots)
    if world == "virtual":
        assert samples[-1] == NUM_SAMPLES
    else:  # real processes may leave the stage and be done between two looks
        assert samples[-1] <= NUM_SAMPLES


@pytest.mark.parametrize(
    ("policy", "loads"),
    [("bsp", False), *(pytest.param(it, True, marks=pytest.mark.slow) for it in ("ssp:2", "switch:bsp/asp@9"))],
)
def test_a_server_is_ready_for_the_store_when_the_run_begins(policy: str, *, loads: bool):
    """The server's imports are looked at when the first worker of two has joined; in a process of its own."""
    code = f"""
import sys
from plesio.core.clock import MonotonicClock
from plesio.runtime.transport import Control
from plesio.runtime.server.job_server import JobServer
from plesio.protocol.message import kind_of
from plesio.protocol.peers import worker_identity
from plesio.protocol.to_server import Join

class Endpoint:
    generation = 0

body = dict(
    policy={policy!r}, folder=None, num_servers=1, info={{}}, num_workers=2, snapshot_every=None, layout="",
    environment=dict(plesio="", python="", torch="", numpy="", platform="", cpu="", num_cpus=1), rack=0,
)
server = JobServer(0, endpoint=Endpoint(), first=None, clock=MonotonicClock())
server.handle([Control(peer=worker_identity(1).encode(), kind=kind_of(Join), generation=0, body=body)])
print("torch" in sys.modules, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (f"{loads} {loads}", "")
