"""`simulate`: run a worker's code on N virtual workers."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

import torch

from plesio.core.arguments import checked
from plesio.core.errors import PlesioError, WorkerLostError
from plesio.core.results import RunResult
from plesio.core.within import AT_LEAST_0, AT_LEAST_1
from plesio.cost.cluster import Cluster
from plesio.cost.faults import Fault, faults_in_order
from plesio.cost.host_costs import HostCosts
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.job_handle import Ambient, within
from plesio.runtime.worlds.virtual.deployment import Deployment
from plesio.runtime.worlds.virtual.job import VirtualJob
from plesio.runtime.worlds.virtual.scheduler import StallError, ThreadTurn, WorkerGone

T = TypeVar("T")

LOOK_S = 0.25
"""Real seconds between two looks at a simulation's progress."""

_SEED_STRIDE = 1_000_003


@dataclass(slots=True)
class WorkerOutcome(Generic[T]):
    """How one worker ended: what its code returned, or raised; neither if it was lost."""

    value: T | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation(Generic[T]):
    """The result of a simulation.

    Attributes:
        outcomes: Outcome of each rank.
        runs: The results of the sessions, in their order, and then those of grids.
        virtual_s: Virtual seconds from beginning to end.
        num_events: Events of the kernel.
        num_switches: Turns that went from one thread to another.
        cross_rack_bytes: Bytes that went from rack to rack.
        stopped: True if it was stopped before its workers were done.
    """

    outcomes: dict[int, WorkerOutcome[T]]
    runs: tuple[RunResult, ...]
    virtual_s: float
    num_events: int
    num_switches: int
    cross_rack_bytes: int
    stopped: bool = False

    def values(self) -> list[T | None]:
        """Return the workers' values by rank; raise what the first of them raised instead, a loss by others last."""
        errors = [error for rank in sorted(self.outcomes) if (error := self.outcomes[rank].error) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, WorkerLostError)):
            raise error
        return [self.outcomes[rank].value for rank in sorted(self.outcomes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationProgress:
    """How far a simulation is: virtual seconds, steps and samples over all workers, the latest loss (NaN: none)."""

    virtual_s: float
    steps: int
    samples: int
    loss: float
    mean_staleness: float


@dataclass(slots=True)
class _Stage(Generic[T]):
    """Workers come and go on it."""

    deployment: Deployment
    main: Callable[[VirtualJob], T]
    seed: int
    num_entered: int = 0
    outcomes: dict[int, WorkerOutcome[T]] = field(default_factory=dict)
    jobs: dict[int, tuple[VirtualJob, ThreadTurn]] = field(default_factory=dict)

    def await_faults(self, faults: Iterator[Fault]) -> None:
        """Have the next fault happen when its time has come, and then wait for the one after it."""
        fault = next(faults, None)
        if fault is None:
            return
        kernel = self.deployment.kernel

        def strike() -> None:
            if fault.kind == "join":
                self.enter()
            else:
                self.lose(fault.worker)
            self.await_faults(faults)

        kernel.at(max(fault.at_s, kernel.now_s), strike)

    def enter(self) -> None:
        rank, self.num_entered = self.num_entered, self.num_entered + 1
        workers = self.deployment.num_workers
        per_host = self.deployment.cluster.workers_per_host
        place = WorkerPlace(
            rank=rank,
            num_workers=workers,
            local_rank=rank % per_host,
            local_workers=min(per_host, workers),
            address="virtual",
            port=0,
            agent_hosts_store=True,
        )
        outcome = self.outcomes[rank] = WorkerOutcome[T]()

        def body() -> None:
            job, turn = self.jobs[rank]
            deployment = self.deployment
            around = Ambient(
                job=job,
                on_meter=lambda meter: deployment.meters.update({turn: meter}),
                on_ended=deployment.results.append,
            )
            try:
                with within(around):
                    outcome.value = self.main(job)
            except WorkerGone:
                pass  # as a killed process: it says nothing any more
            except BaseException as error:  # it is the caller's to raise, on the thread that can
                outcome.error = error
            finally:
                job.close()

        turn = self.deployment.scheduler.spawn(f"worker {rank}", body, seed=self.seed * _SEED_STRIDE + rank)
        self.jobs[rank] = (VirtualJob(self.deployment, place, turn), turn)

    def lose(self, rank: int) -> None:
        if rank in self.jobs:
            job, turn = self.jobs[rank]
            job.die()
            self.deployment.scheduler.end(turn)


@checked
def simulate(
    main: Callable[[VirtualJob], T],
    *,
    num_workers: Annotated[int, AT_LEAST_1],
    cluster: Cluster,
    costs: HostCosts | None = None,
    faults: Iterable[Fault] | None = None,
    seed: Annotated[int, AT_LEAST_0] = 0,
    on_progress: Callable[[SimulationProgress], None] | None = None,
    stop: Callable[[SimulationProgress], bool] | None = None,
) -> Simulation[T]:
    """Run ``main`` on virtual workers; `plesio.join` in it finds its job by itself.

    Two simulations with equal arguments give equal results, to the bit.

    Args:
        main: One worker's code, called in a thread of its own for each with its job.
        num_workers: Workers at the start.
        cluster: Hosts and links.
        costs: Processor time of exchanges; None for a typical machine's.
        faults: Losses and joins of workers in the order of time; may be without end. A joining worker has the next
            free rank. None is what befalls the cluster's hosts.
        seed: The seed of the workers' random streams.
        on_progress: Called a few times a second (of real time), by any thread, and once at the end.
        stop: Asked as often; True interrupts the workers as Ctrl-C does, each at its next turn.

    Raises:
        ConfigError: The cluster has no room for so many workers.
        StallError: The workers wait for each other for ever.
    """
    deployment = Deployment(cluster, num_workers, costs or HostCosts())
    stage = _Stage(deployment, main, seed)
    for _ in range(num_workers):
        stage.enter()
    if faults is None:
        faults = faults_in_order(num_workers, hosts=cluster.inconstant_hosts(num_workers), seed=seed)
    stage.await_faults(iter(faults))
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums are then added up in the same order on every machine
    look = _Look(deployment, on_progress, stop)
    try:
        deployment.scheduler.run(on_turn=None if on_progress is None and stop is None else look)
    except StallError as stall:
        raise _first_error(stage.outcomes) or stall from stall
    finally:
        torch.set_num_threads(num_threads)
    if on_progress is not None:
        on_progress(_progress(deployment))
    return Simulation(
        outcomes=stage.outcomes,
        runs=(*deployment.server(0).proper.results, *deployment.results),
        virtual_s=deployment.kernel.now_s,
        num_events=deployment.kernel.num_events,
        num_switches=deployment.scheduler.num_switches,
        cross_rack_bytes=deployment.fabric.cross_rack_bytes,
        stopped=look.stopped,
    )


class _Look:
    """Looks at a simulation, at its turns, but not at all of them."""

    def __init__(
        self,
        deployment: Deployment,
        on_progress: Callable[[SimulationProgress], None] | None,
        stop: Callable[[SimulationProgress], bool] | None,
    ) -> None:
        self._deployment = deployment
        self._on_progress = on_progress
        self._stop = stop
        self._next_s = 0.0
        self.stopped = False

    def __call__(self) -> None:
        if (now_s := time.monotonic()) < self._next_s:
            return
        self._next_s = now_s + LOOK_S
        progress = _progress(self._deployment)
        if self._on_progress is not None:
            self._on_progress(progress)
        if self._stop is not None and not self.stopped and self._stop(progress):
            self.stopped = True
            self._deployment.scheduler.interrupt()


def _first_error(outcomes: dict[int, WorkerOutcome[T]]) -> BaseException | None:
    """Find the error that a worker raised by itself: the others wait for it in vain."""
    errors = [outcome.error for outcome in outcomes.values()]
    return next(
        (error for error in errors if error is not None and not isinstance(error, (StallError, PlesioError))), None
    )


def _progress(deployment: Deployment) -> SimulationProgress:
    totals = [meter.totals for meter in deployment.meters.values()]
    losses = [meter.latest for meter in deployment.meters.values() if meter.latest is not None]
    figures = deployment.server(0).proper.run.progress()
    return SimulationProgress(
        virtual_s=deployment.kernel.now_s,
        steps=sum(total.steps for total in totals),
        samples=sum(total.samples for total in totals),
        loss=max(losses)[2] if losses else float("nan"),
        mean_staleness=0.0 if figures is None else figures.staleness,
    )
