"""Virtual runs of a recipe that are kept in a folder, so that a table can be come back to."""

import time
from pathlib import Path

from plesio.bench.compare import run_comparison
from plesio.bench.progress import RunLabel, RunSnapshot
from plesio.bench.recipe import Recipe
from plesio.core.results import RunResult


class _Lines:
    """Prints a line for each run that is done anew."""

    def __init__(self, name: str) -> None:
        self._name = name

    def run_kept(self, label: RunLabel) -> None:
        """Print nothing."""

    def run_started(self, label: RunLabel, *, num_samples: int | None) -> None:
        """Begin the run's line."""
        print(f"{self._name}: {label.policy}, seed {label.seed}", end="", flush=True)
        self._began_s = time.perf_counter()

    def run_advanced(self, snapshot: RunSnapshot) -> None:
        """Print nothing before the end."""

    def run_finished(self, result: RunResult) -> None:
        """End the line."""
        metric = "none that is finite" if result.final_metric is None else f"{result.final_metric:.4g}"
        print(f": {time.perf_counter() - self._began_s:.0f} s, {result.metric_name} {metric}", flush=True)

    def run_failed(self, result: RunResult) -> None:
        """End the line with the error."""
        print(f": {result.status}, {result.error}")


def keep_runs(recipe: Recipe, *, out: Path) -> dict[str, list[RunResult]]:
    """Do the runs by policy, in the order of seeds; those that ``out`` has are not done again.

    Raises:
        SystemExit: A run broke, which is not the same as diverging.
        DataError: ``out`` has runs of another version of the recipe.
    """
    out.mkdir(parents=True, exist_ok=True)
    runs = run_comparison(recipe, out=out, resume=True, progress=_Lines(out.name), world="virtual")
    for run in runs:
        if run.status == "interrupted" or (run.status == "failed" and not run.steps):
            raise SystemExit(f"{out}: {run.policy} seed {run.seed}: {run.error}")
    by_key = {(run.policy, run.seed): run for run in runs}
    return {policy: [by_key[policy, seed] for seed in recipe.run.seeds] for policy in recipe.run.policies}
