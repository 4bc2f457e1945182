"""Rehearsals of `plesio advise`: a user's task or script under one policy after another, in the virtual world.

Nothing here decides: `plesio.advisor` says what is run and what follows from it. A rehearsal runs one thing; what
cannot be known without training (sizes, a step's time here) a probe has found, in `plesio.bench.advise_probe`.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plesio.advisor import ModelSizes, Rehearsed, Situation
from plesio.bench.advise_probe import Probed, quiet
from plesio.bench.assignment import Assignment
from plesio.bench.recipe import Recipe, make_recipe
from plesio.bench.recipe_workers import WorkersSection
from plesio.bench.simulate import VirtualScript
from plesio.bench.trainer import recipe_task
from plesio.bench.virtual_pool import VirtualPool, machine_of
from plesio.core.clock import MonotonicClock
from plesio.core.errors import PlesioError
from plesio.core.results import RunResult
from plesio.cost.calibration import Calibration
from plesio.runtime.worlds.virtual import SimulationProgress

DRAWN_STEPS = 64
MOST_EVALUATIONS, FEWEST_EVALUATIONS = 96, 24
EVALUATING_SHARE = 0.2
"""Largest share of a run's time on this machine for its evaluation."""


def situation_of(
    workers: WorkersSection, calibration: Calibration | None, *, sizes: ModelSizes, batch_size: int
) -> Situation:
    """Return the situation of these workers: their place, and a stretch of their steps, drawn as a run's are.

    Args:
        workers: How many, how fast, where.
        calibration: Measurements of the machine; None is a typical one.
        sizes: The model's.
        batch_size: Samples in a worker's step.
    """
    cluster, costs = machine_of(workers, calibration, batch_size=batch_size)
    clock = MonotonicClock()
    rows = []
    for rank in range(workers.count):
        pacer = workers.pacer(rank, seed=0, clock=clock, began_s=0.0)
        steps_s, at_s = [], 0.0
        for step in range(DRAWN_STEPS):
            steps_s.append(costs.gradient_s if pacer is None else pacer.draw_s(step, at_s=at_s))
            at_s += steps_s[-1]
        rows.append(steps_s)
    return Situation(
        cluster=cluster,
        num_workers=workers.count,
        batch_size=batch_size,
        compute_s=np.array(rows) + costs.step_s,
        sizes=sizes,
        costs=costs,
    )


