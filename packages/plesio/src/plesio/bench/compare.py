"""The main job: one task, or one script, under several policies and seeds, on the same workers.

A task is trained on the same number of samples in each run; a script says itself how long it trains. Runs are done seed
by seed, and within a seed policy by policy, so that a drift of the machine's speed falls on all policies alike.
`results.json` is rewritten after every run: an interrupted comparison keeps what is finished.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Protocol

from plesio.bench.assignment import Assignment, run_name
from plesio.bench.progress import ProgressSink, RunLabel, RunSnapshot
from plesio.bench.recipe import Recipe
from plesio.bench.script_pool import ScriptPool, VirtualScriptPool
from plesio.bench.script_run import ScriptEnding, ScriptRun, remarks_on_all
from plesio.bench.setting import keep_setting, timed_to
from plesio.bench.testbed_pool import TestbedPool, TestbedScriptPool
from plesio.bench.trainer import recipe_task, target_of
from plesio.bench.virtual_pool import VirtualPool
from plesio.bench.worker_pool import PoolRun, WorkerPool
from plesio.core.arguments import checked
from plesio.core.results import RunResult, read_results, write_results
from plesio.cost.calibration import Calibration
from plesio.protocol.figures import RunFigures
from plesio.runtime.coordinator.ledger import World

_log = logging.getLogger(__name__)

RECENT_S = 2.0
"""Span of the throughput that is shown."""


class Workers(Protocol):
    """The workers that do the runs of a task, in any world."""

    samples_per_epoch: int

    @property
    def usable(self) -> bool:
        """False when a worker was lost or failed; others are needed then."""
        ...

    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> PoolRun: ...

    def close(self) -> None: ...


class ScriptWorkers(Protocol):
    """The workers that do the runs of a script, new ones for each, in any world."""

    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> ScriptEnding: ...

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
    on_remark: Callable[[str], None] = _log.warning,
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
        on_remark: Takes a line about what a script says itself and does not hold, or what it lacks.

    Raises:
        ConfigError: The task cannot be trained, or the script does nothing that could be compared.
        DataError: ``out`` has runs with other settings, or results that cannot be read.
    """
    keep_setting(out, recipe, world=world, calibration=calibration, resume=resume)
    kept = _kept(recipe, out) if resume else {}
    results = dict(kept)
    if kept:  # with another target they come to it at another time
        write_results(out / "results.json", _ordered(recipe, results))

    in_world: dict[World, tuple[Callable[..., Workers], Callable[..., ScriptWorkers]]] = {
        "process": (WorkerPool, ScriptPool),
        "testbed": (TestbedPool, TestbedScriptPool),
        "virtual": (VirtualPool, VirtualScriptPool),
    }
    of_task, of_script = in_world[world]
    how = {"calibration": calibration, "on_testbed": on_testbed} if world == "virtual" else {}
    doing: _ScriptRuns | _TaskRuns
    if recipe.task.is_script:
        doing = _ScriptRuns(recipe, of_script(recipe, **how), on_remark)
    else:
        doing = _TaskRuns(recipe, partial(of_task, recipe, **how))
    with contextlib.closing(doing) as runs:
        for label in _labels(recipe):
            if (label.policy, label.seed) in kept:
                progress.run_kept(label)
                continue
            folder = out / "runs" / run_name(label.policy, seed=label.seed)
            result = replace(runs.run(label, folder=folder, progress=progress), world=world)
            results[label.policy, label.seed] = result
            write_results(out / "results.json", _ordered(recipe, results))
            (progress.run_finished if result.status == "finished" else progress.run_failed)(result)
    return _ordered(recipe, results)


def _labels(recipe: Recipe) -> Iterator[RunLabel]:
    keys = list(product(recipe.run.seeds, recipe.run.policies))
    for number, (seed, policy) in enumerate(keys, start=1):
        yield RunLabel(policy=policy, seed=seed, number=number, num_runs=len(keys))


