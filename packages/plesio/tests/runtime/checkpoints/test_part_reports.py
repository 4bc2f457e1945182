import threading
from pathlib import Path

import pytest

from plesio.core.errors import DataError
from plesio.runtime.checkpoints.part_reports import PartReport, await_reports, write_report


def test_a_lost_worker_is_not_waited_for_when_its_loss_is_known(tmp_path: Path):
    write_report(tmp_path, 0, PartReport(files={}))
    lost: set[int] = set()
    found: list[DataError] = []

    def wait() -> None:
        with pytest.raises(DataError) as error:
            await_reports(tmp_path, [0, 1], patience_s=lambda: 600.0, lost=lost)
        found.append(error.value)

    thread = threading.Thread(target=wait)
    thread.start()
    lost.add(1)
    thread.join(timeout=30.0)
    assert [str(one) for one in found] == ["worker 1 was lost before it had written its part"]


def test_a_report_from_before_a_worker_was_lost_counts(tmp_path: Path):
    for rank in (0, 1):
        write_report(tmp_path, rank, PartReport(files={}))
    assert set(await_reports(tmp_path, [0, 1], patience_s=lambda: 600.0, lost={1})) == {0, 1}
