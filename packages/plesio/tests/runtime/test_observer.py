import json
from pathlib import Path

from torch.distributed import HashStore, PrefixStore  # type: ignore[attr-defined]

from plesio.runtime.observer import Observer
from support.transport import JOB, PATIENCE_S, SECRET, EchoServer


def test_without_a_server_or_after_its_end_there_are_no_figures(tmp_path: Path):
    """Workers that fail end their job, and it is from them that a comparison learns why."""
    store = HashStore()
    of_job = PrefixStore("plesio/0/0", store)
    observer = Observer.of_first_job(store, secret=SECRET)
    try:
        assert observer.figures(timeout_s=PATIENCE_S) is None
        server = EchoServer(tmp_path)
        try:
            for key, value in {"server/0": json.dumps(server.addresses), "job": JOB}.items():
                of_job.set(key, value)
            assert observer.figures(timeout_s=PATIENCE_S) is None  # it says that there is no run
            assert server.seen
        finally:
            server.close()
        for _ in range(2):
            assert observer.figures(timeout_s=PATIENCE_S) is None
    finally:
        observer.close()
