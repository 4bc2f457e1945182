"""How long an estimate of memory and step time takes, a whole estimate, and a search over layouts.

- Estimates of one run: of its memory and step time alone, and whole, with failures, cost and energy.
- A search: `search_layouts` over the whole space of a few models and machines. Most layouts are left out by bounds. The
  time for 10,000 layouts is the search's, scaled by its layouts.

    python benchmarks/bench_search.py [--repeats 7] [--quick]

Prints tables and writes benchmarks/results/search.json.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from plesio_planning.estimate import Layout, estimate_memory, estimate_step, find_model, parse_machine
from plesio_planning.estimate.search import search_layouts
from plesio_planning.estimate.training import estimate_training
from record import Spread, print_table, print_verdict, save

STEP_LIMIT_S, WHOLE_LIMIT_S = 0.2e-3, 1e-3
SEARCH_LIMIT_S = 1.0
NUM_LAYOUTS = 10_000
SEARCHES = (("llama-2-70b", "2048xh100", 1024), ("gpt3-175b", "1024xa100", 1536), ("qwen3-235b-a22b", "256xh100", 1024))


def measure_estimates(*, num_repeats: int, num_estimates: int) -> dict[str, Spread]:
    """Seconds of one estimate of either kind, each the mean of a round."""
    model, machine = find_model("llama-2-70b"), parse_machine("2048xh100")
    layout = Layout(tp=8, pp=4, dp=64, zero=1, sequence_parallel=True)

    def memory_and_step() -> None:
        estimate_memory(model, layout, machine, global_batch=1024)
        estimate_step(model, layout, machine, global_batch=1024)

    def whole() -> None:
        estimate_training(model, layout, machine, global_batch=1024, tokens=2e12)

    sides: dict[str, Callable[[], None]] = {"memory and step": memory_and_step, "whole": whole}
    rounds_s: dict[str, list[float]] = {name: [] for name in sides}
    whole()  # reads what is read at first use
    for _ in range(num_repeats):
        for name, estimate in sides.items():
            began_s = time.perf_counter()
            for _ in range(num_estimates):
                estimate()
            rounds_s[name].append((time.perf_counter() - began_s) / num_estimates)
    return {name: Spread(each) for name, each in rounds_s.items()}


def measure_search(name: str, machine: str, global_batch: int, *, num_repeats: int) -> dict[str, Any]:
    """Seconds of a search, and how many layouts it tried."""
    model, parsed = find_model(name), parse_machine(machine)
    seconds, found = [], None
    for _ in range(num_repeats):
        began_s = time.perf_counter()
        found = search_layouts(model, parsed, global_batch=global_batch, near=True, may_be_lean=True)
        seconds.append(time.perf_counter() - began_s)
    assert found is not None
    return {
        "seconds": Spread(seconds),
        "tried": found.num_tried,
        "not_divisible": found.num_not_divisible,
        "too_large": found.num_too_large,
        "slower": found.num_slower,
        "timed": len(found.candidates),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="2 repeats: does it work?")
    arguments = parser.parse_args()
    num_repeats = 2 if arguments.quick else arguments.repeats

    estimates = measure_estimates(num_repeats=num_repeats, num_estimates=100 if arguments.quick else 1000)
    print_table(
        f"one estimate, {num_repeats} rounds' means",
        columns=["estimate", "median (quartiles)"],
        rows=[[name, f"{spread.text('.0f', scale=1e6)} µs"] for name, spread in estimates.items()],
    )
    searches = {
        f"{name} on {machine}": measure_search(name, machine, global_batch, num_repeats=num_repeats)
        for name, machine, global_batch in SEARCHES
    }
    rows = []
    for name, result in searches.items():
        median_s = result["seconds"]["median"]
        result["s_per_10000_tried"] = median_s * NUM_LAYOUTS / result["tried"]
        rows.append(
            [
                name,
                f"{result['tried']:,}",
                f"{result['timed']:,}",
                f"{result['seconds'].text('.2f')} s",
                f"{result['s_per_10000_tried']:.2f} s",
            ]
        )
    print_table(
        f"searches, {num_repeats} repeats",
        columns=["search", "layouts", "timed", "median (quartiles)", "10,000 layouts"],
        rows=rows,
    )
    slowest_s = max(result["s_per_10000_tried"] for result in searches.values())
    verdicts = {
        "memory and step time under 0.2 ms": estimates["memory and step"]["median"] < STEP_LIMIT_S,
        "a whole estimate under 1 ms": estimates["whole"]["median"] < WHOLE_LIMIT_S,
        "a search over 10,000 layouts under 1 s": slowest_s < SEARCH_LIMIT_S,
    }
    for criterion, met in verdicts.items():
        print_verdict(criterion, met=met)
    save(
        "search",
        settings={"repeats": num_repeats},
        results={"estimates": estimates, "searches": searches, "verdicts": verdicts},
        met=all(verdicts.values()),
    )


if __name__ == "__main__":
    main()
