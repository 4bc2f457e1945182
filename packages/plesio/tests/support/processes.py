"""Jobs of real processes: what their workers return, and the job that a worker is of."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import plesio
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import Ending, LocalJob


def on_processes(
    num_workers: int, program: str | Path, function: str, /, *, limit_s: float = 100, **arguments: Any
) -> Any:
    """Run a function of a file on the workers of a job, none of which may fail; returns their results by rank."""
    with LocalJob(num_workers) as job:
        return values_of(job.run(Path(program), function, timeout_s=limit_s, **arguments))


def values_of(endings: dict[int, Ending]) -> list[Any]:
    """The results of workers by rank; none may have failed."""
    for ending in endings.values():
        assert ending.error is None, f"rank {ending.rank}: {ending.trace}"
        assert ending.exit_status == 0, ending
    return [endings[rank].value for rank in sorted(endings)]


@contextmanager
def own_job() -> Iterator[plesio.Job]:
    """The job of this process, for several sessions; with one thread, as there are several processes."""
    torch.set_num_threads(1)
    place = WorkerPlace.from_environment()
    assert place is not None
    with plesio.Job(place) as job:
        yield job
