"""How many servers should hold the parameters of a small model that 16 workers train on the store?

Virtual: `digits`, steps of 16 ms, links of 25 Gbit/s, an exchange at every step. Of every update server 0 hears from
every server, and that is what it costs to have many.

    python benchmarks/adaptive/servers.py

Prints a table: milliseconds a step and worker, computing, waiting and communicating.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "evidence"))
sys.path.insert(0, str(Path(__file__).parent))
from hierarchical import Quiet
from settings import make

from plesio.bench.compare import run_comparison

POLICY = "ssp:15,period=1"


def main() -> None:
    """Run and print."""
    recipe = make("digits", network="fast", stragglers="equal", policies=[POLICY], seeds=[100], short=True)
    print("| servers | computing | waiting | communicating |")
    print("|--:|--:|--:|--:|")
    for servers in (1, 2, 4, 8, 16):
        run = recipe.run.model_copy(update={"servers": servers, "epochs": 2})
        with tempfile.TemporaryDirectory() as folder:
            [result] = run_comparison(
                recipe.model_copy(update={"run": run}),
                out=Path(folder),
                resume=False,
                progress=Quiet(),
                world="virtual",
            )
        seconds = [
            sum(getattr(worker, what) for worker in result.workers) for what in ("compute_s", "wait_s", "communicate_s")
        ]
        cells = " | ".join(f"{1e3 * each_s / result.steps:.2f} ms" for each_s in seconds)
        print(f"\r| {servers} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
