"""A server's end: its files, its message when it cannot begin, and results that it cannot write."""

import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import plesio
from plesio.testing.local_job import LocalJob
from support.processes import own_job
from support.server_process import ServerUnderTest

TIMEOUT_S = 60.0


def folder_of(server: ServerUnderTest) -> Path:
    return Path(server.addresses["data_ipc"]).parent


def test_the_next_server_removes_the_folder_of_one_that_was_killed():
    with ServerUnderTest() as killed:
        folder = folder_of(killed)
        killed.process.kill()
        killed.process.wait()
        assert folder.is_dir()
        with ServerUnderTest() as server:
            assert not folder.exists()
            assert folder_of(server).is_dir()
            with ServerUnderTest():
                assert folder_of(server).is_dir(), "nor that of one that lives"


def with_a_killed_server() -> tuple[bool, bool]:
    """Return if the folder of a killed server is there before and after its starter's job; runs in a worker."""
    with own_job() as job:
        job.servers(1, folder=None)
        [folder] = job._servers._folders
        job._servers._processes[0].kill()
        job._servers._processes[0].wait()
        before = folder.exists()
    return before, folder.exists()


def test_the_starter_of_a_server_that_was_killed_removes_its_folder():
    with LocalJob(2) as local:
        local.start(0, Path(__file__), "with_a_killed_server")
        endings = local.wait(timeout_s=TIMEOUT_S)
    assert endings[0].value == (True, False), endings


def test_a_temporary_folder_that_is_too_long_for_sockets_is_what_the_error_names(tmp_path: Path):
    long = tmp_path / ("x" * 90)
    long.mkdir()
    with ServerUnderTest(**{**os.environ, "TMPDIR": str(long)}) as server:
        assert "too long for a socket (107 bytes); set TMPDIR to a shorter folder" in server.answer["error"]


def train(*, policy: str, trace: str) -> None:
    """Runs in a worker."""
    model = torch.nn.Linear(4, 1)
    with plesio.join(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=policy, trace=trace) as session:
        for (x,) in session.shard(DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4, shuffle=True)):
            loss = model(x).square().mean()
            loss.backward()
            session.step(loss)


@pytest.mark.parametrize("policy", ["bsp", pytest.param("asp", marks=pytest.mark.slow)])
def test_a_run_whose_results_cannot_be_written_ends_with_an_error(policy: str, tmp_path: Path):
    (tmp_path / "results.json").mkdir()
    with LocalJob(2) as local:
        endings = local.run(Path(__file__), "train", timeout_s=TIMEOUT_S, policy=policy, trace=str(tmp_path))
    assert [ending.error for ending in endings.values()] == ["DataError", "DataError"], endings
    assert "could not be written" in endings[0].message
