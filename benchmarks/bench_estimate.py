"""How long one estimate takes: memory and step time of a layout, beside the shortest estimate that there is.

The shortest is FLOPs over peak times a constant utilisation. The sides take turns at the same layouts, each layout once
in a round, as a search would ask for them.

    python benchmarks/bench_estimate.py [--repeats 50] [--quick]

Prints a table and writes benchmarks/results/estimate.json.
"""

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence

from plesio_planning.estimate import Layout, Machine, Model, estimate_memory, estimate_step, find_model, parse_machine
from record import Spread, print_table, print_verdict, save

LIMIT_S = 0.2e-3
GLOBAL_BATCH = 512
MACHINE = "256xh100"
MODELS = ("gpt3-175b", "llama-3-70b", "mixtral-8x7b")
UTILISATION = 0.4


def layouts(machine: Machine) -> list[Layout]:
    """Every combination of a few degrees."""
    return [
        Layout(
            tp=tp,
            pp=pp,
            dp=machine.num_devices // (tp * pp),
            zero=1,
            sequence_parallel=tp > 1,
            recomputation=recomputation,
            micro_batch=micro_batch,
        )
        for tp, pp, micro_batch, recomputation in itertools.product(
            (1, 2, 4, 8), (1, 2, 4, 8), (1, 2), ("none", "full")
        )
    ]


def estimate(model: Model, layout: Layout, machine: Machine) -> float:
    """Seconds of a step if it fits, else infinite."""
    memory = estimate_memory(model, layout, machine, global_batch=GLOBAL_BATCH)
    step = estimate_step(model, layout, machine, global_batch=GLOBAL_BATCH)
    return step.total_s if memory.fits else math.inf


def constant_utilisation(model: Model, layout: Layout, machine: Machine) -> float:
    """Seconds of a step."""
    peak = machine.num_devices * machine.accelerator.peak(layout.precision)
    return GLOBAL_BATCH * model.model_flops / (UTILISATION * peak)


def mean_s(side: Callable[[Model, Layout, Machine], float], model: Model, all_of: Sequence[Layout]) -> float:
    machine = parse_machine(MACHINE)
    started_s = time.perf_counter()
    for layout in all_of:
        side(model, layout, machine)
    return (time.perf_counter() - started_s) / len(all_of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="3 repeats: does it work?")
    arguments = parser.parse_args()
    repeats = 3 if arguments.quick else arguments.repeats
    machine = parse_machine(MACHINE)
    all_of = layouts(machine)
    sides = (estimate, constant_utilisation)
    rows, results = [], {}
    for name in MODELS:
        model = find_model(name)
        num_fitting = sum(estimate(model, layout, machine) < math.inf for layout in all_of)
        times_s: dict[str, list[float]] = {side.__name__: [] for side in sides}
        for repeat in range(repeats):
            for side in sides if repeat % 2 == 0 else reversed(sides):
                times_s[side.__name__].append(mean_s(side, model, all_of))
        spreads = {side: Spread(values) for side, values in times_s.items()}
        ratio = spreads["estimate"]["median"] / spreads["constant_utilisation"]["median"]
        results[name] = {**spreads, "ratio": ratio, "fitting_layouts": num_fitting}
        columns = [f"{spread.text('.0f', scale=1e6)} µs" for spread in spreads.values()]
        rows.append([name, f"{num_fitting} of {len(all_of)}", *columns, f"{ratio:.0f}"])
    print_table(
        f"one estimate, {repeats} rounds of {len(all_of)} layouts: median (quartiles) of a round's mean",
        columns=["model", "layouts that fit", "memory and step", "constant utilisation", "ratio"],
        rows=rows,
    )
    met = all(result["estimate"]["median"] < LIMIT_S for result in results.values())
    print_verdict(f"one estimate under {LIMIT_S * 1e3:g} ms", met=met)
    save("estimate", settings={"repeats": repeats, "machine": MACHINE, "limit_s": LIMIT_S}, results=results, met=met)


if __name__ == "__main__":
    main()
