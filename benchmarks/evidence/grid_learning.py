"""Does a decoupled grid learn as much from a sample as synchronous training?

    nice python benchmarks/evidence/grid_learning.py run --task digits     # tunes, then five seeds; can be interrupted
    nice python benchmarks/evidence/grid_learning.py show --task digits
    python benchmarks/evidence/grid_learning.py one --task stdlib_lm --grid 1x4,micro_batches=8 --factor 0.5

Every run is the real network in the virtual world. Beside each grid stands data parallelism with as many groups,
``Sx1`` with an all-reduce after every update (with S = 1 plain training), on as many samples, and as many of them in an
update, however many micro-batches those are. The learning rate (1/2 to 2 times a rate that grows with the root of the
groups) and shrinking (1, 0.7) are tuned on the seeds TUNING, which are not among the SEEDS reported. How soon grids get
to a target beside pipelines is `benchmarks/grid/run.py`'s.
"""

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import plesio
from plesio.core.files import write_whole
from plesio.cost.cluster import Cluster
from plesio.policies.grid import GridSetting
from plesio.protocol.figures import RunInfo
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worlds.virtual import simulate
from plesio.tasks.load import load_task

OUT = Path("runs/evidence/grid")
TUNING, SEEDS = (100,), (0, 1, 2, 3, 4)
GRIDS = {"digits": ("1x4", "2x2", "1x2", "4x4"), "stdlib_lm": ("1x4,micro_batches=8", "1x4")}
FACTORS = (0.5, 1.0, 2.0)
SHRINKS = (1.0, 0.7)
UPDATE = 8
"""Samples of a group in an update."""
TASKS: dict[str, dict[str, Any]] = {
    "digits": {"options": {"learning_rate": 0.05}, "samples": 1437 * 8},
    "stdlib_lm": {
        "options": {
            "depth": 4,
            "width": 64,
            "context": 64,
            "corpus_bytes": 600_000,
            "tied": False,
            "learning_rate": 2e-3,
        },
        "samples": 4800,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run."""

    task: str
    spec: str
    factor: float
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.spec} x{self.factor:g} seed {self.seed}"


def train(case: Case) -> dict[str, Any]:
    """Do a run; metrics after so many samples."""
    told = TASKS[case.task]
    setting = GridSetting.parse(case.spec)
    task = load_task(case.task, **told["options"], batch_size=UPDATE // setting.micro_batches)
    assert task.chain is not None
    chain = task.chain
    batches = -(-told["samples"] // (task.batch_size * setting.groups * setting.micro_batches))

    def work(job: Any) -> Any:
        model, optimizer = task.build(case.seed)
        torch.manual_seed(case.seed * 1000 + job.place.rank)
        of_weight = {
            id(weight): {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
            for weight in group["params"]
        }

        def make(weights: Any) -> torch.optim.Optimizer:
            groups = [{"params": [weight], **of_weight[id(weight)]} for weight in weights]
            for group in groups:
                group["lr"] *= case.factor * setting.groups**0.5
            return type(optimizer)(groups)

        with plesio.grid(
            chain.layers(model),
            make,
            chain.loss,
            setting=setting,
            balance="memory",
            scheduler_factory=lambda one: task.schedule(one, batches),
            options=JoinOptions(info=RunInfo(seed=case.seed)),
        ) as grid:
            loader = DataLoader(task.train_set(), batch_size=task.batch_size, shuffle=True)
            for batch in grid.shard(loader, samples=told["samples"]):
                grid.step(*chain.split(batch))
            grid.finish(lambda: task.metric(model))
        return grid.report()

    simulation = simulate(
        work, num_workers=setting.num_workers, cluster=Cluster.one_host(setting.num_workers), seed=case.seed
    )
    result = simulation.values()[0]
    assert result is not None
    return {
        **asdict(case),
        "metric": result.final_metric,
        "staleness": result.staleness.max,
    }


class Runs:
    """Runs that have been done, in a file."""

    def __init__(self, task: str) -> None:
        self.task = task
        self._path = OUT / f"{task}.json"
        self._done = json.loads(self._path.read_text()) if self._path.exists() else {}

    def get(self, spec: str, factor: float, seed: int, *, do: bool) -> dict[str, Any] | None:
        """Return the run, done now if need be."""
        case = Case(task=self.task, spec=spec, factor=factor, seed=seed)
        if case.key not in self._done and do:
            self._done[case.key] = train(case)
            print(case.key, f"{self._done[case.key]['metric']:.4f}", flush=True)
            OUT.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(self._done, indent=1) + "\n")
        return self._done.get(case.key)

    def tuned(self, specs: list[str], *, do: bool) -> tuple[str, float] | None:
        """Return the best of these settings and all factors on the tuning seeds."""
        best: tuple[float, str, float] | None = None
        sign = -1.0 if self.task == "digits" else 1.0
        for spec in specs:
            for factor in FACTORS:
                found = [self.get(spec, factor, seed, do=do) for seed in TUNING]
                metrics = [sign * run["metric"] for run in found if run is not None and run["metric"] is not None]
                if len(metrics) < len(TUNING):
                    continue
                mean = statistics.fmean(metrics)
                if mean == mean and (best is None or mean < best[0]):
                    best = mean, spec, factor
        return None if best is None else best[1:]


def variants(spec: str) -> list[str]:
    """Return a grid with each shrinking."""
    return [spec if shrink == 1.0 else f"{spec},shrink={shrink:g}" for shrink in SHRINKS]


def do_all(task: str) -> None:
    """All runs, those that decide most first."""
    runs = Runs(task)
    for specs in [one for spec in GRIDS[task] for one in ([f"{GridSetting.parse(spec).groups}x1"], variants(spec))]:
        chosen = runs.tuned(specs, do=True)
        if chosen is not None:
            for seed in SEEDS:
                runs.get(*chosen, seed, do=True)


def show(task: str) -> None:
    """Print the runs that are done, the worst first."""
    runs = Runs(task)
    rows = []
    for spec in GRIDS[task]:
        grid = _of(runs, variants(spec))
        plain = _of(runs, [f"{GridSetting.parse(spec).groups}x1"])
        if grid is None or plain is None:
            continue
        differences = [
            100 * (ours["metric"] - theirs["metric"])
            if task == "digits"
            else 100 * (1 - ours["metric"] / theirs["metric"])
            for ours, theirs in zip(grid[1], plain[1], strict=True)
        ]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        means = [statistics.fmean(run["metric"] for run in found) for found in (grid[1], plain[1])]
        rows.append((statistics.fmean(differences), error, grid[0], plain[0], means))
    unit = "points" if task == "digits" else "%"
    for mean, error, chosen, beside, (ours, theirs) in sorted(rows):
        print(f"{chosen:34} {ours:.4f}   {beside:12} {theirs:.4f}   {mean:+.2f} ± {error:.2f} {unit}")


def _of(runs: Runs, specs: list[str]) -> tuple[str, list[dict[str, Any]]] | None:
    chosen = runs.tuned(specs, do=False)
    if chosen is None:
        return None
    found = [runs.get(*chosen, seed, do=False) for seed in SEEDS]
    complete = [run for run in found if run is not None]
    return (f"{chosen[0]} x{chosen[1]:g}", complete) if len(complete) == len(SEEDS) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "show", "one"])
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--grid", default="1x4", help="of `one`: a grid, at --factor of the rate")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=TUNING[0])
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "one":
        case = Case(task=given.task, spec=given.grid, factor=given.factor, seed=given.seed)
        print(case.key, f"{train(case)['metric']:.4f}")
        return
    if given.what == "run":
        do_all(given.task)
    show(given.task)


if __name__ == "__main__":
    main()
