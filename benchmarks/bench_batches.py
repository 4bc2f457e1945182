"""How much faster than a search that chooses its batch is the best of searches with a given one?

Machines of any number of devices from 8 to 4,096, with models and accelerators drawn at random, by a seed. Each is
searched without a batch, and with every batch of a grid between half and twice the default that the fastest layouts can
divide: multiples of the replicas that the machine's divisors allow.

    python benchmarks/bench_batches.py [--cases 200] [--seed 1]

Prints the worst cases and writes benchmarks/results/batches.json.
"""

import argparse
import random
from typing import Any

from plesio.core.errors import ConfigError
from plesio_planning.estimate import find_model, parse_machine
from plesio_planning.estimate.search import search_layouts
from record import print_table, print_verdict, save

MODELS = ("llama-2-7b", "llama-2-13b", "llama-3-8b", "llama-2-70b", "gpt3-175b", "mixtral-8x7b")
ACCELERATORS = ("a100", "h100", "b200", "mi300x")
LIMIT = 0.03
GRID = 24
"""Batches that are tried beside those that divide much, as many below the default as above it."""
QUICK = {"zero": 1, "cp": 1}
"""Degrees that are fixed in both searches, so that hundreds of them end; the batch is not among them."""


def batches_for(num_devices: int, wanted: int) -> list[int]:
    """Batches from half to twice the wanted one: a grid, and all multiples of large divisors of the devices."""
    low, high = -(-wanted // 2), 2 * wanted
    found = {round(low * 4 ** (place / GRID)) for place in range(GRID + 1)}
    for divisor in range(max(num_devices // 64, 1), num_devices + 1):
        if num_devices % divisor == 0:
            multiples = range(divisor * -(-low // divisor), high + 1, divisor)
            found |= set(multiples[:: max(len(multiples) // 8, 1)]) | set(multiples[-1:])
    return sorted(batch for batch in found if low <= batch <= high)


def one_case(draw: random.Random) -> dict[str, Any] | None:
    """Compare one case; None if the model does not fit."""
    name, accelerator = draw.choice(MODELS), draw.choice(ACCELERATORS)
    machine = parse_machine(f"{8 * draw.randint(1, 512)}x{accelerator}")
    model = find_model(name)
    wanted = max(2**22 // model.tokens_per_sample, 1)
    how: dict[str, Any] = {"fixed": QUICK, "may_be_lean": True, "top": 1}
    try:
        free = search_layouts(model, machine, global_batch=wanted, near=True, **how)
    except ConfigError:
        return None
    best_s, best_batch = free.best.step.sample_s, free.best.step.num_samples
    for batch in batches_for(machine.num_devices, free.question.wanted):
        try:
            given = search_layouts(model, machine, global_batch=batch, **how)
        except ConfigError:
            continue  # nothing divides it
        if given.best.step.sample_s < best_s:
            best_s, best_batch = given.best.step.sample_s, batch
    chosen = free.best.step
    return {
        "model": name,
        "machine": machine.name,
        "batch": chosen.num_samples,
        "best_batch": best_batch,
        "slower": chosen.sample_s / best_s - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    cases: list[dict[str, Any]] = []
    while len(cases) < arguments.cases:
        if (case := one_case(draw)) is not None:
            cases.append(case)
    cases.sort(key=lambda case: -case["slower"])
    print_table(
        f"{len(cases)} cases, the worst first",
        columns=["model", "machine", "batch", "best batch", "slower"],
        rows=[
            [
                case["model"],
                case["machine"],
                str(case["batch"]),
                str(case["best_batch"]),
                f"{100 * case['slower']:.2f} %",
            ]
            for case in cases[:10]
        ],
    )
    met = cases[0]["slower"] <= LIMIT
    print_verdict(f"no search is more than {100 * LIMIT:g} % slower than with the best batch", met=met)
    save("batches", settings={"cases": arguments.cases, "seed": arguments.seed}, results={"cases": cases}, met=met)


if __name__ == "__main__":
    main()
