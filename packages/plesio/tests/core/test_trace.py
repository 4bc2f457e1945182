import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.core.errors import DataError
from plesio.core.trace import FLUSH_RECORDS, TraceWriter, read_trace, split_blocked

HEADER = {"worker": 2, "policy": "ssp:4"}


def test_what_is_written_is_read_back(tmp_path: Path):
    path = tmp_path / "deep" / "trace-2.jsonl"
    writer = TraceWriter(path, header=HEADER)
    start_s = writer.origin_s
    writer.span("compute", start_s=start_s + 0.5, end_s=start_s + 0.75, clock=3)
    writer.event("push", at_s=start_s + 1.0, clock=3, version=7, steps=2)
    writer.event("resume", at_s=start_s + 1.5, clock=4)
    writer.close()
    trace = read_trace(path)
    assert {key: trace.header[key] for key in HEADER} == HEADER
    assert [(r.kind, r.at_s, r.duration_s, r.clock, dict(r.fields)) for r in trace.records] == [
        ("compute", 0.5, 0.25, 3, {}),
        ("push", 1.0, None, 3, {"version": 7, "steps": 2}),
        ("resume", 1.5, None, 4, {}),
    ]


def test_records_reach_the_file_before_it_is_closed(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, header=HEADER)
    for clock in range(FLUSH_RECORDS):
        writer.span("compute", start_s=writer.origin_s, end_s=writer.origin_s, clock=clock)
    assert len(read_trace(path).records) == FLUSH_RECORDS
    writer.close()
    writer.close()


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, header=HEADER)
    for clock in (1, 2):
        writer.span("compute", start_s=writer.origin_s, end_s=writer.origin_s, clock=clock)
    writer.close()
    text = path.read_text()
    path.write_text(text[:-9])
    assert [record.clock for record in read_trace(path).records] == [1]
    lines = text.splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-4], lines[2]]))
    with pytest.raises(DataError, match=r"line 2: not a trace record"):
        read_trace(path)


def test_full_disk_ends_the_tracing_and_says_so_once():
    said: list[str] = []
    writer = TraceWriter(Path("/dev/full"), header=HEADER, on_failure=said.append)
    assert not writer.recording
    writer.span("compute", start_s=0.0, end_s=1.0, clock=1)
    writer.event("push", at_s=0.0, clock=1)
    writer.flush()
    writer.close()
    assert len(said) == 1
    assert "training goes on" in said[0]
    assert "No space left on device" in said[0]


def test_disk_that_fills_up_later_ends_the_tracing_too(tmp_path: Path):
    said: list[str] = []
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(path, header=HEADER, on_failure=said.append)
    assert writer._file is not None
    writer._file.close()
    writer._file = Path("/dev/full").open("w")  # noqa: SIM115  # the disk is full from here on
    for _ in range(FLUSH_RECORDS + 1):
        writer.span("compute", start_s=writer.origin_s, end_s=writer.origin_s, clock=1)
    assert not writer.recording
    writer.close()
    assert len(said) == 1
    assert read_trace(path).records == ()


def test_folder_that_cannot_be_made_is_reported(tmp_path: Path):
    (tmp_path / "file").touch()
    said: list[str] = []
    TraceWriter(tmp_path / "file" / "trace.jsonl", header=HEADER, on_failure=said.append).close()
    assert len(said) == 1


def test_no_path_records_nothing():
    writer = TraceWriter(None, header=HEADER)
    writer.span("compute", start_s=0.0, end_s=1.0, clock=1)
    assert not writer.recording
    writer.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no header"),
        ("[]\n", "no header"),
        ("{}\n", "no header"),
        ("nonsense\n", "no header"),
        (json.dumps({"schema": 99}) + "\n", "schema version 99"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, message: str):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_trace(path)
    with pytest.raises(DataError, match="cannot read"):
        read_trace(tmp_path / "missing.jsonl")


@given(st.dictionaries(st.integers(0, 63), st.floats(0, 1e4), max_size=8))
def test_blocked_time_is_waiting_and_communicating_and_nothing_else(blocked_s: dict[int, float]):
    split = split_blocked(blocked_s)
    assert split.keys() == blocked_s.keys()
    for worker, (wait_s, communicate_s) in split.items():
        assert wait_s >= 0
        assert communicate_s == min(blocked_s.values())
        assert wait_s + communicate_s == pytest.approx(blocked_s[worker], abs=1e-8)
    assert not split or min(wait_s for wait_s, _ in split.values()) == 0
