"""The cost of tracing in a training step, and of measuring a worker's resources, as shares of a step of 5 ms.

A step under `asp` or `ssp` makes the most records of all policies: four spans and two events. These calls are timed
with a trace file and without one (path=None, where a session only adds up its totals), in blocks that alternate.
Between two steps an array larger than the caches is read, as a real step would leave them; every block ends with a
flush, so that encoding and writing are in the mean.

What measures memory and utilisation is timed in the same way, on a clock that goes on by 5 ms a step, so that samples
come as often as in training: a worker with a model of 20 parameters, with gauges and without. The steps themselves are
not timed: what the hooks of the few measured ones cost is not in it.

    python benchmarks/bench_trace.py [--blocks 15] [--steps 500] [--quick]

Prints a table and writes benchmarks/results/trace.json.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from plesio.core.clock import MonotonicClock
from plesio.core.trace import TraceWriter
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.gauges import Gauges
from plesio.runtime.worker.meter import Meter, WorkerTimeline
from record import Spread, print_table, print_verdict, save

STEP_S = 5e-3
LIMIT = 0.01
CACHE_BYTES = 2**24
NUM_LAYERS = 10


def record_step(timeline: WorkerTimeline, *, clock: int) -> None:
    """Record one step on the store, as the session and its exchange do."""
    now_s = time.perf_counter()
    timeline.compute(now_s - STEP_S, now_s, clock=clock)
    timeline.communicate(now_s, now_s, clock=clock)
    timeline.event("push", at_s=now_s, clock=clock, version=4 * clock, steps=1)
    timeline.wait(now_s, now_s, clock=clock)
    timeline.communicate(now_s, now_s, clock=clock)
    timeline.event("pull", at_s=now_s, clock=clock, version=4 * clock + 3)


def block_s(timeline: WorkerTimeline, *, num_steps: int, filler: np.ndarray) -> float:
    total_s = 0.0
    for clock in range(1, num_steps + 1):
        filler.sum()
        started_s = time.perf_counter()
        record_step(timeline, clock=clock)
        total_s += time.perf_counter() - started_s
    started_s = time.perf_counter()
    timeline.trace.flush()
    return (total_s + time.perf_counter() - started_s) / num_steps


def measure(*, num_blocks: int, num_steps: int) -> dict[str, list[float]]:
    """Seconds per step of every block, with a file and without."""
    filler = np.ones(CACHE_BYTES // 8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace-0.jsonl"
        traced = WorkerTimeline(
            Meter(), TraceWriter(path, header={"worker": 0, "policy": "asp"}), clock=MonotonicClock()
        )
        untraced = WorkerTimeline(Meter(), TraceWriter(None, header={}), clock=MonotonicClock())
        times_s: dict[str, list[float]] = {"traced": [], "untraced": []}
        block_s(traced, num_steps=num_steps, filler=filler)
        for _ in range(num_blocks):
            times_s["traced"].append(block_s(traced, num_steps=num_steps, filler=filler))
            times_s["untraced"].append(block_s(untraced, num_steps=num_steps, filler=filler))
        traced.trace.close()
        num_lines = path.read_text(encoding="utf-8").count("\n")
    assert num_lines == 1 + 6 * num_steps * (num_blocks + 1), "every record is in the file"
    return times_s


class SteppingClock(MonotonicClock):
    """Goes on by a step when it is told to."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        """Seconds of the steps so far."""
        return self.at_s


class GaugedWorker:
    """A worker with a small model, on a clock that goes on by a step when it makes one."""

    def __init__(self, folder: Path, *, gauged: bool) -> None:
        self.model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(NUM_LAYERS)))
        self.clock, self.data = SteppingClock(), torch.ones(8, 32)
        replica = Replica(self.model, torch.optim.SGD(self.model.parameters(), lr=0.01))
        gauges = Gauges(replica) if gauged else None
        trace = TraceWriter(folder / f"{gauged}.jsonl", header={"worker": 0, "policy": "asp"}, clock=self.clock)
        self.timeline = WorkerTimeline(Meter(gauges=gauges), trace, clock=self.clock, gauges=gauges)

    def block_s(self, *, num_steps: int) -> float:
        """Mean seconds per step spent on measuring and records; the step itself is not timed."""
        total_s = 0.0
        for step in range(1, num_steps + 1):
            self.model(self.data).sum().backward()
            self.clock.at_s += STEP_S
            started_s = time.perf_counter()
            self.timeline.ready(self.clock.at_s, clock=step)
            self.timeline.step(clock=step, samples=8, duration_s=STEP_S, loss=1.0, at_s=self.clock.at_s)
            total_s += time.perf_counter() - started_s
        return total_s / num_steps


def measure_gauges(*, num_blocks: int, num_steps: int) -> dict[str, list[float]]:
    """Seconds per step of every block, with gauges and without."""
    times_s: dict[str, list[float]] = {"gauged": [], "ungauged": []}
    with tempfile.TemporaryDirectory() as folder:
        gauged, ungauged = (GaugedWorker(Path(folder), gauged=gauged) for gauged in (True, False))
        gauged.block_s(num_steps=num_steps)
        for _ in range(num_blocks):
            times_s["gauged"].append(gauged.block_s(num_steps=num_steps))
            times_s["ungauged"].append(ungauged.block_s(num_steps=num_steps))
        for worker in (gauged, ungauged):
            worker.timeline.trace.close()
    return times_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--steps", type=int, default=500, help="steps of a block")
    parser.add_argument("--quick", action="store_true", help="3 blocks of 100 steps: does it work?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    num_blocks, num_steps = (3, 100) if arguments.quick else (arguments.blocks, arguments.steps)
    times_s = measure(num_blocks=num_blocks, num_steps=num_steps)
    times_s |= measure_gauges(num_blocks=num_blocks, num_steps=num_steps)
    spreads = {name: Spread(values) for name, values in times_s.items()}
    for cost, (dear, cheap) in {"tracing": ("traced", "untraced"), "gauges": ("gauged", "ungauged")}.items():
        pairs = zip(times_s[dear], times_s[cheap], strict=True)
        spreads[cost] = Spread([with_s - without_s for with_s, without_s in pairs])
    rows = [
        [name, f"{spread.text('.1f', scale=1e6)} µs", f"{spread.text('.2f', scale=100 / STEP_S)} %"]
        for name, spread in spreads.items()
    ]
    columns = ["a step's records", "median (quartiles)", "of a 5 ms step"]
    print_table(f"tracing, {num_blocks} blocks of {num_steps} steps", columns=columns, rows=rows)
    met = all(spreads[cost]["median"] < LIMIT * STEP_S for cost in ("tracing", "gauges"))
    print_verdict("tracing, and measuring what is used, each cost below 1 % of a 5 ms step", met=met)
    save("trace", settings={"blocks": num_blocks, "steps": num_steps, "step_s": STEP_S}, results=spreads, met=met)


if __name__ == "__main__":
    main()
