"""Event engines side by side: Plesio's kernel and SimPy, the compiled event loop, and the compiled recurrences.

- Timers: 1 to 1,000 that ring over and over: each sleeps for a time of its own, counts, and sleeps again. On Plesio's
  kernel a timer is a callback that schedules itself again; in SimPy a process, a generator that yields a timeout, which
  is how a program is written there (the ratio is to that), and for comparison a callback on timeouts. An event is a
  ring. Building and starting the timers is not counted; the engines take turns, each round in another order; what
  counts is the processor's time, so that other programs on the machine say little.
- Compiled: a server that takes the updates of asynchronous workers (`plesio_planning.sim.store`), one event an update.
- A sweep: 1,024 workers of 1,000 lognormal steps with stragglers, under BSP, local SGD, SSP with five bounds, and ASP;
  random numbers included, compiling not.
- A ring all-reduce of 1,024 ranks, 2 x 1,023 x 1,024 sends.

    python benchmarks/bench_kernel.py [--repeats 15] [--events 200000] [--quick]

Prints tables and writes benchmarks/results/kernel.json.
"""

import argparse
import gc
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import simpy

from plesio.sim.kernel import Kernel
from plesio_planning.sim.all_reduce import ring_all_reduce_s
from plesio_planning.sim.recurrences import simulate_barrier, simulate_bound
from plesio_planning.sim.store import simulate_store
from record import Spread, print_table, print_verdict, save

NUM_TIMERS = (1, 100, 1_000)
NUM_WORKERS, NUM_STEPS = 1_024, 1_000
BOUNDS = (1, 2, 4, 8, 16, math.inf)
Build = Callable[[int, int], Callable[[], Any]]
"""Timers, rings of each; returns what runs them all."""


def delay_s(timer: int) -> float:
    """Different for every timer, so that they do not ring together."""
    return 1.0 + 1e-3 * timer


def plesio_kernel(num_timers: int, num_rings: int) -> Callable[[], Any]:
    kernel = Kernel()
    after = kernel.after

    def timer(own_delay_s: float) -> Callable[[], None]:
        left = num_rings

        def ring() -> None:
            nonlocal left
            left -= 1
            if left:
                after(own_delay_s, ring)

        return ring

    for number in range(num_timers):
        after(delay_s(number), timer(delay_s(number)))
    return kernel.run


def simpy_processes(num_timers: int, num_rings: int) -> Callable[[], Any]:
    environment = simpy.Environment()
    timeout = environment.timeout

    def timer(own_delay_s: float) -> Iterator[simpy.Event]:
        for _ in range(num_rings):
            yield timeout(own_delay_s)

    for number in range(num_timers):
        environment.process(timer(delay_s(number)))
    return environment.run


def simpy_callbacks(num_timers: int, num_rings: int) -> Callable[[], Any]:
    environment = simpy.Environment()
    timeout = environment.timeout

    def timer(own_delay_s: float) -> Callable[[Any], None]:
        left = num_rings

        def ring(_: Any) -> None:
            nonlocal left
            left -= 1
            if left:
                timeout(own_delay_s).callbacks.append(ring)

        return ring

    for number in range(num_timers):
        timeout(delay_s(number)).callbacks.append(timer(delay_s(number)))
    return environment.run


ENGINES: dict[str, Build] = {
    "plesio": plesio_kernel,
    "simpy, processes": simpy_processes,
    "simpy, callbacks": simpy_callbacks,
}


def seconds(action: Callable[[], Any]) -> float:
    started_s = time.perf_counter()
    action()
    return time.perf_counter() - started_s


def processor_seconds(action: Callable[[], Any]) -> float:
    gc.collect()  # of what the engine before it has left
    started_s = time.process_time()
    action()
    return time.process_time() - started_s


def measure_timers(*, num_repeats: int, num_events: int) -> dict[int, dict[str, Spread]]:
    """Events per second of every engine, by number of timers, and its ratio to SimPy's processes, round by round."""
    results = {}
    for num_timers in NUM_TIMERS:
        num_rings = num_events // num_timers
        rates: dict[str, list[float]] = {name: [] for name in ENGINES}
        names = list(ENGINES)
        for _ in range(num_repeats):
            for name in names:
                rates[name].append(num_timers * num_rings / processor_seconds(ENGINES[name](num_timers, num_rings)))
            names.append(names.pop(0))
        ratios = [ours / theirs for ours, theirs in zip(rates["plesio"], rates["simpy, processes"], strict=True)]
        results[num_timers] = {name: Spread(values) for name, values in rates.items()} | {"ratio": Spread(ratios)}
    return results


