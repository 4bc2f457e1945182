"""Repeat an experiment of docs/experiments.md: do its runs in the virtual world, print its tables, redraw its figure.

    python benchmarks/experiments/run.py a
    python benchmarks/experiments/run.py b --seeds 10

Runs are kept in runs/experiments/; what is there is not done again. Each experiment is a folder of recipes and a module
with two functions of the finished runs: the figure, and the tables as Markdown.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import accuracy
import plotly.graph_objects as go
import scaling
import stragglers
from picture import write_picture

from plesio.bench.recipe import load_recipe
from plesio.core.results import RunResult

sys.path.insert(0, str(Path(__file__).parents[1]))
from kept_runs import keep_runs

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
Runs = Mapping[str, Sequence[RunResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One experiment.

    Attributes:
        recipes: Names of its recipes, without the suffix.
        picture: Name of the picture in docs/pictures.
        width_px: Width of the picture; its height is the figure's.
    """

    recipes: tuple[str, ...]
    draw: Callable[[Runs], go.Figure]
    tables: Callable[[Runs], str]
    picture: str
    width_px: int = 1000


EXPERIMENTS = {
    "a": Experiment(
        recipes=tuple(f"{kind}-{count}" for kind in ("weak", "strong") for count in (4, 8, 16)),
        draw=scaling.draw,
        tables=scaling.tables,
        picture="experiment_scaling.png",
    ),
    "b": Experiment(
        recipes=accuracy.RECIPES,
        draw=accuracy.draw,
        tables=accuracy.tables,
        picture="experiment_accuracy.png",
    ),
    "c": Experiment(
        recipes=("equal", "stalls", "slow"),
        draw=stragglers.draw,
        tables=stragglers.tables,
        picture="experiment_stragglers.png",
        width_px=900,
    ),
}


def do_runs(folder: str, name: str, *, num_seeds: int | None) -> list[RunResult]:
    """Do the runs of one recipe, and return them, earlier calls' included, in the order of policies, then seeds.

    Raises:
        SystemExit: A run failed.
        DataError: The runs that are there are of another version of the recipe.
    """
    path, out = HERE / folder / f"{name}.toml", ROOT / "runs" / "experiments" / folder / name
    recipe = load_recipe(path, seeds=None if num_seeds is None else range(num_seeds))
    wanted = [run for runs in keep_runs(recipe, out=out).values() for run in runs]
    failed = [f"{run.policy} seed {run.seed}: {run.error}" for run in wanted if run.status != "finished"]
    if failed:
        raise SystemExit(f"{out}: " + "; ".join(failed))
    return wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N - 1 instead of the recipes' five")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    experiment = EXPERIMENTS[arguments.experiment]
    began_s = time.perf_counter()
    runs = {name: do_runs(arguments.experiment, name, num_seeds=arguments.seeds) for name in experiment.recipes}
    print(f"{time.perf_counter() - began_s:.0f} s\n")
    print(experiment.tables(runs))
    path = ROOT / "docs" / "pictures" / experiment.picture
    write_picture(experiment.draw(runs), path, width_px=experiment.width_px)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
