"""The secret of a job reaches its processes, and no one else who only reaches the port where they meet."""

import os
from pathlib import Path

import pytest

from plesio.core.errors import ConfigError
from plesio.runtime.job import Job
from plesio.runtime.worker.environment import WorkerPlace
from plesio.testing.local_job import LocalJob

TIMEOUT_S = 60.0


def in_a_job(*, without: tuple[str, ...] = (), meet_s: float = 10.0, **variables: str) -> tuple[str, bool]:
    """Return a worker's secret, and True if it lies in the store; runs in a worker."""
    os.environ.update(variables)
    for name in without:
        os.environ.pop(name)
    place = WorkerPlace.from_environment()
    assert place is not None
    with Job(place, meet_s=meet_s) as job:
        job.servers(1, folder=None)
        job.start.store.set(f"done/{place.rank}", "")
        job.start.store.wait(["done/0", "done/1"])  # the servers end with the worker that has started them
        return job._servers.secret, job.start.store.check(["secret"])


def test_workers_have_the_launcher_s_secret_and_the_store_has_none():
    with LocalJob(2) as local:
        endings = local.run(Path(__file__), "in_a_job", timeout_s=TIMEOUT_S)
    (secret, in_store), other = endings[0].value, endings[1].value
    assert len(secret) == 64
    assert (secret, in_store) == other
    assert not in_store


def test_under_plain_torchrun_the_workers_of_a_host_agree_by_their_user_s_key():
    with LocalJob(2) as local:
        endings = local.run(Path(__file__), "in_a_job", without=("PLESIO_SECRET",), timeout_s=TIMEOUT_S)
    assert endings[0].value == endings[1].value, endings
    assert endings[0].value[1] is False


def test_a_worker_with_another_secret_is_refused_in_one_line():
    with LocalJob(2) as local:
        local.start(0, Path(__file__), "in_a_job", meet_s=1.0)  # it waits for the other one
        local.start(1, Path(__file__), "in_a_job", PLESIO_SECRET="x" * 32)
        endings = local.wait(timeout_s=TIMEOUT_S)
    assert endings[1].error == "ConfigError"
    assert endings[1].message.startswith("worker 1 has another secret than worker 0")


def test_several_hosts_without_a_secret_are_refused_before_they_meet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PLESIO_SECRET", raising=False)
    place = WorkerPlace(
        rank=1, num_workers=2, local_rank=0, local_workers=1, address="127.0.0.1", port=9, agent_hosts_store=True
    )
    with pytest.raises(ConfigError, match="a job on 2 hosts needs a secret: set PLESIO_SECRET"):
        Job(place)


def test_told_so_they_publish_it():
    variables = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "PLESIO_INSECURE_PUBLISH_SECRET": "1"}
    with LocalJob(2) as local:
        endings = local.run(Path(__file__), "in_a_job", without=("PLESIO_SECRET",), timeout_s=TIMEOUT_S, **variables)
    assert endings[0].value == endings[1].value, endings
    assert endings[0].value[1] is True
