"""Set evidence beside that of the source of the idea, part by part; docs/evidence.md has the tables.

    python benchmarks/evidence/source.py lm                         # a language model: steps, time, perplexity, bytes
    python benchmarks/evidence/source.py nodes                      # what a step costs above computing, 4 to 64 nodes
    python benchmarks/evidence/source.py spread --seeds 10          # of final accuracies over seeds
    python benchmarks/evidence/source.py busy                       # the share of time in which workers compute
    python benchmarks/evidence/source.py regularisation             # dropout, weight decay, BatchNorm and staleness
    python benchmarks/evidence/source.py plateau --out /tmp/source  # is validation a signal of too much slack?

Runs are kept in runs/evidence/source/; what is there is not done again, so a table can be come back to.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from run import OUT
from source_learning import language_model, regularisation, spread
from source_plateau import plateau
from source_times import busy, nodes

Part = Callable[..., None]
PARTS: dict[str, tuple[Part, int]] = {
    "lm": (language_model, 3),
    "nodes": (nodes, 2),
    "spread": (spread, 10),
    "busy": (busy, 3),
    "regularisation": (regularisation, 3),
    "plateau": (plateau, 3),
}
"""By name: what does it, and how many seeds docs/evidence.md has."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N - 1, at least 2 (as in docs/evidence.md)")
    parser.add_argument("--out", type=Path, default=OUT / "source", metavar="DIR", help="of the runs (%(default)s)")
    arguments = parser.parse_args()
    do_part, usual = PARTS[arguments.part]
    num_seeds = usual if arguments.seeds is None else arguments.seeds
    if num_seeds < 2:
        parser.error(f"--seeds {num_seeds}: write 2 or more; one seed has no spread")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        do_part(seeds=range(num_seeds), out=arguments.out / arguments.part)
    except KeyboardInterrupt:
        raise SystemExit("interrupted; what is finished is kept, and the same command goes on") from None


if __name__ == "__main__":
    main()
