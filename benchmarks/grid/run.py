"""A grid beside plain model parallelism and pipelines, on one cut: the numbers of docs/grid.md.

    python benchmarks/grid/run.py                        # all parts; about half an hour
    python benchmarks/grid/run.py throughput             # paced stages of 20 ms, K = 2, 3, 4
    python benchmarks/grid/run.py links                  # 100 Mbit/s between stages; needs root, for hosts
    python benchmarks/grid/run.py stragglers             # one pass in twenty takes three times as long
    python benchmarks/grid/run.py computing              # two stages that compute, on two cores
    python benchmarks/grid/run.py memory                 # what each stage of four takes
    python benchmarks/grid/run.py learning               # accuracy over samples and over time, on digits
    python benchmarks/grid/run.py tables                 # the tables again, of what has been measured
    python benchmarks/grid/run.py throughput --quick     # only show that it works

Each part is modelled in the virtual world and measured with real processes, which take turns. As root the processes
take precedence over others on the machine. Writes benchmarks/results/grid.json, of which each part replaces its own,
and prints its tables.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # the hosts' addresses have no names
sys.path.insert(0, str(Path(__file__).parents[1]))

from measured_parts import PARTS, Plan
from tables import tables

from record import print_table, save

RESULTS = Path(__file__).parents[1] / "results" / "grid.json"


def results_so_far() -> dict[str, Any]:
    if not RESULTS.exists():
        return {}
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    return found


def measure(part: str, work: Callable[[Plan], Mapping[str, Any]], plan: Plan) -> dict[str, Any]:
    """Return a part's numbers, and the machine's load beside."""
    before, begun_s = os.getloadavg(), time.monotonic()
    print(f"{part} ...", flush=True)
    found = dict(work(plan))
    return {**found, "load": [before[0], os.getloadavg()[0]], "took_s": time.monotonic() - begun_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} or tables; all if none is named")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="of what is measured")
    parser.add_argument("--quick", action="store_true", help="few stages, once")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - {*PARTS, "tables"}
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; write {', '.join(PARTS)} or tables")
    plan = Plan(repeats=1 if arguments.quick else arguments.repeats, quick=arguments.quick)
    for part in arguments.parts or PARTS:
        if part in PARTS:
            measured = measure(part, PARTS[part], plan)
            results = {**results_so_far(), part: measured}
            save("grid", settings={"repeats": plan.repeats, "quick": plan.quick}, results=results, met=True)
    for table in tables(results_so_far()):
        print_table(table.title, columns=table.headers, rows=table.rows)


if __name__ == "__main__":
    main()
