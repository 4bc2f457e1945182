"""A log on its way to the disk: what is read back is what was heard, whatever its length."""

import gzip
from pathlib import Path

import pytest

from plesio.core.errors import DataError
from plesio.policies import Arrived, EventLog, Joined, LeaveReason, Left, Recorder, read_log, verify
from plesio.policies import log_writer as module
from plesio.policies.log_writer import BATCH, LogWriter
from plesio.policies.replay import write_log
from plesio.policies.spec import parse_policy

POLICY = parse_policy("ssp:4")


def play(recorder: Recorder, *, num_updates: int, begin: int = 0) -> None:
    """Two workers, one step each in turn."""
    for clock in range(begin + 1, begin + num_updates // 2 + 1):
        for worker in (0, 1):
            recorder.handle(Arrived(worker=worker, clock=clock, base_version=2 * (clock - 1)))


def written(path: Path, *, num_updates: int, limit_bytes: int = 2**30) -> tuple[EventLog, EventLog]:
    """Return the whole log, and the one in the file."""
    said: list[str] = []
    writer = LogWriter(path, policy=POLICY, limit_bytes=limit_bytes, on_failure=said.append)
    both = Recorder(POLICY), Recorder(POLICY, entries=writer)
    for recorder in both:
        for worker in (0, 1):
            recorder.handle(Joined(worker=worker))
        play(recorder, num_updates=num_updates)
        recorder.handle(Left(worker=1, reason=LeaveReason.LOST))
    writer.close()
    assert not said
    return both[0].log, read_log(path)


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    heard, read = written(tmp_path / "events.jsonl", num_updates=3 * BATCH)
    assert read == heard
    write_log(tmp_path / "whole.jsonl", heard)
    assert read_log(tmp_path / "whole.jsonl") == read


def test_a_long_log_goes_on_in_a_compressed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_BYTES", 50_000)
    heard, read = written(tmp_path / "events.jsonl", num_updates=4 * BATCH)
    assert read == heard
    assert verify(read) is None
    rest = tmp_path / "events.jsonl.gz"
    assert gzip.decompress(rest.read_bytes()).count(b"\n") > BATCH, "any gzip reads it"
    rest.write_bytes(rest.read_bytes()[:-40])  # its writer was killed
    cut = read_log(tmp_path / "events.jsonl")
    assert cut.entries == heard.entries[: len(cut.entries)]
    assert len(cut.entries) > BATCH


def test_beyond_the_limit_updates_are_left_out_and_the_log_says_where(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    heard, read = written(path, num_updates=6 * BATCH, limit_bytes=100_000)
    assert read.num_whole is not None
    assert BATCH <= read.num_whole <= len(read.entries) < len(heard.entries)
    assert read.entries[: read.num_whole] == heard.entries[: read.num_whole]
    assert read.entries[-1] == heard.entries[-1], "who left is told"
    assert verify(read) is None, "of what is whole"
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size < 300_000, "one batch more than the limit at most"
    write_log(tmp_path / "again.jsonl", read)
    assert read_log(tmp_path / "again.jsonl") == read


def test_a_machine_that_hears_again_begins_its_log_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = LogWriter(path, policy=POLICY, on_failure=print)
    recorder = Recorder(POLICY, entries=writer, keeps_events=True)
    recorder.handle(Joined(worker=7))
    recorder.resume([Joined(worker=0)], clock=12)
    writer.close()
    log = read_log(path)
    assert (log.clock, [entry.event for entry in log.entries]) == (12, [Joined(worker=0)])
    assert recorder.events == [Joined(worker=0)]


def test_a_disk_that_cannot_be_written_ends_the_log_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder would be")
    said: list[str] = []
    writer = LogWriter(tmp_path / "run" / "events.jsonl", policy=POLICY, on_failure=said.append)
    recorder = Recorder(POLICY, entries=writer)
    recorder.handle(Joined(worker=0))
    recorder.handle(Arrived(worker=0, clock=1))
    writer.close()
    assert len(said) == 1
    assert "training goes on" in said[0]


def test_a_gap_is_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_log(path, EventLog(policy=POLICY, entries=(), num_whole=0))
    assert path.read_text().splitlines()[1] == '{"left_out": "updates"}'
    assert read_log(path).num_whole == 0
    path.write_text(path.read_text().replace("updates", "something"))
    with pytest.raises(DataError, match="line 2"):
        read_log(path)
