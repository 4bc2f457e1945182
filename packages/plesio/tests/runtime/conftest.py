import pytest

from plesio.runtime.job_store import listen, serve_store


@pytest.fixture(scope="session", autouse=True)
def _libuv_is_loaded() -> None:
    """The first store makes libuv open a pipe that it keeps for good: no leak of the test that comes first."""
    with listen(0) as listener:
        serve_store(listener, num_workers=1)
