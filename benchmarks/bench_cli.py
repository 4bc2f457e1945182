"""How long `plesio --help` takes from a shell, beside the bare start of the interpreter and an import of torch.

The commands run in turn, so that whatever else the machine does meets all of them.

    python benchmarks/bench_cli.py [--repeats 25] [--quick]

Prints a table and writes benchmarks/results/cli.json.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from record import Spread, print_table, print_verdict, save

LIMIT_S = 0.4
COMMANDS = {
    "plesio --help": [str(Path(sys.executable).with_name("plesio")), "--help"],
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import torch'": [sys.executable, "-c", "import torch"],
}


def wall_s(command: list[str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--quick", action="store_true", help="3 repeats: does it work?")
    arguments = parser.parse_args()
    repeats = 3 if arguments.quick else arguments.repeats
    times_s: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():
        wall_s(command)  # the first start reads from disk
    for _ in range(repeats):
        for name, command in COMMANDS.items():
            times_s[name].append(wall_s(command))
    spreads = {name: Spread(values) for name, values in times_s.items()}
    baseline_s = spreads["python -c pass"]["median"]
    rows = [
        [name, f"{spread.text('.0f', scale=1e3)} ms", f"{spread['median'] / baseline_s:.1f}"]
        for name, spread in spreads.items()
    ]
    print_table(f"wall time, {repeats} repeats", columns=["command", "median (quartiles)", "x bare python"], rows=rows)
    met = spreads["plesio --help"]["median"] < LIMIT_S
    print_verdict(f"plesio --help under {LIMIT_S} s", met=met)
    save("cli", settings={"repeats": repeats}, results=spreads, met=met)


if __name__ == "__main__":
    main()
