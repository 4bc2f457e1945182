import threading
from pathlib import Path

import pytest

from plesio.core.errors import DataError
from plesio.runtime.checkpoints.part_reports import PartReport, Seat, await_reports, write_report


def test_a_lost_worker_is_not_waited_for_when_its_loss_is_known(tmp_path: Path):
    write_report(tmp_path, Seat(0), PartReport(files={}))
    lost: set[int] = set()
    found: list[DataError] = []

    def wait() -> None:
        with pytest.raises(DataError) as error:
            await_reports(tmp_path, [Seat(0), Seat(1)], patience_s=lambda: 600.0, lost=lost)
        found.append(error.value)

    thread = threading.Thread(target=wait)
    thread.start()
    lost.add(1)
    thread.join(timeout=30.0)
    assert [str(one) for one in found] == ["worker 1 was lost before it had written its part"]


def test_a_report_from_before_a_worker_was_lost_counts(tmp_path: Path):
    for rank in (0, 1):
        write_report(tmp_path, Seat(rank), PartReport(files={}))
    assert set(await_reports(tmp_path, [Seat(0), Seat(1)], patience_s=lambda: 600.0, lost={1})) == {Seat(0), Seat(1)}


def test_the_first_rank_of_an_island_has_the_others_awaited(tmp_path: Path):
    for rank in range(3):
        write_report(tmp_path, Seat(1, rank, 3), PartReport(ranks=3))
    assert [str(one) for one in await_reports(tmp_path, [Seat(1)], patience_s=lambda: 600.0)] == ["1", "1.1", "1.2"]
    write_report(tmp_path, Seat(1, 0, 2), PartReport(ranks=2))
    with pytest.raises(DataError, match="rank 1 of worker 1 has not written its part"):
        await_reports(tmp_path, [Seat(1)], patience_s=lambda: 0.1)