def _ordered(recipe: Recipe, results: dict[tuple[str, int], RunResult]) -> list[RunResult]:
    """Return the recipe's runs first, then other runs of an earlier comparison in the same folder."""
    wanted = [(policy, seed) for policy in recipe.run.policies for seed in recipe.run.seeds]
    keys = [key for key in wanted if key in results] + [key for key in results if key not in wanted]
    return [results[key] for key in keys]


def _kept(recipe: Recipe, out: Path) -> dict[tuple[str, int], RunResult]:
    path = out / "results.json"
    if not path.exists():
        return {}
    target = target_of(recipe)
    runs = [timed_to(run, target) for run in read_results(path)]
    return {(run.policy, run.seed): run for run in runs if run.status == "finished"}


class _TaskRuns:
    """Does runs of a task; its workers do one after the other, and are replaced when one is lost."""

    def __init__(self, recipe: Recipe, hire: Callable[[], Workers]) -> None:
        self._recipe, self._hire = recipe, hire
        self._pool: Workers | None = None

    def run(self, label: RunLabel, *, folder: Path, progress: ProgressSink) -> RunResult:
        if self._pool is None or not self._pool.usable:
            self.close()
            self._pool = self._hire()
        progress.run_started(label, num_samples=self._recipe.budget_samples(self._pool.samples_per_epoch))
        assignment = Assignment(policy=label.policy, seed=label.seed, folder=folder)
        done = self._pool.run(assignment, on_figures=_watch(label, progress))
        return _result(done, recipe=self._recipe, label=label, folder=folder)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class _ScriptRuns:
    """Does runs of a script, and tells once what of its own choices does not hold."""

    def __init__(self, recipe: Recipe, workers: ScriptWorkers, on_remark: Callable[[str], None]) -> None:
        self._recipe, self._workers, self._on_remark = recipe, workers, on_remark
        self._remarks: dict[str, None] = {}
        self._torch_seeds: dict[int, set[int]] = {}
        self._done: list[RunResult] = []

    def run(self, label: RunLabel, *, folder: Path, progress: ProgressSink) -> RunResult:
        progress.run_started(label, num_samples=None)
        assignment = Assignment(policy=label.policy, seed=label.seed, folder=folder)
        run = ScriptRun.of(self._recipe, assignment)
        ending = self._workers.run(assignment, on_figures=_watch(label, progress))
        self._remarks.update(dict.fromkeys(ending.remarks(run)))
        for chosen in ending.chosen[:1]:
            self._torch_seeds.setdefault(label.seed, set()).add(chosen.torch_seed)
        result = timed_to(ending.result_of(run), self._recipe.run.target)
        self._done.append(result)
        return result

    def close(self) -> None:
        """Make the remarks, which need all runs: every one of them once."""
        self._workers.close()
        script = self._recipe.task.script.name
        self._remarks.update(dict.fromkeys(remarks_on_all(script, self._done, torch_seeds=self._torch_seeds)))
        for remark in self._remarks:
            self._on_remark(remark)


def _watch(label: RunLabel, progress: ProgressSink) -> Callable[[RunFigures], None]:
    recent: list[tuple[float, int]] = []

    def on_figures(figures: RunFigures) -> None:
        if figures.policy == label.policy:
            progress.run_advanced(_snapshot(figures, recent))

    return on_figures


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


def _result(done: PoolRun, *, recipe: Recipe, label: RunLabel, folder: Path) -> RunResult:
    """Return the run's result: a worker's, or the server's where no worker could give one."""
    problems = tuple(f"worker {rank}: {text}" for rank, text in sorted(done.problems.items()))
    if done.result is not None:
        result = RunResult.from_json(done.result)
        return replace(result, fallbacks=(*result.fallbacks, *problems, *done.notes))
    problem = "; ".join(problems)
    written = folder / "results.json"
    if written.exists():
        return read_results(written)[0]
    task = recipe_task(recipe)
    return RunResult(
        policy=label.policy,
        task=task.name,
        world="process",
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
