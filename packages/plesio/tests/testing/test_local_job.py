"""Servers of a job in tests: forked off their starters, and as legible as others when they fail."""

import contextlib
import os
from pathlib import Path

import psutil
import pytest
import torch

import plesio
from plesio.core.errors import PlesioError
from plesio.testing import LocalJob, forked_server

TIMEOUT_S = 60.0


def children() -> list[tuple[str, list[str]]]:
    """Return the name and the command line of each server that this worker of a job has started."""
    model = torch.nn.Linear(2, 1)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy="asp"):
        found = [(child.name(), child.cmdline()) for child in psutil.Process().children()]
    return [one for one in found if one[0] == forked_server.NAME or "plesio.runtime.server.process" in one[1]]


def with_a_failing_server(*, folder: str) -> str:
    """Return what is written where the job's server fails; runs in a worker."""

    def fail() -> None:
        raise ArithmeticError("of the server")

    forked_server.main = fail
    path = Path(folder, str(os.getpid()))
    with path.open("w") as file:
        os.dup2(file.fileno(), 2)
    with contextlib.suppress(PlesioError, BrokenPipeError):  # it may be gone before it is told what to serve
        children()
    return path.read_text()


@pytest.mark.parametrize("forks", [True, False])
def test_servers_are_forked_only_where_a_test_suite_asks_for_it(forks: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LocalJob, "forks_servers", forks)
    with LocalJob(2) as job:
        endings = job.run(Path(__file__), "children", timeout_s=TIMEOUT_S)
    for ending in endings.values():
        assert ending.error is None, ending.trace
    servers = [server for ending in endings.values() for server in ending.value]
    assert len(servers) == 1
    [(name, command)] = servers
    assert (name == forked_server.NAME) == forks
    assert ("plesio.runtime.server.process" in command) != forks


def test_a_forked_server_that_fails_tells_why(tmp_path: Path):
    with LocalJob(2) as job:
        for rank in range(2):
            job.start(rank, Path(__file__), "with_a_failing_server", folder=str(tmp_path))
        [starter] = job.wait(timeout_s=TIMEOUT_S, ranks=[0]).values()
    assert starter.error is None, starter.trace
    assert "ArithmeticError: of the server" in starter.value
