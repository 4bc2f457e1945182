import multiprocessing
from multiprocessing import forkserver

import pytest

from plesio.bench.gang import FOR_TRAINING


@pytest.fixture(scope="session", autouse=True)
def _fork_server() -> None:
    """The one of this process, which the first to need it starts: even if that does not train, those after it do."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*FOR_TRAINING, "plesio.bench.trainer"])
    forkserver.ensure_running()
