import json
from collections.abc import Callable
from pathlib import Path

import pytest

from plesio.core.results import RunResult, write_results
from plesio.report.build import build_report
from plesio.report.charts import draw_figure
from plesio.report.comparison_charts import timeline_chart
from plesio.report.spans import ActivitySpan, read_traces
from plesio.report.timelines import MOST_WORKERS, STEPS, Window, window_of


def write_trace(folder: Path, worker: int, *, step_s: float, num_steps: int, origin_s: float = 100.0) -> None:
    """Steps that compute, and are then blocked for a tenth as long."""
    lines = [{"schema": 1, "worker": worker, "policy": "bsp", "origin_s": origin_s}]
    for clock in range(1, num_steps + 1):
        begin_s = (clock - 1) * 1.1 * step_s
        lines.append({"k": "compute", "t": begin_s, "d": step_s, "c": clock})
        lines.append({"k": "blocked", "t": begin_s + step_s, "d": 0.1 * step_s, "c": clock})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"trace-{worker}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")


def test_the_window_is_a_few_steps_of_the_slowest_in_the_middle(tmp_path: Path):
    write_trace(tmp_path, 0, step_s=0.1, num_steps=300)
    write_trace(tmp_path, 1, step_s=0.3, num_steps=100)
    window = window_of(read_traces(tmp_path))
    assert window is not None
    assert window.ends_s - window.begins_s == pytest.approx(STEPS * 0.33)
    assert (window.begins_s + window.ends_s) / 2 == pytest.approx(16.5)
    assert {span.worker for span in window.spans} == {0, 1}
    assert all(span.at_s < window.ends_s and span.at_s + span.duration_s > window.begins_s for span in window.spans)
    computed_s = sum(span.duration_s for span in window.spans if span.worker == 1 and span.kind == "compute")
    assert computed_s == pytest.approx(STEPS * 0.3, abs=0.31)


def test_what_all_were_blocked_on_is_waiting_for_the_last_and_then_communication(tmp_path: Path):
    write_trace(tmp_path, 0, step_s=0.1, num_steps=3)
    write_trace(tmp_path, 1, step_s=0.1, num_steps=3)
    window = window_of(read_traces(tmp_path))
    assert window is not None
    assert {span.kind for span in window.spans} == {"compute", "wait", "communicate"}


def test_a_run_without_traces_has_no_timeline(tmp_path: Path):
    assert window_of(read_traces(tmp_path)) is None


def test_bars_are_cut_to_the_window_and_workers_are_rows():
    spans = (
        ActivitySpan(0, "compute", 0.9, 0.3, 7),
        ActivitySpan(1, "wait", 1.05, 0.5, 7),
        ActivitySpan(1, "evaluate", 1.0, 0.01, 7),
    )
    window = Window(policy="ssp:4", spans=spans, begins_s=1.0, ends_s=1.5, num_workers=2)
    chart = timeline_chart([window])
    assert chart is not None
    bars = {trace.name: trace for trace in draw_figure(chart).data}
    assert (bars["compute"].base[0], bars["compute"].x[0]) == (0.0, pytest.approx(200))
    assert bars["wait"].x[0] == pytest.approx(450)
    assert (bars["wait"].y[0], bars["wait"].customdata[0][2]) == (1, "worker 1, step 7: ")
    assert timeline_chart([]) is None


def test_of_many_workers_the_first_are_shown_and_the_caption_says_so(tmp_path: Path):
    for worker in range(MOST_WORKERS + 3):
        write_trace(tmp_path, worker, step_s=0.1, num_steps=20)
    write_trace(tmp_path, MOST_WORKERS + 3, step_s=0.2, num_steps=10)
    window = window_of(read_traces(tmp_path))
    assert window is not None
    assert {span.worker for span in window.spans} == {*range(MOST_WORKERS - 1), MOST_WORKERS + 3}
    chart = timeline_chart([window])
    assert chart is not None
    assert f"Of {MOST_WORKERS + 4} workers the first are shown, and the slowest" in chart.caption


def test_a_trace_that_cannot_be_read_leaves_its_policy_out_of_the_picture(
    tmp_path: Path, make_run: Callable[..., RunResult]
):
    write_results(tmp_path / "results.json", [make_run("bsp", 0), make_run("asp", 0)])
    runs = tmp_path / "runs"
    write_trace(runs / "bsp-seed0", 0, step_s=0.1, num_steps=20)
    write_trace(runs / "bsp-seed0", 1, step_s=0.1, num_steps=20)
    (runs / "asp-seed0").mkdir()
    (runs / "asp-seed0" / "trace-0.jsonl").write_text("garbled\n")
    page = build_report(tmp_path).read_text()
    picture = page[page.index('<figure id="gantt"') :].split("</figure>")[0]
    assert "bsp" in picture
    assert "asp" not in picture