def measure_store(*, num_repeats: int) -> dict[str, Spread]:
    """Events per second of the compiled event loop, by number of workers and bound."""
    results = {}
    for num_workers in (16, NUM_WORKERS):
        step_s = np.random.default_rng(0).lognormal(0.0, 0.3, (num_workers, NUM_WORKERS * NUM_STEPS // num_workers))

        for bound in (4, math.inf):

            def simulate(step_s: Any = step_s, bound: float = bound) -> None:
                simulate_store(step_s, service_s=0.5 / len(step_s), latency_s=0.01, bound=bound)

            simulate()
            rates = [step_s.size / seconds(simulate) for _ in range(num_repeats)]
            results[f"{num_workers} workers, bound {bound}"] = Spread(rates)
    return results


def sweep() -> None:
    """Sweep the waits at every bound, if one worker in a hundred is slow and one step in a hundred stalls."""
    random = np.random.default_rng(0)
    step_s = random.lognormal(0.0, 0.1, (NUM_WORKERS, NUM_STEPS))
    step_s[:: NUM_WORKERS // 10] *= 1.5
    step_s[random.random(step_s.shape) < 0.01] *= 5.0
    simulate_barrier(step_s, exchange_s=0.1)
    simulate_barrier(step_s, exchange_s=0.1, period=8, delay=1)
    for bound in BOUNDS:
        simulate_bound(step_s, bound=bound, exchange_s=0.1)


def ring() -> None:
    ring_all_reduce_s(1e9, num_ranks=NUM_WORKERS, latency_s=1e-6, bytes_per_s=25e9)


def measure_recurrences(*, num_repeats: int) -> dict[str, Spread]:
    """Seconds, by name."""
    results = {}
    for name, action in (("sweep of 8 policies", sweep), ("ring, 1,024 ranks", ring)):
        action()
        results[name] = Spread([seconds(action) for _ in range(num_repeats)])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--events", type=int, default=200_000, help="events of a repeat")
    parser.add_argument("--quick", action="store_true", help="3 repeats of 20,000 events: does it work?")
    arguments = parser.parse_args()
    num_repeats, num_events = (3, 20_000) if arguments.quick else (arguments.repeats, arguments.events)

    timers = measure_timers(num_repeats=num_repeats, num_events=num_events)
    rows = [
        [str(num_timers), *(spreads[name].text(".2f", scale=1e-6) for name in ENGINES), spreads["ratio"].text(".2f")]
        for num_timers, spreads in timers.items()
    ]
    print_table(
        f"million events per second, {num_repeats} x {num_events:,} events, median (quartiles)",
        columns=["timers", *ENGINES, "plesio / simpy processes"],
        rows=rows,
    )
    store = measure_store(num_repeats=num_repeats)
    rows = [[name, spread.text(".1f", scale=1e-6)] for name, spread in store.items()]
    print_table("store, compiled", columns=["1,024,000 updates", "million events per second"], rows=rows)
    recurrences = measure_recurrences(num_repeats=num_repeats)
    rows = [[name, f"{spread.text('.2f', scale=1e3)} ms"] for name, spread in recurrences.items()]
    print_table("recurrences, compiled", columns=["", "median (quartiles)"], rows=rows)

    verdicts = {
        f"at least 2x SimPy's events/s, {num_timers} timers": spreads["ratio"]["median"] >= 2
        for num_timers, spreads in timers.items()
    }
    verdicts |= {
        "10 million events/s compiled, every row": min(spread["median"] for spread in store.values()) >= 10e6,
        "sweep under 1 s": recurrences["sweep of 8 policies"]["median"] < 1,
        "ring under 10 ms": recurrences["ring, 1,024 ranks"]["median"] < 10e-3,
    }
    for criterion, met in verdicts.items():
        print_verdict(criterion, met=met)
    save(
        "kernel",
        settings={"repeats": num_repeats, "events": num_events, "workers": NUM_WORKERS, "steps": NUM_STEPS},
        results={"timers": timers, "store": store, "recurrences": recurrences, "verdicts": verdicts},
        met=all(verdicts.values()),
    )


if __name__ == "__main__":
    main()
