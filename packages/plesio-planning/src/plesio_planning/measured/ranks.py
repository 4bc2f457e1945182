"""Functions that all ranks of a process group on this machine run together: on its loopback, or on hosts of their own.

The ranks are a `bench.process_pool.ProcessPool`, so Ctrl-C leaves none behind.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from plesio.bench.process_pool import ProcessPool, enlisted
from plesio.core.errors import PlesioError
from plesio.cost.cluster import Cluster
from plesio.cost.fit import AlphaBeta, alpha_beta_of_all_reduce, fit_line
from plesio.cost.link import Link
from plesio.runtime.job import Job
from plesio.runtime.site import THIS_HOST, Site
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.runtime.worker.job_handle import Ambient, within
from plesio.testbed.testbed import Testbed

_FIT_ROUNDS = 5
"""How often all sizes are measured, at most, before a machine is said to be too busy to tell them apart."""

Times = list[tuple[float, float]]
"""Begin and end of each repeat on a rank, on the clock that all processes share."""


class Ranks:
    """Processes that are ranks of one Gloo group, with one thread each.

    Raises:
        ConfigError: A rank cannot start.
    """

    def __init__(self, count: int, *, site: Site = THIS_HOST) -> None:
        self._processes = ProcessPool(count, serve_functions, site=site)
        try:
            self._processes.await_ready()
        except BaseException:
            self._processes.close()
            raise

    def run(self, function: Callable[..., Any], **arguments: Any) -> list[Any]:
        """Return the result of ``function(group, **arguments)`` on each rank; sessions that it joins find their job.

        Args:
            function: Function of a module; told its process group.
            arguments: Further arguments; pickled.

        Raises:
            PlesioError: It failed on some rank.
        """
        for pipe in self._processes.pipes:
            pipe.send((function, arguments))
        answers = []
        for rank, pipe in enumerate(self._processes.pipes):
            try:
                kind, value = pipe.recv()
            except EOFError:
                kind, value = "failed", f"rank {rank} ended with {self._processes.status(rank)}"
            if kind != "done":
                raise PlesioError(f"cannot measure: {value}")
            answers.append(value)
        return answers

    def times_s(self, function: Callable[..., Times], **arguments: Any) -> list[float]:
        """Seconds of each repeat of a function that returns what `timed` does; ranks that return nothing only wait."""
        return slowest_s([answer for answer in self.run(function, **arguments) if answer])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._processes.close()


@contextlib.contextmanager
def ranks_on_hosts(count: int, *, ranks_per_host: int = 1, bytes_per_s: float) -> Iterator[Ranks]:
    """Start ranks on hosts of their own, whose links carry so much each way; hosts and ranks are gone afterwards.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    cluster = Cluster(
        name="ranks on hosts",
        hosts=count // ranks_per_host,
        workers_per_host=ranks_per_host,
        cores_per_host=ranks_per_host,
        nic=Link(latency_s=0.0, bytes_per_s=bytes_per_s),
    )
    with Testbed.of(cluster) as testbed, Ranks(count, site=testbed.record) as ranks:
        yield ranks


@contextlib.contextmanager
def ranks_over_links(count: int, *, bytes_per_s: float | None) -> Iterator[Ranks]:
    """Start ranks on hosts of their own with links of this bandwidth, or on this machine's loopback for None."""
    with Ranks(count) if bytes_per_s is None else ranks_on_hosts(count, bytes_per_s=bytes_per_s) as ranks:
        yield ranks


def timed(group: TorchGroup, work: Callable[[], object], *, repeats: int, warm_up: int = 3) -> Times:
    """When this rank began and ended each of ``repeats`` pieces of work, on the clock that all processes share.

    All ranks meet before each.
    """
    times = []
    for _ in range(warm_up + repeats):
        dist.barrier(group=group.process_group)
        begun_s = time.monotonic()
        work()
        times.append((begun_s, time.monotonic()))
    return times[warm_up:]


def all_reduce_times(
    group: TorchGroup, *, num_bytes: int, repeats: int, parts: Sequence[Sequence[int]] | None = None
) -> Times:
    """All-reduce so many bytes among all ranks, or in each of some parts of them; ranks in no part do nothing."""
    part = group if parts is None else group.split(parts)
    tensor = torch.ones(max(1, num_bytes // 4))
    return [] if part is None else timed(part, lambda: part.all_reduce(tensor).wait(), repeats=repeats)


def slowest_s(answers: Sequence[Times]) -> list[float]:
    """Return seconds of each repeat that `timed` took on all ranks: from the last one's begin to the last one's end."""
    return [
        max(ended_s for _, ended_s in of_all) - max(begun_s for begun_s, _ in of_all)
        for of_all in zip(*answers, strict=True)
    ]


def fitted_links(sizes_bytes: Sequence[int], times_s: Callable[[int], Sequence[float]], *, num_ranks: int) -> AlphaBeta:
    """Return the latency and bandwidth of links, fitted to the medians of all-reduces over them.

    Where other work on this machine disturbs the few repeats so much that a larger message seems no slower than a
    smaller one, all sizes are measured again and the repeats go together (of two in the middle the lower counts).

    There are three sizes or more; ``times_s`` measures the seconds of each repeat of an all-reduce of so many bytes.

    Raises:
        ConfigError: Larger messages take no longer than smaller ones, however often they are measured.
    """
    measured_s: dict[int, list[float]] = {size: [] for size in sizes_bytes}
    for _ in range(_FIT_ROUNDS):
        for size, found_s in measured_s.items():
            found_s += times_s(size)
        fit = fit_line(list(measured_s), [statistics.median_low(found_s) for found_s in measured_s.values()])
        if fit.slope > 0:
            break
    return alpha_beta_of_all_reduce(fit, num_ranks=num_ranks)


def serve_functions(environment: Mapping[str, str], commands: Connection) -> None:
    """Run what is sent until told to stop, as the entry of a rank.

    Args:
        environment: torchrun's variables.
        commands: Receives ``(function, arguments)``, None to stop; sends ("ready", None), then for each function
            ("done", what it returned) or ("failed", sentence).
    """
    with enlisted(environment):
        torch.set_num_threads(1)
        place = WorkerPlace.from_environment()
        assert place is not None, "two ranks or more"
        try:
            with Job(place) as job, within(Ambient(job=job)):
                group = job.group("cpu")
                commands.send(("ready", None))
                while (command := commands.recv()) is not None:
                    function, arguments = command
                    try:
                        commands.send(("done", function(group, **arguments)))
                    except (PlesioError, RuntimeError) as error:
                        commands.send(("failed", f"{function.__name__}: {type(error).__name__}: {error}"))
                        break
        except PlesioError as error:
            commands.send(("unusable", str(error)))
        except (KeyboardInterrupt, EOFError, BrokenPipeError):
            pass  # told to stop, or whoever asked is gone
