"""The workers of a comparison in the virtual world: they live as long as a run."""

from collections.abc import Callable
from typing import Any

from plesio.bench.crew import CrewRun
from plesio.bench.recipe import Recipe
from plesio.bench.trainer import Assignment, recipe_task, train
from plesio.core.errors import ConfigError, PlesioError
from plesio.cost.calibration import Calibration
from plesio.cost.cluster import Cluster
from plesio.cost.step_time import Constant
from plesio.runtime.observer import RunFigures
from plesio.runtime.pacing import Pacer
from plesio.runtime.virtual import Progress, simulate
from plesio.runtime.virtual.job import VirtualJob
from plesio.tasks.check import check_task

__all__ = ["VirtualCrew"]


class VirtualCrew:
    """Does a comparison's runs in virtual time, in this process.

    Args:
        recipe: What is trained, and where; without a cluster it is the calibrated machine, or one host with a core for
            each worker. It says how long steps take.
        calibration: What was measured; None is a typical machine.

    Raises:
        ConfigError: The task cannot be trained, nobody says how long steps take, or the cluster is too small.
    """

    def __init__(self, recipe: Recipe, *, calibration: Calibration | None = None) -> None:
        count, cluster = recipe.workers.count, recipe.workers.cluster
        self.usable = True
        self._recipe = recipe
        self._task = recipe_task(recipe)
        check_task(self._task)
        self.samples_per_epoch = len(self._task.train_set())  # type: ignore[arg-type]
        self._costs = None
        if calibration is not None:
            calibration.check_task(self._task.name)
            self._costs = calibration.costs(self._task.batch_size, here=cluster is None)
        if cluster is not None:
            self._cluster = cluster.for_workers(count)
        elif calibration is not None:
            self._cluster = calibration.cluster(count)
        else:
            self._cluster = Cluster.one_host(count)
        if self._costs is None and any(recipe.workers.step_time_of(rank) is None for rank in range(count)):
            raise ConfigError(
                "the virtual world must know how long a step takes: write "
                'step_time = { kind = "constant", mean = "20 ms" } under [workers] in the recipe, '
                "or give it a --calibration"
            )

    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> CrewRun:
        """Do one run with all workers; ``on_figures`` is called a few times a second.

        Raises:
            KeyboardInterrupt: Ctrl-C came; the run's figures up to then are in its folder.
        """

        def look(progress: Progress) -> None:
            on_figures(
                RunFigures(
                    policy=assignment.policy,
                    steps=progress.steps,
                    samples=progress.samples,
                    elapsed_s=progress.virtual_s,
                    loss=progress.loss,
                    staleness=progress.mean_staleness,
                )
            )

        def work(job: VirtualJob) -> dict[str, Any] | None:
            rank = job.place.rank
            if self._costs is not None and self._recipe.workers.step_time_of(rank) is None:
                steps = Constant(mean_s=self._costs.gradient_s)
                job.pacer = Pacer(step_time=steps, seed=assignment.seed, worker=rank, clock=job.clock)
            return train(self._recipe, self._task, assignment, job=job, began_s=0.0)

        simulation = simulate(
            work,
            num_workers=self._recipe.workers.count,
            cluster=self._cluster,
            costs=self._costs,
            faults=self._recipe.workers.faults_in_order(seed=assignment.seed),
            seed=assignment.seed,
            on_progress=look,
        )
        problems: dict[int, str] = {}
        for rank, outcome in simulation.outcomes.items():
            if isinstance(outcome.error, KeyboardInterrupt):
                raise outcome.error
            if isinstance(outcome.error, (PlesioError, RuntimeError)):
                problems[rank] = f"{type(outcome.error).__name__}: {outcome.error}"
            elif outcome.error is not None:
                raise outcome.error
        return CrewRun(simulation.outcomes[0].value, problems)

    def close(self) -> None:
        """Nothing is left of a run."""
