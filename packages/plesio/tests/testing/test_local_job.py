"""Servers of a job in tests: forked off their starters, and as legible as others when they fail."""

import os
from pathlib import Path

import psutil
import pytest

from plesio.runtime.job import Job
from plesio.runtime.server.process import ServerConfig
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


def failing_server(*, output: str) -> tuple[int, str]:
    """Return the exit status of a server that fails, and what it has written; runs in a worker."""

    def fail() -> None:
        raise ArithmeticError("of the server")

    forked_server.main = fail
    with Path(output).open("w") as file:
        os.dup2(file.fileno(), 2)
    process = forked_server.ForkedServer(ServerConfig(index=0, host="127.0.0.1", job="job", secret="secret"))
    status = process.wait(TIMEOUT_S)
    process.stdin.close()
    process.stdout.close()
    return status, Path(output).read_text()


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


def test_a_forked_server_that_fails_tells_why(tmp_path: Path):
    with LocalJob(1) as job:
        [ending] = job.run(Path(__file__), "failing_server", timeout_s=TIMEOUT_S, output=str(tmp_path / "err")).values()
    assert ending.error is None, ending.trace
    status, text = ending.value
    assert status == 1
    assert "ArithmeticError: of the server" in text
