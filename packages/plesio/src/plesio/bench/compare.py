"""The main job: one task under several policies and seeds, on the same workers and the same number of samples.

Runs are done seed by seed, and within a seed policy by policy, so that a drift of the machine's speed falls on all
policies alike. `results.json` is rewritten after every run: an interrupted comparison keeps what is finished.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from plesio.bench.assignment import Assignment
from plesio.bench.progress import ProgressSink, RunLabel, RunSnapshot
from plesio.bench.recipe import Recipe
from plesio.bench.setting import keep_setting, timed_to
from plesio.bench.testbed_pool import TestbedPool
from plesio.bench.trainer import recipe_task
from plesio.bench.virtual_pool import VirtualPool
from plesio.bench.worker_pool import PoolRun, WorkerPool
from plesio.core.arguments import checked
from plesio.core.results import RunResult, read_results, write_results
from plesio.cost.calibration import Calibration
from plesio.protocol.figures import RunFigures
from plesio.runtime.coordinator.ledger import World

__all__ = ["run_comparison"]

RECENT_S = 2.0
"""Span of the throughput that is shown."""


class Workers(Protocol):
    """The workers that do the runs, in any world."""

    samples_per_epoch: int

    @property
    def usable(self) -> bool:
        """False when a worker was lost or failed; others are needed then."""
        ...

    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> PoolRun: ...

    def close(self) -> None: ...


@checked
def run_comparison(
    recipe: Recipe,
    *,
    out: Path,
    resume: bool,
    progress: ProgressSink,
    world: World = "process",
    calibration: Calibration | None = None,
    on_testbed: bool = False,
) -> list[RunResult]:
    """Do the recipe's runs; returns them in the order of policies, then seeds, and writes ``out/results.json``.

    Args:
        recipe: Policies and task to compare.
        out: Folder for ``results.json`` and, under ``runs/``, each run's traces.
        resume: Keep the finished runs that ``out/results.json`` has, timed to the recipe's target, and do only the
            others.
        progress: Takes the progress.
        world: World of the workers.
        calibration: Measurements of the machine, for the virtual world; None is a typical one.
        on_testbed: Whether the virtual world's cluster is a testbed on that machine, whose cores its hosts share.

    Raises:
        ConfigError: The task cannot be trained.
        DataError: ``out`` has runs with other settings, or results that cannot be read.
    """

    def hire() -> Workers:
        match world:
            case "process":
                return WorkerPool(recipe)
            case "testbed":
                return TestbedPool(recipe)
            case "virtual":
                return VirtualPool(recipe, calibration=calibration, on_testbed=on_testbed)

    keep_setting(out, recipe, world=world, calibration=calibration, resume=resume)
    kept = _kept(recipe, out) if resume else {}
    results = dict(kept)
    if kept:  # with another target they come to it at another time
        write_results(out / "results.json", _ordered(recipe, results))
    labels = list(_labels(recipe))
    pool: Workers | None = None
    try:
        for label in labels:
            if (label.policy, label.seed) in kept:
                progress.run_kept(label)
                continue
            if pool is None or not pool.usable:
                if pool is not None:
                    pool.close()
                pool = hire()
            result = _run(recipe, pool, label, out=out, world=world, progress=progress)
            results[label.policy, label.seed] = result
            write_results(out / "results.json", _ordered(recipe, results))
            if result.status == "finished":
                progress.run_finished(result)
            else:
                progress.run_failed(result)
    finally:
        if pool is not None:
            pool.close()
    return _ordered(recipe, results)


def _labels(recipe: Recipe) -> Iterator[RunLabel]:
    num_runs = len(recipe.run.seeds) * len(recipe.run.policies)
    number = 0
    for seed in recipe.run.seeds:
        for policy in recipe.run.policies:
            number += 1
            yield RunLabel(policy=policy, seed=seed, number=number, num_runs=num_runs)


def _ordered(recipe: Recipe, results: dict[tuple[str, int], RunResult]) -> list[RunResult]:
    """Return the recipe's runs first, then other runs of an earlier comparison in the same folder."""
    wanted = [(policy, seed) for policy in recipe.run.policies for seed in recipe.run.seeds]
    keys = [key for key in wanted if key in results] + [key for key in results if key not in wanted]
    return [results[key] for key in keys]


def _kept(recipe: Recipe, out: Path) -> dict[tuple[str, int], RunResult]:
    path = out / "results.json"
    if not path.exists():
        return {}
    target = recipe_task(recipe).target
    runs = [timed_to(run, target) for run in read_results(path)]
    return {(run.policy, run.seed): run for run in runs if run.status == "finished"}


def _run(
    recipe: Recipe, pool: Workers, label: RunLabel, *, out: Path, world: World, progress: ProgressSink
) -> RunResult:
    folder = out / "runs" / f"{_slug(label.policy)}-seed{label.seed}"
    budget = recipe.budget_samples(pool.samples_per_epoch)
    progress.run_started(label, num_samples=budget)
    recent: list[tuple[float, int]] = []

    def on_figures(figures: RunFigures) -> None:
        if figures.policy == label.policy:
            progress.run_advanced(_snapshot(figures, recent))

    done = pool.run(Assignment(policy=label.policy, seed=label.seed, folder=folder), on_figures=on_figures)
    return _result(done, recipe=recipe, label=label, world=world, folder=folder)


def _snapshot(figures: RunFigures, recent: list[tuple[float, int]]) -> RunSnapshot:
    recent.append((figures.elapsed_s, figures.samples))
    while len(recent) > 2 and recent[-1][0] - recent[0][0] > RECENT_S:
        del recent[0]
    (first_s, first), (last_s, last) = recent[0], recent[-1]
    return RunSnapshot(
        samples=figures.samples,
        step=figures.steps,
        samples_per_s=(last - first) / (last_s - first_s) if last_s > first_s else 0.0,
        loss=figures.loss if figures.loss == figures.loss else None,
        mean_staleness=figures.staleness,
    )


def _result(done: PoolRun, *, recipe: Recipe, label: RunLabel, world: World, folder: Path) -> RunResult:
    """Return the run's result: a worker's, or the server's where no worker could give one."""
    problems = tuple(f"worker {rank}: {text}" for rank, text in sorted(done.problems.items()))
    if done.result is not None:
        result = RunResult.from_json(done.result)
        return replace(result, world=world, fallbacks=(*result.fallbacks, *problems))
    problem = "; ".join(problems)
    written = folder / "results.json"
    if written.exists():
        return replace(read_results(written)[0], world=world)
    task = recipe_task(recipe)
    return RunResult(
        policy=label.policy,
        task=task.name,
        world=world,
        seed=label.seed,
        num_workers=recipe.workers.count,
        status="failed",
        error=problem,
        steps=0,
        samples=0,
        wall_s=0.0,
        metric_name=task.metric_name,
        metric_goal=task.metric_goal,
        target=task.target,
    )


def _slug(policy: str) -> str:
    """Write the policy's spec as a folder name.

    >>> _slug("local_sgd:8,delay=4")
    'local_sgd-8-delay-4'
    """
    return re.sub(r"[^A-Za-z0-9_.+]+", "-", policy)
