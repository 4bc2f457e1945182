"""The virtual world's overhead in a step: the turns of 16 workers, whole runs of `digits`, and policies beside BSP.

- Turns: threads that only sleep, for times of their own; every sleep is an event and a switch, random streams included.
- Run: 16 workers of `digits` on 16 hosts at 1 Gbit/s, 400 steps each, by policy, beside the bare gradients of as many
  steps in a plain loop.
- Ratios: processor seconds of a worker's step by policy over those under BSP, in runs that take turns, for 8 and 16
  workers with one server and with as many as there are by default. The least of all rounds counts on either side: what
  else the machine does only adds to it.

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
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.runtime.worlds.virtual.scheduler import Scheduler, ThreadTurn
from plesio.sim.kernel import Kernel
from plesio.tasks.digits import digits
from record import Spread, print_table, print_verdict, save

NUM_WORKERS = 16
LIMIT_TURN_S, LIMIT_RUN_S = 100e-6, 60.0
POLICIES = ("bsp", "local_sgd:8", "asp")
LIMIT_RATIOS = {"asp": 2.0, "adaptive": 1.15}
RATIO_POLICIES = ("bsp", "ssp:4,period=3", "asp", "adaptive")
RATIO_SETTINGS = ((8, 1), (16, 1), (8, None), (16, None))
"""Workers, each with a host of its own, and servers (None: the default)."""
RATIO_STEPS, RATIO_ROUNDS = 40, 5


def turn_s(num_turns: int) -> float:
    """Seconds of real time for one turn of one thread."""
    scheduler = Scheduler(Kernel())
    turns: list[ThreadTurn] = []

    def sleep(number: int) -> None:
        for _ in range(num_turns):
            scheduler.sleep(turns[number], 0.01 * (number + 1))

    for number in range(NUM_WORKERS):
        turns.append(scheduler.spawn(f"worker {number}", lambda number=number: sleep(number), seed=number))
    started_s = time.perf_counter()
    scheduler.run()
    return (time.perf_counter() - started_s) / (NUM_WORKERS * num_turns)


def run_s(
    policy: str, num_steps: int, *, num_workers: int = NUM_WORKERS, num_servers: int | None = 1
) -> tuple[float, float, int]:
    """Seconds of real time and of the processor for a run, and the steps that it had."""
    task = digits()
    data = task.train_set()

    def work(job: VirtualJob) -> None:
        model, optimizer = task.build(0)
        pacer = Pacer(step_time=Constant(mean_s=0.02), seed=0, worker=job.place.rank, clock=job.clock)
        with plesio.join(
            model, optimizer, policy=policy, options=plesio.JoinOptions(pacer=pacer, num_servers=num_servers)
        ) as session:
            loader = DataLoader(data, batch_size=task.batch_size, shuffle=True)
            for batch in session.shard(loader, samples=num_steps * num_workers * task.batch_size):
                loss = task.loss(model, batch)
                loss.backward()
                session.step(loss)

    started_s, began_s = time.perf_counter(), time.process_time()
    simulation = simulate(work, num_workers=num_workers, cluster=parse_cluster("16x1gbe"))
    simulation.values()
    return time.perf_counter() - started_s, time.process_time() - began_s, simulation.runs[0].steps


def step_cpu_s(*, num_workers: int, num_servers: int | None, num_steps: int, num_rounds: int) -> dict[str, float]:
    """Least processor seconds of one worker's step, by policy."""
    least: dict[str, float] = {}
    for number in range(num_rounds):
        for policy in RATIO_POLICIES if number % 2 else reversed(RATIO_POLICIES):
            _, cpu_s, steps = run_s(policy, num_steps, num_workers=num_workers, num_servers=num_servers)
            least[policy] = min(cpu_s / steps, least.get(policy, cpu_s / steps))
    return least


def ratios(*, num_steps: int, num_rounds: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the seconds of every setting by policy, and True if all ratios to BSP are within their limits."""
    found = []
    met = True
    rows = []
    for num_workers, num_servers in RATIO_SETTINGS:
        cpu_s = step_cpu_s(num_workers=num_workers, num_servers=num_servers, num_steps=num_steps, num_rounds=num_rounds)
        over_bsp = {policy: cpu_s[policy] / cpu_s["bsp"] for policy in RATIO_POLICIES}
        met = met and all(over_bsp[policy] <= limit for policy, limit in LIMIT_RATIOS.items())
        found.append({"workers": num_workers, "servers": num_servers, "step_cpu_s": cpu_s, "over_bsp": over_bsp})
        servers = "by default" if num_servers is None else str(num_servers)
        shown = [f"{1e3 * cpu_s[policy]:.2f} ms ({over_bsp[policy]:.2f})" for policy in RATIO_POLICIES]
        rows.append([str(num_workers), servers, *shown])
    print_table(
        "processor time of a worker's step of digits (over BSP's)",
        columns=["workers", "servers", *RATIO_POLICIES],
        rows=rows,
    )
    return found, met


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
        whole_s, _, steps = run_s(policy, 400 // scale)
        results[policy] = {"run_s": whole_s, "steps": steps, "bare_step_s": own_s}
        run_ok = run_ok and whole_s <= LIMIT_RUN_S
        added_s = whole_s / steps - own_s
        rows.append([policy, f"{steps}", f"{whole_s:.1f} s", f"{own_s * 1e3:.2f} ms", f"{added_s * 1e3:.2f} ms"])
    print(f"a turn: {turns['median'] * 1e6:.0f} us")
    print_table(
        f"{NUM_WORKERS} virtual workers of digits", columns=["policy", "steps", "run", "bare step", "added"], rows=rows
    )
    results["ratios"], ratios_ok = ratios(
        num_steps=RATIO_STEPS // (6 if arguments.quick else 1), num_rounds=1 if arguments.quick else RATIO_ROUNDS
    )
    print_verdict("a turn takes at most 100 us", met=turn_ok)
    print_verdict("16 workers of digits, 400 steps each, take less than 60 s", met=run_ok)
    print_verdict("an asp step at most 2 of a bsp one in processor time, an adaptive one at most 1.15", met=ratios_ok)
    met = turn_ok and run_ok and ratios_ok
    save("virtual", settings={"workers": NUM_WORKERS, "scale": scale}, results=results, met=met)
    return 0


if __name__ == "__main__":
    sys.exit(main())
