"""Servers of a job in tests: forked off their starters."""

from pathlib import Path

import psutil
import pytest

from plesio.runtime.job import Job
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing import LocalJob, forked_server

TIMEOUT_S = 60.0


def server() -> tuple[str, list[str]]:
    """Return the name and the command line of the job's server; runs in a worker."""
    place = WorkerPlace.from_environment()
    assert place is not None
    with Job(place) as job:
        job.servers(1, folder=None)
        [child] = psutil.Process().children()
        return child.name(), child.cmdline()


@pytest.mark.parametrize("forks", [True, False])
def test_servers_are_forked_only_where_a_test_suite_asks_for_it(forks: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LocalJob, "forks_servers", forks)
    with LocalJob(2) as job:
        job.start(0, Path(__file__), "server")
        [ending] = job.wait(timeout_s=TIMEOUT_S).values()
    assert ending.error is None, ending.trace
    name, command = ending.value
    assert (name == forked_server.NAME) == forks
    assert ("plesio.runtime.server.process" in command) != forks
