"""The interface of a job towards its runs, in whichever world."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from plesio.core.clock import Clock
from plesio.core.errors import PlesioError
from plesio.core.results import RunResult
from plesio.runtime.coordinator.ledger import World
from plesio.runtime.transport.connection import ServerConnection
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.links import Links
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worker.pacing import Pacer
from plesio.runtime.worker.peer_watch import Watch
from plesio.runtime.worker.rack_choice import RackChoice, RackWish


class Board(Protocol):
    """Notes by key that all workers of a job can read, those that join it late among them; each stays as posted."""

    def post(self, key: str, text: str) -> None: ...

    def read(self, key: str) -> str | None:
        """Return the note of this key, or None if it is not there."""
        ...

    def await_any(self, keys: Sequence[str], *, timeout_s: float | None = None) -> str | None:
        """Wait for a note of one of these keys and return the first such key; None if there is none in time.

        It raises TransportError if the job has ended.
        """
        ...


class Pulse(Protocol):
    """The sign of life for the job's server, which also receives what this worker must know at once."""

    @property
    def failure(self) -> PlesioError | None:
        """Why the run cannot go on, if it cannot."""
        ...

    @property
    def generation(self) -> int:
        """Generation of the group that workers are to form, or have formed: the latest that was received."""
        ...

    @property
    def doubtful(self) -> bool:
        """True if this worker may have been counted lost: nothing has proved for a lease that it takes part."""
        ...

    @property
    def overslept(self) -> bool:
        """True if this process has slept for a lease, and nothing has proved since that it still takes part."""
        ...

    @property
    def server_lost(self) -> bool:
        """True if the server is gone, and the run goes on without it."""
        ...

    def begin(
        self,
        meter: Meter,
        *,
        abort: Callable[[], None],
        hold: Callable[[int], int],
        lost: Callable[[Sequence[int]], None],
        on_server_lost: Callable[[], None] | None,
    ) -> None:
        """Begin for a run.

        Args:
            meter: Its figures are reported.
            abort: Called if the run cannot go on, and if workers must form a new group.
            hold: Called if others wait to join, with the generation of the new group; returns the step that is begun.
            lost: Called with the workers that are lost.
            on_server_lost: Called once if the server is gone; None if the run cannot go on without it.
        """
        ...

    def wait_for_failure(self) -> PlesioError | None:
        """Return `failure`, waiting for it a lease at most: lost workers are known by then."""
        ...

    def quiet(self) -> None: ...


class JobStart(Protocol):
    """The start of a job: workers that have yet to come, and the program that started them."""

    def missing(self) -> list[int]:
        """List the workers that the job should begin with and that have not come."""
        ...

    def assure_all_come(self) -> None:
        """Raise TransportError if a worker that the run waits for at its start has ended."""
        ...

    def begun(self) -> None:
        """Take note that a run has begun: all workers are there and agree on it."""
        ...

    def finished_without(self, lost: Sequence[int]) -> None:
        """Take note that the others of these workers finished a run, for the program that started the job."""
        ...


class JobHandle(Protocol):
    """One worker's membership in a job."""

    place: WorkerPlace
    rack: int
    """The place of this worker: equal for workers whose ways to each other are short."""
    clock: Clock
    meet_s: float
    world: World

    @property
    def start(self) -> JobStart: ...

    @property
    def shares_gpus(self) -> bool:
        """True if two workers of `group` compute on one GPU, so that Gloo and not NCCL carries its collectives."""
        ...

    def servers(self, count: int, *, folder: Path | None, replicas: int = 1) -> Sequence[ServerConnection]:
        """Connect to the first ``count`` servers, which may write results to ``folder``; to ``replicas`` of each."""
        ...

    def heartbeat(self) -> Pulse: ...

    def group(self, device_type: str) -> Group:
        """Return the group of all ranks that the job began with; all of them call it."""
        ...

    def links(self, device: torch.device) -> Links:
        """Make the links for messages on a device to any worker of the group of `group` or `regroup`, by rank."""
        ...

    def board(self) -> Board:
        """Return the board with notes for all workers of the job, also those that have yet to join it."""
        ...

    def watch_peers(self, step_s: Callable[[], float]) -> Watch:
        """Begin to notice workers of `group` that have stopped, where no server does; all of them call it."""
        ...

    def meeting(self) -> str:
        """Return the address at which others could meet this worker to form a new group."""
        ...

    def regroup(
        self, members: Sequence[int], *, at: str, generation: int, device_type: str, called_off: Callable[[], bool]
    ) -> Group:
        """Form a new group in place of the present one; all its members call it: RuntimeError if not all of them come.

        They meet at the first one's `meeting`; ``called_off`` tells whether there is to be yet another group.
        """
        ...

    def settle_racks(self, wish: RackWish, *, device_type: str) -> RackChoice | None:
        """Agree on the racks before `rack` or `group` is used, all workers together; None: nothing to decide."""
        ...

    def abort_collectives(self) -> None:
        """Wake the threads that are blocked in a collective, with an error."""
        ...

    def bytes_sent(self) -> Counter[str]:
        """Count the bytes that this worker has sent in this job, by class of link."""
        ...

    def bytes_sent_since(self, before: Counter[str]) -> Callable[[], dict[str, int]]: ...

    def memory_bytes(self) -> int | None:
        """Return the memory that this worker needs by setting; None where it has a process of its own to measure."""
        ...

    def let_servers_go_on(self) -> None:
        """Let the servers that this worker started go on: the others of the run continue without it."""
        ...

    def next_run(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A script's own choices at ``plesio.join``, before others take their place.

    Attributes:
        seed: The run's, if the script gives one; 0 is none.
        torch_seed: The latest of torch's generator.
    """

    policy: str | None
    trace: str | None
    checkpoint: str | None
    seed: int
    torch_seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ambient:
    """The job that sessions of this thread join when they are given none, and what holds for them.

    Attributes:
        job: None is one that the environment describes.
        policy: Takes the place of a script's own, as ``trace`` does.
        name: Of the task, where the script gives none.
        seed: Of the run, where the script gives none.
        own_checkpoints: Whether a script's own folder for checkpoints holds.
    """

    job: JobHandle | None = None
    policy: str | None = None
    trace: Path | None = None
    name: str | None = None
    seed: int = 0
    own_checkpoints: bool = True
    pacer: Pacer | None = None
    on_chosen: Callable[[Chosen], None] = lambda chosen: None
    on_join: Callable[[nn.Module, Optimizer], None] | None = None
    on_meter: Callable[[Meter], None] = lambda meter: None
    on_ended: Callable[[RunResult], None] = lambda result: None


_AMBIENT = threading.local()


def ambient() -> Ambient | None:
    """Return the surroundings of the worker whose thread this is; None where a script runs by itself."""
    found: Ambient | None = getattr(_AMBIENT, "found", None)
    return found


@contextmanager
def within(surroundings: Ambient) -> Iterator[None]:
    """Let sessions join the ambient job in this context, and this thread, when they are given none."""
    before = ambient()
    _AMBIENT.found = surroundings
    try:
        yield
    finally:
        _AMBIENT.found = before
