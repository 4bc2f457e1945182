import json
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import DataError
from plesio.report.perfetto import write_perfetto


def write_trace(folder: Path, worker: int, *, origin_s: float, records: list[dict[str, Any]]) -> None:
    lines = [{"schema": 1, "worker": worker, "policy": "bsp", "origin_s": origin_s}, *records]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"trace-{worker}.jsonl").write_text(text, encoding="utf-8")


def events_of(folder: Path) -> list[dict[str, Any]]:
    found = json.loads(write_perfetto(folder).read_text(encoding="utf-8"))["traceEvents"]
    assert isinstance(found, list)
    return found


def spans(events: list[dict[str, Any]], worker: int) -> list[tuple[str, float, float]]:
    return [
        (event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X" and event["pid"] == worker
    ]


def test_a_blocked_span_waits_for_the_last_to_arrive_and_then_communicates(tmp_path: Path):
    blocked = {"k": "blocked", "c": 1}
    write_trace(
        tmp_path,
        0,
        origin_s=50.0,
        records=[{"k": "compute", "t": 0, "d": 0.010, "c": 0}, {**blocked, "t": 0.010, "d": 0.040}],
    )
    write_trace(
        tmp_path,
        1,
        origin_s=50.0,
        records=[{"k": "compute", "t": 0, "d": 0.040, "c": 0}, {**blocked, "t": 0.040, "d": 0.010}],
    )
    events = events_of(tmp_path)
    assert spans(events, 0) == [("compute", 0, 10_000), ("wait", 10_000, 30_000), ("communicate", 40_000, 10_000)]
    assert spans(events, 1) == [("compute", 0, 40_000), ("wait", 40_000, 0), ("communicate", 40_000, 10_000)]


def test_a_worker_blocked_twice_in_a_step_is_split_each_time(tmp_path: Path):
    for worker, (first_s, second_s) in enumerate([(0.03, 0.01), (0.01, 0.02)]):
        records = [{"k": "blocked", "t": 0, "d": first_s, "c": 4}, {"k": "blocked", "t": 0.1, "d": second_s, "c": 4}]
        write_trace(tmp_path, worker, origin_s=0.0, records=records)
    events = events_of(tmp_path)
    waits = {worker: [dur for name, _, dur in spans(events, worker) if name == "wait"] for worker in (0, 1)}
    assert waits == {0: [20_000, 0], 1: [0, 10_000]}


def test_samples_of_utilisation_become_counters(tmp_path: Path):
    sample = {"k": "utilisation", "t": 0.5, "c": 3, "cpu": 0.9, "sent_bytes_per_s": 10, "received_bytes_per_s": 20}
    write_trace(tmp_path, 1, origin_s=0.0, records=[{"k": "compute", "t": 0, "d": 0.01, "c": 0}, sample])
    counters = [event for event in events_of(tmp_path) if event["ph"] == "C"]
    assert {event["name"]: event["args"] for event in counters} == {
        "processor (cores)": {"cores": 0.9},
        "network (bytes/s)": {"sent": 10, "received": 20},
    }
    assert {(event["pid"], event["ts"]) for event in counters} == {(1, 500_000)}


def test_origins_put_the_workers_on_one_axis(tmp_path: Path):
    write_trace(tmp_path, 0, origin_s=101.5, records=[{"k": "compute", "t": 0.5, "d": 1, "c": 0}])
    write_trace(tmp_path, 3, origin_s=100.0, records=[{"k": "compute", "t": 0.5, "d": 1, "c": 0}])
    events = events_of(tmp_path)
    assert spans(events, 0) == [("compute", 2_000_000, 1_000_000)]
    assert spans(events, 3) == [("compute", 500_000, 1_000_000)]


def test_what_perfetto_needs_is_there(tmp_path: Path):
    records = [{"k": "compute", "t": 0, "d": 0.01, "c": 0}, {"k": "push", "t": 0.02, "c": 1, "bytes": 1234}]
    for worker in range(3):
        write_trace(tmp_path, worker, origin_s=7.0, records=records)
    events = events_of(tmp_path)
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {0: "worker 0", 1: "worker 1", 2: "worker 2"}
    for event in events:
        assert {"ph", "name", "pid", "tid", "args"} <= event.keys()
        assert event["ph"] in "MXi"
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
    pushes = [event for event in events if event["name"] == "push"]
    assert [(event["ph"], event["s"], event["args"]) for event in pushes] == [
        ("i", "t", {"clock": 1, "bytes": 1234})
    ] * 3


def test_a_trace_cut_short_by_a_crash_is_converted_up_to_there(tmp_path: Path):
    write_trace(tmp_path, 0, origin_s=0.0, records=[{"k": "compute", "t": 0, "d": 1, "c": 0}])
    with (tmp_path / "trace-0.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"k":"comp')
    assert spans(events_of(tmp_path), 0) == [("compute", 0, 1_000_000)]


@pytest.mark.parametrize(
    ("name", "header", "problem"),
    [
        ("trace-0.jsonl", '{"schema": 1, "origin_s": 0.0}', "needs"),
        ("trace-0.jsonl", "", "no header"),
        ("other.jsonl", '{"schema": 1, "worker": 0, "origin_s": 0.0}', "no trace"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, name: str, header: str, problem: str):
    (tmp_path / name).write_text(header + "\n" if header else "", encoding="utf-8")
    with pytest.raises(DataError, match=problem):
        write_perfetto(tmp_path)
    assert not (tmp_path / "perfetto.json").exists()


def test_two_traces_of_one_worker_are_refused(tmp_path: Path):
    write_trace(tmp_path, 0, origin_s=0.0, records=[])
    (tmp_path / "trace-0b.jsonl").write_bytes((tmp_path / "trace-0.jsonl").read_bytes())
    with pytest.raises(DataError, match="worker 0"):
        write_perfetto(tmp_path)
