"""How long workers stand still when something happens to their run."""

import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

__all__ = ["longest_stall_s", "measure_stalls"]

WITHIN_S = 30.0
"""A gap that ends later than this after what happened is not its doing."""


def longest_stall_s(folder: Path, *, ranks: Iterable[int], since_s: float) -> float:
    """Return the longest that a worker went without finishing a step, less its median step.

    Args:
        folder: Has the moments at which each worker's steps ended, in ``ended-RANK``.
        ranks: The workers.
        since_s: The moment at which it happened.
    """
    stalls = []
    for rank in ranks:
        ended_s = json.loads((folder / f"ended-{rank}").read_text())
        gaps = [(later, later - earlier) for earlier, later in itertools.pairwise(ended_s)]
        usual_s = statistics.median(gap for _, gap in gaps)
        stalls.append(max(gap for later, gap in gaps if since_s < later < since_s + WITHIN_S) - usual_s)
    return max(stalls)


def measure_stalls(
    policies: Sequence[str], stall_s: Callable[[str, Path], float], *, repeat: int
) -> dict[str, list[float]]:
    """Print a table of stalls by policy, and return them; each run has a new folder."""
    found: dict[str, list[float]] = {}
    print("| policy | stall, median | least | most |\n|:--|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as root:
        for policy in policies:
            folders = [Path(root, policy, str(number)) for number in range(repeat)]
            for folder in folders:
                folder.mkdir(parents=True)
            runs = found[policy] = [stall_s(policy, folder) for folder in folders]
            print(f"| `{policy}` | {statistics.median(runs):.3f} s | {min(runs):.3f} s | {max(runs):.3f} s |")
    return found
