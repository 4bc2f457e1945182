"""The workers of a comparison's script: new ones for each run, in processes as `plesio run` starts them, or virtual."""

import contextlib
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from plesio.bench.assignment import Assignment, checkpoint_variables
from plesio.bench.recipe import Recipe
from plesio.bench.script_run import ScriptEnding, ScriptRun, compiled
from plesio.bench.script_worker import front_of
from plesio.bench.setting import OUTPUT_NAME
from plesio.bench.simulate import ScriptStatusError, VirtualScript
from plesio.bench.virtual_pool import figures_of
from plesio.core.errors import ConfigError, PlesioError
from plesio.core.last_words import brief_error
from plesio.core.results import RunResult, read_results
from plesio.cost.calibration import Calibration
from plesio.protocol.figures import RunFigures
from plesio.runtime.launcher import host_job
from plesio.runtime.observer import Observer
from plesio.runtime.site import THIS_HOST, Site
from plesio.runtime.supervisor import JobOutcome
from plesio.runtime.worker.job_handle import Chosen
from plesio.runtime.worker_commands import Program
from plesio.runtime.worker_output import Outlet

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

LOOK_S = 0.1
"""How long figures are waited for."""


class ScriptPool:
    """Does a comparison's runs of a script in processes; what they print is in a file of the run's folder.

    Raises:
        ConfigError: There is no such script.
    """

    def __init__(self, recipe: Recipe, *, site: Site = THIS_HOST) -> None:
        compiled(recipe.task.script)
        self._recipe = recipe
        self._site = site

    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> ScriptEnding:
        """Do one run.

        Raises:
            KeyboardInterrupt: A signal stopped it.

        Raises:
            KeyboardInterrupt: A signal stopped it.
        """
        run = ScriptRun.of(self._recipe, assignment)
        _empty(run)
        observers: list[Observer] = []

        def look(store: "TCPStore", secret: str) -> None:
            with self._site.here():  # it connects when there is a server
                if not observers:
                    observers.append(Observer.of_first_job(store, secret=secret))
                figures = observers[0].figures(timeout_s=LOOK_S)
            if figures is not None:
                on_figures(figures)

        environment = {**os.environ, **checkpoint_variables(self._recipe, assignment)}
        program = Program(run.script, run.arguments, environment, front=front_of(run))
        try:
            with (run.folder / OUTPUT_NAME).open("wb") as output:
                outcome, _ = host_job(
                    program,
                    num_workers=run.workers.count,
                    site=self._site,
                    outlet=Outlet(output, output),
                    look=look,
                )
        finally:
            for observer in observers:
                observer.close()
        if outcome.stopped:
            raise KeyboardInterrupt
        return _ending(outcome, run)

    def close(self) -> None:
        """Do nothing: nothing is left of a run."""


def _ending(outcome: JobOutcome, run: ScriptRun) -> ScriptEnding:
    own, left, refused = dict[int, str](), dict[int, str](), dict[int, str]()
    for ending in outcome.endings:
        if ending.status:
            problem = ending.error or str(ending).removeprefix(f"rank {ending.rank} ")
            kind = refused if ending.mistake else own if ending.error or ending.returncode < 0 else left
            kind[ending.rank] = problem
    results = run.folder / "results.json"
    told = min((ending for ending in outcome.endings if ending.chosen), key=lambda one: one.rank, default=None)
    return ScriptEnding(
        result=read_results(results)[-1] if results.exists() else None,
        own=own,
        left=left,
        refused=refused,
        failed=bool(outcome.status),
        chosen=[] if told is None else [Chosen(**chosen) for chosen in told.chosen],
    )


class VirtualScriptPool:
    """Does a comparison's runs of a script in virtual time, in this process.

    Raises:
        ConfigError: There is no such script, the duration of steps is not given, or a testbed is needed for what
            befalls the workers.
    """

    def __init__(self, recipe: Recipe, *, calibration: Calibration | None = None, on_testbed: bool = False) -> None:
        compiled(recipe.task.script)
        self._recipe, self._calibration, self._on_testbed = recipe, calibration, on_testbed
        workers = recipe.workers
        workers.faults_in_order(seed=0)  # can they be here?
        if calibration is not None and workers.cluster is None:
            calibration.check_workers(workers.count)
        if calibration is None and any(workers.step_time_of(rank) is None for rank in range(workers.count)):
            raise ConfigError('the virtual world must know how long a step takes: add --step-time "20 ms"')

    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> ScriptEnding:
        """Do one run.

        Raises:
            KeyboardInterrupt: Ctrl-C came.

        Raises:
            KeyboardInterrupt: Ctrl-C came.
        """
        run = ScriptRun.of(self._recipe, assignment)
        _empty(run)
        chosen: list[Chosen] = []

        script = VirtualScript(
            path=run.script,
            arguments=run.arguments,
            workers=run.workers,
            calibration=self._calibration,
            on_testbed=self._on_testbed,
            name=run.name,
            own_checkpoints=False,
            variables=checkpoint_variables(self._recipe, assignment),
        )
        errors, runs = dict[int, BaseException](), tuple[RunResult, ...]()
        with _output_in(run.folder / OUTPUT_NAME):
            try:
                simulation = script.simulated(
                    run.policy,
                    seed=run.seed,
                    trace=run.folder,
                    on_progress=lambda progress: on_figures(figures_of(progress, policy=run.policy)),
                    on_chosen=chosen.append,
                )
                errors = {rank: one.error for rank, one in simulation.outcomes.items() if one.error is not None}
                runs = simulation.runs
            except Exception as error:  # workers that wait for each other, or the error that made them
                errors = {0: error}
            for one in errors.values():
                if not isinstance(one, ScriptStatusError):
                    traceback.print_exception(one)
        interruption = next((error for error in errors.values() if isinstance(error, KeyboardInterrupt)), None)
        if interruption is not None:
            raise interruption
        result = runs[-1] if runs else None
        problems = {
            rank: brief_error(error, script=str(run.script)).removeprefix(f"{run.script} ")
            for rank, error in errors.items()
        }
        done_without = () if result is None or result.status != "finished" else result.lost_workers
        own = {rank: text for rank, text in problems.items() if not isinstance(errors[rank], PlesioError)}
        left = {rank: text for rank, text in problems.items() if isinstance(errors[rank], ScriptStatusError)}
        return ScriptEnding(
            result=result,
            own=own,
            left=left,
            refused={rank: text for rank, text in problems.items() if rank not in own | left},
            failed=not errors.keys() <= {*done_without},
            chosen=chosen,
        )

    def close(self) -> None:
        """Do nothing: nothing is left of a run."""


@contextlib.contextmanager
def _output_in(path: Path) -> Iterator[None]:
    """Have what this process prints in a file."""
    with path.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def _empty(run: ScriptRun) -> None:
    """Make the run's folder, without what an earlier attempt has left there."""
    shutil.rmtree(run.folder, ignore_errors=True)
    run.folder.mkdir(parents=True)
