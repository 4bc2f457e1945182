import threading
from pathlib import Path

import pytest

from plesio.core.errors import DataError
from plesio.runtime.checkpoints.said import Said, heard_from_all, say


def test_a_lost_worker_is_not_waited_for_when_its_loss_is_known(tmp_path: Path):
    say(tmp_path, 0, Said(files={}))
    lost: set[int] = set()
    found: list[DataError] = []

    def hear() -> None:
        with pytest.raises(DataError) as error:
            heard_from_all(tmp_path, [0, 1], patience_s=lambda: 600.0, lost=lost)
        found.append(error.value)

    thread = threading.Thread(target=hear)
    thread.start()
    lost.add(1)
    thread.join(timeout=30.0)
    assert [str(one) for one in found] == ["worker 1 was lost before it had written its part"]


def test_what_a_worker_had_said_before_it_was_lost_counts(tmp_path: Path):
    for rank in (0, 1):
        say(tmp_path, rank, Said(files={}))
    assert set(heard_from_all(tmp_path, [0, 1], patience_s=lambda: 600.0, lost={1})) == {0, 1}