class TaskRehearsal:
    """Runs a task under one policy after another.

    Args:
        table: A recipe of it; its policies and seeds do not matter.
        measure_s: Seconds of this machine that all runs may take together, roughly.

    Raises:
        ConfigError: The recipe cannot be used.
    """

    by_loss = False

    def __init__(
        self,
        table: Mapping[str, Any],
        *,
        probed: Probed,
        measure_s: float,
        calibration: Calibration | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recipe = make_recipe(table, folder=Path.cwd(), where="plesio advise")
        self._calibration = calibration
        self._probed = probed
        self._now_s = now_s
        self.task = recipe_task(self._recipe)
        self.metric_name, self.metric_goal, self.target = self.task.metric_name, self.task.metric_goal, self.task.target
        self.most_samples = float(self._recipe.budget_samples(len(self.task.train_set())))  # type: ignore[arg-type]
        self.sample_s = probed.sample_s
        self._recipe = self._with(evaluate_every=self._every(measure_s))
        self._pools: dict[int | None, VirtualPool] = {}
        self._pool(None)  # whatever is wrong is said now

    @property
    def workers(self) -> WorkersSection:
        return self._recipe.workers

    def _every(self, measure_s: float) -> int:
        """Return the samples between two evaluations: many in a run, but not so many that they outlast the training."""
        run = min(self.most_samples, 0.2 * measure_s / self.sample_s)
        affordable = EVALUATING_SHARE * run * self.sample_s / max(self._probed.metric_s, 1e-6)
        number = min(MOST_EVALUATIONS, max(FEWEST_EVALUATIONS, affordable))
        return max(1, round(run / number))

    def _with(self, **update: Any) -> Recipe:
        return self._recipe.model_copy(update={"run": self._recipe.run.model_copy(update=update)})

    def _pool(self, servers: int | None) -> VirtualPool:
        if servers not in self._pools:
            self._pools[servers] = VirtualPool(self._with(servers=servers), calibration=self._calibration)
        return self._pools[servers]

    def run(
        self, policy: str, *, seed: int, servers: int | None, until_samples: float, within_s: float, budget_s: float
    ) -> Rehearsed:
        """Do one run; it has no result if it was cut off by one of the two times."""
        watch = _Watch(within_s=within_s, budget_s=budget_s, now_s=self._now_s)
        until = None if until_samples >= self.most_samples else max(1, math.ceil(until_samples))
        assignment = Assignment(policy=policy, seed=seed, folder=None, until_samples=until)
        done = self._pool(servers).run(assignment, on_figures=lambda figures: None, stop=watch.stop)
        result = None if done.result is None else RunResult.from_json(done.result)
        problem = "; ".join(f"worker {rank}: {text}" for rank, text in sorted(done.problems.items())) or None
        return watch.rehearsed(result, problem=problem, most_samples=self.most_samples)


class ScriptRehearsal:
    """Runs a script under one policy after another; its length is not known before one has come to its end.

    What counts is its training loss.
    """

    by_loss = True
    metric_name = "training loss"
    metric_goal: Literal["max", "min"] = "min"
    target = None

    def __init__(self, script: VirtualScript, *, probed: Probed) -> None:
        self._script = script
        self.workers = script.workers
        self.sample_s = probed.sample_s
        self.most_samples = math.inf

    def run(
        self, policy: str, *, seed: int, servers: int | None, until_samples: float, within_s: float, budget_s: float
    ) -> Rehearsed:
        """Do one run; the script says how many servers it has."""
        watch = _Watch(within_s=within_s, budget_s=budget_s, until_samples=until_samples)
        try:
            with quiet():
                runs = self._script.run(policy, seed=seed, trace=None, on_progress=watch.look, stop=watch.stop)
        except PlesioError as error:
            return watch.rehearsed(None, problem=str(error), most_samples=self.most_samples)
        last = runs[-1]
        if last.status == "interrupted" and not watch.cut:
            raise KeyboardInterrupt
        if last.status == "finished":
            self.most_samples = float(last.samples)
        problem = last.error if last.status == "failed" else None
        return watch.rehearsed(last, problem=problem, most_samples=self.most_samples)


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Cuts a run off, and records how far it came."""

    within_s: float
    budget_s: float
    now_s: Callable[[], float] = time.monotonic
    until_samples: float = math.inf
    began_s: float = field(init=False)
    cut: bool = False
    latest: SimulationProgress | None = None

    def __post_init__(self) -> None:
        self.began_s = self.now_s()

    def look(self, progress: SimulationProgress) -> None:
        self.latest = progress

    def stop(self, progress: SimulationProgress) -> bool:
        self.latest = progress
        self.cut = (
            progress.samples >= self.until_samples
            or progress.virtual_s > self.within_s
            or self.now_s() - self.began_s > self.budget_s
        )
        return self.cut

    def rehearsed(self, result: RunResult | None, *, problem: str | None, most_samples: float) -> Rehearsed:
        real_s = self.now_s() - self.began_s
        if result is None:
            samples, virtual_s = (0, 0.0) if self.latest is None else (self.latest.samples, self.latest.virtual_s)
            return Rehearsed(result=None, samples=samples, virtual_s=virtual_s, real_s=real_s, problem=problem)
        return Rehearsed(
            result=result,
            samples=result.samples,
            virtual_s=result.wall_s,
            real_s=real_s,
            problem=problem,
            whole=result.samples >= 0.999 * most_samples,
        )
