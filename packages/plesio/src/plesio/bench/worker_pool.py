"""The worker processes of a comparison: started once, used for every run, replaced when one is lost.

The comparison looks at the runs through an `Observer`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plesio.bench.assignment import Assignment
from plesio.bench.process_pool import FOR_TRAINING, ProcessPool
from plesio.bench.recipe import Recipe
from plesio.bench.trainer import serve_runs
from plesio.protocol.figures import RunFigures
from plesio.runtime.observer import Observer
from plesio.runtime.site import THIS_HOST, Site

LOOK_S = 0.25
"""How often the run's figures are asked for."""


@dataclass(frozen=True, slots=True)
class PoolRun:
    """How a run ended: the result if a worker gave one, what went wrong, by rank, and what else is to be known."""

    result: dict[str, Any] | None
    problems: dict[int, str]
    notes: tuple[str, ...] = ()


class WorkerPool:
    """Starts the recipe's workers and waits until they are ready.

    Raises:
        ConfigError: The recipe's task cannot be trained.
    """

    def __init__(self, recipe: Recipe, *, site: Site = THIS_HOST) -> None:
        self._site = site
        self._processes = ProcessPool(recipe.workers.count, serve_runs, recipe, preload=FOR_TRAINING, site=site)
        assert self._processes.store is not None, "just started"
        self._observer = Observer.of_first_job(self._processes.store, secret=self._processes.secret)
        self.usable = True
        """False when a worker was lost or failed; a new pool is needed then."""
        try:
            self.samples_per_epoch = int(self._processes.await_ready()[0])
            """Samples of the task's training set."""
        except BaseException:
            self.close()
            raise

    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> PoolRun:
        result: dict[str, Any] | None = None
        problems: dict[int, str] = {}

        def look() -> None:
            with self._site.here():  # it connects when there is a server
                figures = self._observer.figures(timeout_s=LOOK_S)
            if figures is not None:
                on_figures(figures)

        for rank, kind, value in self._processes.ask(assignment, meanwhile=look, every_s=LOOK_S):
            if kind != "done":
                problems[rank] = f"the process ended with {value}" if kind == "ended" else value
            elif value is not None:
                result = value
        self._observer.next_run()
        self.usable = not problems
        return PoolRun(result, problems)

    def kill(self, rank: int) -> None:
        self._processes.kill(rank)

    def close(self) -> None:
        self._observer.close()
        self._processes.close()
