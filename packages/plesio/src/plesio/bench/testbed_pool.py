"""The workers of a comparison on hosts of their own: real processes, in the network namespaces of a testbed."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from plesio.bench.assignment import Assignment
from plesio.bench.recipe import Recipe
from plesio.bench.recipe_workers import FaultSection
from plesio.bench.script_pool import ScriptPool
from plesio.bench.script_run import ScriptEnding
from plesio.bench.worker_pool import PoolRun, WorkerPool
from plesio.core.errors import ConfigError
from plesio.cost.cluster import Cluster
from plesio.cost.link_changes import LinkChange
from plesio.protocol.figures import RunFigures
from plesio.runtime.site import Site
from plesio.testbed.testbed import Testbed

Done = TypeVar("Done")
Done_co = TypeVar("Done_co", covariant=True)


def check_for_testbed(recipe: Recipe) -> Cluster:
    """Return the recipe's cluster, if a testbed can do all that the recipe asks for.

    Raises:
        ConfigError: It has no cluster, or what befalls it only the virtual world can do.
    """
    cluster = recipe.workers.cluster
    if cluster is None:
        raise ConfigError("a testbed needs a cluster: add --cluster 4x1gbe, or cluster = ... under [workers]")
    if any(fault.kind == "join" for fault in recipe.workers.faults) or recipe.workers.fails_by_chance:
        raise ConfigError("workers that join or fail by chance are for the virtual world: --world virtual")
    if recipe.task.is_script and any(fault.kind == "lose" for fault in recipe.workers.faults):
        raise ConfigError(f"workers of the script {recipe.task.script} are lost in the virtual world: --world virtual")
    if any(change.link == "local" or change.latency_s is not None for change in cluster.changes if change.at_s > 0):
        raise ConfigError(
            f"cluster {cluster.name}: a testbed changes the bandwidth of nic and uplink while a run goes on, and no "
            "latency; use --world virtual"
        )
    return cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class _Happening:
    """Something that is done to a run.

    Attributes:
        at_s: When, in seconds since the run began.
        at_step: Or once its workers have done so many steps together.
        after_s: So much later.
    """

    at_s: float | None = None
    at_step: int | None = None
    after_s: float = 0.0
    happen: Callable[[], None]


class _Happenings:
    """Has all that is planned for a run happen; what has not happened when the context ends never does."""

    def __init__(self, planned: Sequence[_Happening]) -> None:
        self._by_time = [one for one in planned if one.at_s is not None]
        self._by_step = [one for one in planned if one.at_s is None]
        self._timers: list[threading.Timer] = []

    def look(self, figures: RunFigures) -> None:
        """Act on the figures of the run; called a few times a second."""
        by_time, self._by_time = self._by_time, []
        for one in by_time:
            assert one.at_s is not None, "sorted so"
            self._after(one.at_s + one.after_s - figures.elapsed_s, one)
        due = [one for one in self._by_step if one.at_step is not None and figures.steps >= one.at_step]
        for one in due:
            self._by_step.remove(one)
            self._after(one.after_s, one)

    def _after(self, wait_s: float, one: _Happening) -> None:
        timer = threading.Timer(max(0.0, wait_s), one.happen)
        self._timers.append(timer)
        timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()


class _HostWorkers(Protocol[Done_co]):
    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> Done_co: ...

    def close(self) -> None: ...


class _OnHosts(Generic[Done]):
    """Makes the recipe's hosts, and starts its workers there.

    Whatever the recipe plans for a moment of the run happens then: a worker that is lost is killed, one that is cut off
    has its host's interface carry nothing, and a link that changes is changed until the run is over.
    """

    def __init__(
        self,
        recipe: Recipe,
        hire: Callable[[Site], _HostWorkers[Done]],
        *,
        kill: Callable[[int], None] | None = None,
    ) -> None:
        self._recipe = recipe
        self._cluster = check_for_testbed(recipe)
        self._kill = kill
        self.testbed = Testbed.of(self._cluster, num_workers=recipe.workers.count)
        try:
            self._workers = hire(self.testbed.record)
        except BaseException:
            self.testbed.close()
            raise

    def run(self, assignment: Assignment, *, on_figures: Callable[[RunFigures], None]) -> Done:
        with self._plan() as plan:

            def on_looked(figures: RunFigures) -> None:
                plan.look(figures)
                on_figures(figures)

            return self._workers.run(assignment, on_figures=on_looked)

    @contextmanager
    def _plan(self) -> Iterator[_Happenings]:
        """Carry out each planned happening at its moment; afterwards restore all links."""
        changes = [change for change in self._cluster.changes if change.at_s > 0]
        faults = self._recipe.workers.faults
        planned = [_Happening(at_s=change.at_s, happen=partial(self._change, change)) for change in changes]
        planned += [one for fault in faults for one in self._happenings(fault)]
        try:
            with _Happenings(planned) as plan:
                yield plan
        finally:
            for change in changes:
                self._change(change, back=True)
            for fault in faults:
                if fault.kind == "cut":
                    self.testbed.network.cut(self._host_of(fault), heal=True)

    def _happenings(self, fault: FaultSection) -> Iterator[_Happening]:
        if fault.kind == "lose":
            assert fault.worker is not None, "checked"
            assert self._kill is not None, "checked"
            yield _Happening(at_s=fault.at, at_step=fault.at_step, happen=partial(self._kill, fault.worker))
            return
        host = self._host_of(fault)
        cut = partial(self.testbed.network.cut, host)
        yield _Happening(at_s=fault.at, at_step=fault.at_step, happen=cut)
        if fault.lasting is not None:
            heal = partial(self.testbed.network.cut, host, heal=True)
            yield _Happening(at_s=fault.at, at_step=fault.at_step, after_s=fault.lasting, happen=heal)

    def _host_of(self, fault: FaultSection) -> int:
        assert fault.worker is not None, "checked"
        return self._cluster.host_of(fault.worker)

    def _change(self, change: LinkChange, *, back: bool = False) -> None:
        """Change links, or give them back what they have at the beginning."""
        network = self.testbed.network
        wires = network.nics if change.link == "nic" else network.uplinks
        for number, wire in enumerate(wires):
            if change.befalls(change.link, number):
                assert change.bytes_per_s is not None, "checked"
                network.set_rate(wire, wire.link.bytes_per_s if back else change.bytes_per_s)

    def close(self) -> None:
        try:
            self._workers.close()
        finally:
            self.testbed.close()


class TestbedPool(_OnHosts[PoolRun]):
    """Makes the recipe's hosts, and starts workers for its task there.

    Raises:
        ConfigError: The recipe's task cannot be trained, or there can be no such hosts here.
        PlesioError: They cannot be made.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, self._hire, kill=lambda rank: self._pool.kill(rank))
        self.samples_per_epoch = self._pool.samples_per_epoch

    def _hire(self, site: Site) -> WorkerPool:
        self._pool = WorkerPool(self._recipe, site=site)
        return self._pool

    @property
    def usable(self) -> bool:
        return self._pool.usable


class TestbedScriptPool(_OnHosts[ScriptEnding]):
    """Makes the recipe's hosts, and runs its script there.

    Raises:
        ConfigError: There is no such script, or there can be no such hosts here.
        PlesioError: They cannot be made.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe, lambda site: ScriptPool(recipe, site=site))
