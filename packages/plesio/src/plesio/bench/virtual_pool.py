"""The workers of a comparison in the virtual world: they live as long as a run."""

from collections.abc import Callable
from typing import Any

from plesio.bench.assignment import Assignment
from plesio.bench.grid_trainer import check_for_grids
from plesio.bench.recipe import Recipe
from plesio.bench.recipe_workers import WorkersSection
from plesio.bench.trainer import check_policies, recipe_task, train
from plesio.bench.worker_pool import PoolRun
from plesio.core.errors import ConfigError, PlesioError
from plesio.cost.calibration import Calibration
from plesio.cost.cluster import Cluster
from plesio.cost.host_costs import HostCosts
from plesio.cost.step_time import Constant
from plesio.protocol.figures import RunFigures
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worlds.virtual import SimulationProgress, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.tasks.check import check_task
from plesio.testbed.host import on_hosts_of_testbed


def machine_of(
    workers: WorkersSection, calibration: Calibration | None, *, batch_size: int, on_testbed: bool = False
) -> tuple[Cluster, HostCosts]:
    """Return the virtual workers' cluster, and the costs of training on its processors.

    Args:
        workers: Workers; without a cluster they are on the calibrated machine, or on one host with a core for each.
        calibration: Measurements; None is a typical machine.
        batch_size: Samples in a worker's step.
        on_testbed: Whether the cluster is a testbed on the calibrated machine.
    """
    cluster = workers.cluster
    if cluster is not None and on_testbed:
        cluster = on_hosts_of_testbed(cluster)
    if calibration is None:
        return cluster or Cluster.one_host(workers.count), HostCosts()
    costs = calibration.costs(batch_size, where="here" if cluster is None else "testbed" if on_testbed else "apart")
    return cluster or calibration.cluster(workers.count), costs


def pacer_of_machine(job: VirtualJob, costs: HostCosts) -> Pacer:
    """Return a pacer whose steps take as long as their gradient was measured to take."""
    return Pacer(step_time=Constant(mean_s=costs.gradient_s), seed=0, worker=job.place.rank, clock=job.clock)


def figures_of(progress: SimulationProgress, *, policy: str) -> RunFigures:
    """Return the figures of a run in virtual time, up to now."""
    return RunFigures(
        policy=policy,
        steps=progress.steps,
        samples=progress.samples,
        elapsed_s=progress.virtual_s,
        loss=progress.loss,
        staleness=progress.mean_staleness,
    )


class VirtualPool:
    """Does a comparison's runs in virtual time, in this process.

    Args:
        recipe: Task of the training, and its cluster; without a cluster it is the calibrated machine, or one host with
            a core for each worker. It sets how long steps take.

    Raises:
        ConfigError: The task cannot be trained, the duration of steps is not given, the cluster is too small, or a
            testbed is needed for what befalls the workers.
    """

    def __init__(self, recipe: Recipe, *, calibration: Calibration | None = None, on_testbed: bool = False) -> None:
        self.usable = True
        self._recipe = recipe
        self._task = recipe_task(recipe)
        check_task(self._task)
        check_for_grids(recipe, self._task)
        check_policies(recipe, self._task)
        self.samples_per_epoch = len(self._task.train_set())  # type: ignore[arg-type]
        workers = recipe.workers
        workers.faults_in_order(seed=0)  # can they be here?
        if calibration is not None:
            model, _ = self._task.build(0)
            num_parameters = sum(parameter.numel() for parameter in model.parameters())
            calibration.check_task(self._task.name, num_parameters=num_parameters)
            if workers.cluster is None:
                calibration.check_workers(workers.count)
        self._cluster, self._costs = machine_of(
            workers, calibration, batch_size=self._task.batch_size, on_testbed=on_testbed
        )
        if calibration is None and any(workers.step_time_of(rank) is None for rank in range(workers.count)):
            raise ConfigError(
                "the virtual world must know how long a step takes: write "
                'step_time = { kind = "constant", mean = "20 ms" } under [workers] in the recipe, '
                "or give it a --calibration"
            )

    def run(
        self,
        assignment: Assignment,
        *,
        on_figures: Callable[[RunFigures], None],
        stop: Callable[[SimulationProgress], bool] | None = None,
    ) -> PoolRun:
        """Do one run with all workers; ``on_figures`` is called a few times a second.

        ``stop`` is asked as often; a run that it ends has no result.

        Raises:
            KeyboardInterrupt: Ctrl-C came; the run's figures up to then are in its folder.

        Raises:
            KeyboardInterrupt: Ctrl-C came; the run's figures up to then are in its folder.
        """

        def work(job: VirtualJob) -> dict[str, Any] | None:
            paced = self._recipe.workers.step_time_of(job.place.rank) is not None
            pacer = None if paced else pacer_of_machine(job, self._costs)
            return train(self._recipe, self._task, assignment, job=job, began_s=0.0, pacer=pacer)

        simulation = simulate(
            work,
            num_workers=self._recipe.workers.count,
            cluster=self._cluster,
            costs=self._costs,
            faults=self._recipe.workers.faults_in_order(seed=assignment.seed),
            seed=assignment.seed,
            on_progress=lambda progress: on_figures(figures_of(progress, policy=assignment.policy)),
            stop=stop,
        )
        if simulation.stopped:
            return PoolRun(None, {})
        problems: dict[int, str] = {}
        for rank, outcome in simulation.outcomes.items():
            if isinstance(outcome.error, KeyboardInterrupt):
                raise outcome.error
            # expected ways to fail are results; all else is a bug of ours
            if isinstance(outcome.error, (PlesioError, RuntimeError)):
                problems[rank] = f"{type(outcome.error).__name__}: {outcome.error}"
            elif outcome.error is not None:
                raise outcome.error
        # one worker has the result, whichever it is
        values = [outcome.value for _, outcome in sorted(simulation.outcomes.items())]
        notes = self._recipe.workers.missed(end_s=simulation.virtual_s)
        return PoolRun(next((value for value in values if value is not None), None), problems, notes)

    def close(self) -> None:
        """Do nothing: nothing is left of a run."""
