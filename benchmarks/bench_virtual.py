"""What the virtual world adds to a step: the turns of 16 workers, and a whole run of `digits`.

- Turns: threads that only sleep, for times of their own; every sleep is an event and a switch, random streams included.
- Run: 16 workers of `digits` on 16 hosts at 1 Gbit/s, 400 steps each, by policy, beside the bare gradients of as many
  steps in a plain loop.

    python benchmarks/bench_virtual.py [--quick]

Prints tables and writes benchmarks/results/virtual.json.
"""

import argparse
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader

import plesio
from plesio.cost.cluster import parse_cluster
from plesio.cost.step_time import Constant
from plesio.runtime.pacing import Pacer
from plesio.runtime.virtual import simulate
from plesio.runtime.virtual.job import VirtualJob
from plesio.runtime.virtual.scheduler import Scheduler, Turn
from plesio.sim.kernel import Kernel
from plesio.tasks.digits import digits
from record import Spread, print_table, print_verdict, save

NUM_WORKERS = 16
LIMIT_TURN_S, LIMIT_RUN_S = 100e-6, 60.0
POLICIES = ("bsp", "local_sgd:8", "asp")


def turn_s(num_turns: int) -> float:
    """Seconds of real time for one turn of one thread."""
    scheduler = Scheduler(Kernel())
    turns: list[Turn] = []

    def sleep(number: int) -> None:
        for _ in range(num_turns):
            scheduler.sleep(turns[number], 0.01 * (number + 1))

    for number in range(NUM_WORKERS):
        turns.append(scheduler.spawn(f"worker {number}", lambda number=number: sleep(number), seed=number))
    started_s = time.perf_counter()
    scheduler.run()
    return (time.perf_counter() - started_s) / (NUM_WORKERS * num_turns)


def run_s(policy: str, num_steps: int) -> tuple[float, int]:
    """Seconds of real time for a run, and the steps that it had."""
    task = digits()
    data = task.train_set()

    def work(job: VirtualJob) -> None:
        model, optimizer = task.build(0)
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=0, worker=job.place.rank, clock=job.clock)
        with plesio.join(model, optimizer, policy=policy, pacer=pacer, num_servers=1) as session:
            loader = DataLoader(data, batch_size=task.batch_size)
            for batch in session.shard(loader, samples=num_steps * NUM_WORKERS * task.batch_size):
                loss = task.loss(model, batch)
                loss.backward()
                session.step(loss)

    started_s = time.perf_counter()
    simulation = simulate(work, num_workers=NUM_WORKERS, cluster=parse_cluster("16x1gbe"))
    simulation.values()
    return time.perf_counter() - started_s, simulation.runs[0].steps


def bare_s(num_steps: int) -> float:
    """Seconds of a step of a plain loop."""
    task = digits()
    model, optimizer = task.build(0)
    data = task.train_set()
    started_s = time.perf_counter()
    done = 0
    while done < num_steps:
        for batch in DataLoader(data, batch_size=task.batch_size, shuffle=True):
            task.loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    return (time.perf_counter() - started_s) / done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of it: does it work?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scale = 10 if arguments.quick else 1
    turns = Spread([turn_s(1000 // scale) for _ in range(5)])
    turn_ok = turns["median"] <= LIMIT_TURN_S
    rows: list[list[str]] = []
    results: dict[str, Any] = {"turn_s": turns}
    run_ok = True
    run_s(POLICIES[0], 4)  # loads what torch loads at first use
    for policy in POLICIES:
        own_s = bare_s(400 // scale)
        whole_s, steps = run_s(policy, 400 // scale)
        results[policy] = {"run_s": whole_s, "steps": steps, "bare_step_s": own_s}
        run_ok = run_ok and whole_s <= LIMIT_RUN_S
        added_s = whole_s / steps - own_s
        rows.append([policy, f"{steps}", f"{whole_s:.1f} s", f"{own_s * 1e3:.2f} ms", f"{added_s * 1e3:.2f} ms"])
    print(f"a turn: {turns['median'] * 1e6:.0f} us")
    print_table(
        f"{NUM_WORKERS} virtual workers of digits", columns=["policy", "steps", "run", "bare step", "added"], rows=rows
    )
    print_verdict("a turn takes at most 100 us", met=turn_ok)
    print_verdict("16 workers of digits, 400 steps each, take less than 60 s", met=run_ok)
    save("virtual", settings={"workers": NUM_WORKERS, "scale": scale}, results=results, met=turn_ok and run_ok)
    return 0


if __name__ == "__main__":
    sys.exit(main())
