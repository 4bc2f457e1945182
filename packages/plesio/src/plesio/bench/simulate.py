"""One run on virtual workers: of a task, or of a user's own script."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from plesio.bench.recipe_workers import WorkersSection
from plesio.bench.script_run import as_main, compiled, left_open, main_of
from plesio.bench.virtual_pool import machine_of, pacer_of_machine
from plesio.core.errors import ConfigError, TransportError, WorkerLostError
from plesio.core.results import RunResult
from plesio.cost.calibration import Calibration
from plesio.runtime.worker.job_handle import Chosen, ambient, within
from plesio.runtime.worlds.virtual import Simulation, SimulationProgress, simulate
from plesio.runtime.worlds.virtual.job import VirtualJob


class ScriptStatusError(ConfigError):
    """A script has ended by itself, with a status that is a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualScript:
    """A script that each of the virtual workers runs; its ``plesio.join`` finds the virtual job by itself.

    Attributes:
        arguments: Its ``sys.argv``, less the first.
        workers: How many, how fast, where, and what befalls them.
        calibration: Measurements with batches like the script's; None is a typical machine.
        on_testbed: Whether the workers' cluster is a testbed on the calibrated machine.
        name: Its task's name in the results; None leaves it to the script.
        own_checkpoints: Whether its own folder for checkpoints holds.
        variables: Environment variables that it has besides this process's.
    """

    path: Path
    arguments: Sequence[str]
    workers: WorkersSection
    calibration: Calibration | None = None
    on_testbed: bool = False
    name: str | None = None
    own_checkpoints: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        policy: str,
        *,
        seed: int,
        trace: Path | None,
        on_progress: Callable[[SimulationProgress], None] | None = None,
        on_join: Callable[[nn.Module, Optimizer], None] | None = None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        stop: Callable[[SimulationProgress], bool] | None = None,
        chosen: list[Chosen] | None = None,
    ) -> list[RunResult]:
        """Run it (`simulated`), and return the results of its sessions in their order.

        The script's own choices for each session are added to ``chosen``.

        The last has failed if its policy cannot do without a worker that was lost, is interrupted if Ctrl-C came or
        ``stop`` said so, and names newcomers that came when it was over.

        Raises:
            ConfigError: There is no such script, it uses torch.distributed itself, or it never called ``plesio.join``
                or ``plesio.grid``.
        """
        chosen = [] if chosen is None else chosen
        simulation = self.simulated(
            policy,
            seed=seed,
            trace=trace,
            on_progress=on_progress,
            on_join=on_join,
            on_chosen=chosen.append,
            around=around,
            stop=stop,
        )
        # raises the script's own error, if there was one
        if not simulation.runs:
            simulation.values()
            raise ConfigError(f"{self.path} {left_open(bool(chosen))}")
        return _runs_of(simulation, num_workers=self.workers.count)

    def simulated(
        self,
        policy: str,
        *,
        seed: int,
        trace: Path | None,
        on_progress: Callable[[SimulationProgress], None] | None = None,
        on_join: Callable[[nn.Module, Optimizer], None] | None = None,
        on_chosen: Callable[[Chosen], None] = lambda chosen: None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        stop: Callable[[SimulationProgress], bool] | None = None,
    ) -> Simulation[None]:
        """Run it, each worker with globals of its own.

        The script's arguments to ``join`` hold, except for the policy and the trace folder, which are these.

        Args:
            policy: The workers' consistency policy.
            seed: Seed of the workers' random streams, the order of samples, step times and what befalls the workers.
            trace: Folder for traces and results.
            on_progress: Takes the progress.
            on_join: Told of the model and the optimizer of each session.
            on_chosen: Told of the first worker's own choices for each session.
            around: Makes a context that the first worker runs the script in.
            stop: Asked a few times a second whether to interrupt it.

        Raises:
            ConfigError: There is no such script.
        """
        script, workers, code = self.path, self.workers, compiled(self.path)
        batch_size = 1 if self.calibration is None else self.calibration.batch_size
        cluster, costs = machine_of(workers, self.calibration, batch_size=batch_size, on_testbed=self.on_testbed)

        refusals: list[ScriptStatusError] = []  # of the worker that begins first, before the others have

        def work(job: VirtualJob) -> None:
            if refusals and job.place.rank < workers.count:
                raise refusals[0]
            pacer = workers.pacer(job.place.rank, seed=seed, clock=job.clock, began_s=0.0)
            if pacer is None:
                pacer = pacer_of_machine(job, costs)
            first, within_job = job.place.rank == 0, ambient()
            assert within_job is not None, "a simulation has one"
            surroundings = replace(
                within_job,
                policy=policy,
                trace=trace,
                name=self.name,
                seed=seed,
                own_checkpoints=self.own_checkpoints,
                pacer=pacer,
                on_join=on_join,
            )
            if first:
                surroundings = replace(surroundings, on_chosen=on_chosen)
            try:
                with within(surroundings), around() if first else nullcontext():
                    _run_main(code, script)
            except ScriptStatusError as error:
                refusals.append(error)
                raise

        with as_main(script, self.arguments), _in_environment(self.variables), _without_process_groups():
            simulation = simulate(
                work,
                num_workers=workers.count,
                cluster=cluster,
                costs=costs,
                faults=workers.faults_in_order(seed=seed),
                seed=seed,
                on_progress=on_progress,
                stop=stop,
            )
        missed = workers.missed(end_s=simulation.virtual_s)
        runs = [replace(run, fallbacks=(*run.fallbacks, *missed)) for run in simulation.runs[-1:]]
        return replace(simulation, runs=(*simulation.runs[:-1], *runs))


