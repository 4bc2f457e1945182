"""The fork server of a test process, with what its processes need already imported."""

import multiprocessing
from multiprocessing import forkserver

import pytest

from plesio.bench.process_pool import FOR_TRAINING


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> None:
    """Started by the first test that needs it: if that one does not train, those after it do."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*FOR_TRAINING, "plesio.bench.trainer", "pytest"])
    forkserver.ensure_running()