def _run_main(code: CodeType, script: Path) -> None:
    """Run the script as a ``__main__`` of its own.

    Raises:
        ScriptStatusError: It ended with a status that is a failure; `sys.exit()` ends one worker alone.
    """
    try:
        exec(code, main_of(script).__dict__)
    except SystemExit as leave:
        status = leave.code or 0
        if not isinstance(status, int):  # Python prints it
            print(status, file=sys.stderr)
            status = 1
        if status:
            raise ScriptStatusError(f"{script} ended with status {status}") from None


def _runs_of(simulation: Simulation[None], *, num_workers: int) -> list[RunResult]:
    """Return its runs, or raise an error that is no Ctrl-C, no lost worker and no newcomer that came too late."""
    if any(isinstance(it.error, KeyboardInterrupt) for it in simulation.outcomes.values()):
        return [run if run.status == "finished" else _interrupted(run) for run in simulation.runs]
    too_late = {
        rank: f"worker {rank}: {type(it.error).__name__}: {it.error}"
        for rank, it in sorted(simulation.outcomes.items())
        if rank >= num_workers and isinstance(it.error, TransportError)
    }
    others = {rank: it for rank, it in simulation.outcomes.items() if rank not in too_late}
    if not any(isinstance(it.error, WorkerLostError) for it in others.values()):
        replace(simulation, outcomes=others).values()
    *earlier, last = simulation.runs
    return [*earlier, replace(last, fallbacks=(*last.fallbacks, *too_late.values()))]


def _interrupted(run: RunResult) -> RunResult:
    """Mark the run as interrupted, whichever error the interruption caused in its workers."""
    return replace(run, status="interrupted", error="interrupted")


@contextmanager
def _in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in this process's environment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _without_process_groups() -> Iterator[None]:
    """Refuse process groups: virtual workers are threads of one process, which cannot be several ranks."""
    real = dist.init_process_group

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError(
            "the script calls torch.distributed.init_process_group; virtual workers are in one process, so leave "
            "communication to the session (plesio.join), or run it with plesio run"
        )

    dist.init_process_group = refuse
    try:
        yield
    finally:
        dist.init_process_group = real
