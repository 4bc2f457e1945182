import dataclasses
import html
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from plesio.core.errors import DataError
from plesio.core.results import RunResult, write_results
from plesio.report.build import build_report
from plesio.report.page import render_page
from plesio.report.summarise import compare_runs

MakeRun = Callable[..., RunResult]
EVIL = '</script><img src=x onerror="alert(1)"><b>'


class PageReader(HTMLParser):
    """A browser's view: visible text, tags with their attributes, scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._in: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        self._in = None

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts.append(data)
        elif self._in != "style":
            self.text.append(data)

    @property
    def visible(self) -> str:
        return " ".join("".join(self.text).split())


def read(runs: list[RunResult]) -> PageReader:
    return PageReader(render_page(compare_runs(runs)))


@pytest.fixture(scope="module")
def full_page(all_runs: list[RunResult]) -> str:
    return render_page(compare_runs(all_runs))


def test_the_page_refers_to_nothing_outside_itself(full_page: str):
    page = PageReader(full_page)
    references = [
        value for _, attributes in page.tags for name, value in attributes.items() if name in {"src", "href", "action"}
    ]
    assert references == []
    assert not any(tag in {"link", "iframe", "object", "embed", "base"} for tag, _ in page.tags)


def test_a_page_has_what_draws_its_charts_once_and_is_at_most_a_megabyte(full_page: str):
    assert full_page.count('id="plotly"') == 1
    assert len(full_page.encode()) < 1_000_000


def test_charts_have_no_more_digits_than_a_picture_shows(full_page: str):
    data = "".join(PageReader(full_page).scripts)
    assert re.search(r"[\[,]\d+\.\d{3,}[,\]]", data)
    assert not re.search(r"[\[,]\d*\.\d{8,}[,\]]", data.replace("0.0", ""))


@pytest.mark.parametrize(
    ("slug", "measured"),
    [
        ("time", "Training time of a run"),
        ("final-metric", "Metric of a run's last evaluation"),
        ("time-to-target", "Training time up to the first evaluation"),
        ("bytes", "Payload and framing on the wire"),
        ("metric", "Metric of each evaluation"),
        ("loss", "Training loss, mean over workers"),
        ("worker-times", "Seconds that each worker computed"),
        ("staleness", "Share of the applied updates by staleness"),
    ],
)
def test_a_caption_begins_with_what_is_measured(full_page: str, slug: str, measured: str):
    figure = full_page[full_page.index(f'<figure id="{slug}"') :]
    assert html.unescape(figure).partition("<figcaption>")[2].startswith(measured)


def test_whatever_a_file_says_is_shown_as_text(make_run: MakeRun):
    evil = [
        make_run(
            policy, seed, task=EVIL, metric_name=EVIL, status="failed" if seed == 2 else "finished", error=EVIL,
            bytes_sent={EVIL: 5}, bytes_sent_total=5, fallbacks=(EVIL,), refused_updates={"0": {EVIL: 2}},
            decisions=({"why": EVIL},), environment=None,
        )
        for policy in ("bsp", "asp")
        for seed in range(3)
    ]  # fmt: skip
    evil = [dataclasses.replace(run, policy=EVIL) if run.policy == "asp" else run for run in evil]
    page = read(evil)
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in page.tags)
    assert page.visible.count(EVIL) > 10
    assert not any(EVIL in script for script in page.scripts)


def test_a_metric_whose_goal_is_doubted_is_only_higher_or_lower(all_runs: list[RunResult]):
    def fallen(run: RunResult) -> RunResult:
        points = tuple(dataclasses.replace(point, metric=1 - point.metric) for point in run.evaluations)
        return dataclasses.replace(run, metric_name="cost", evaluations=points)

    visible = read([fallen(run) for run in all_runs]).visible
    assert "Which is better is not known: cost fell in every run" in visible
    assert "In cost, asp ended lower than bsp" in visible
    assert "More is better" not in visible


def test_failed_runs_stand_above_the_table(make_run: MakeRun):
    lost = make_run("asp", 1, status="failed", error="worker 2 was lost", lost_workers=(2,))
    visible = read([make_run("bsp", 0), make_run("asp", 0), lost]).visible
    assert visible.index("asp, seed 1, failed: worker 2 was lost") < visible.index("The comparison")
    assert "2 of 3 runs finished" in visible


def test_the_environment_is_named_once(full_page: str):
    visible = PageReader(full_page).visible
    assert visible.count("Example CPU @ 2.10GHz") == 1


@pytest.mark.parametrize("policies", [("bsp",), ("asp",)])
def test_a_single_run_has_a_page(make_run: MakeRun, policies: tuple[str, ...]):
    visible = read([make_run(policy, 0) for policy in policies]).visible
    assert f"{policies[0]} trained in" in visible
    assert "held against it" not in visible


def test_runs_that_measured_nothing_have_a_page(make_run: MakeRun):
    runs = [
        make_run(
            policy, 0, status="failed", error="no worker came up", workers=(), evaluations=(), losses=(),
            final_metric=None, wall_s=0.0, samples=0, bytes_sent={}, bytes_sent_total=0,
        )
        for policy in ("bsp", "asp")
    ]  # fmt: skip
    page = read(runs)
    assert "0 of 2 runs finished" in page.visible
    assert "asp has no finished run" in page.visible
    assert not any(tag == "figure" for tag, _ in page.tags)


@pytest.fixture
def results_folder(tmp_path: Path, make_run: MakeRun) -> Path:
    write_results(tmp_path / "results.json", [make_run("bsp", 0)])
    return tmp_path


def add_trace(folder: Path, run: str, text: str) -> Path:
    path = folder / "runs" / run / "trace-0.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


TRACE = '{"schema": 1, "worker": 0, "origin_s": 0.0}\n{"k": "compute", "t": 0.0, "d": 1.0, "c": 0}\n'


def test_timelines_are_written_and_linked(results_folder: Path):
    add_trace(results_folder, "ssp 4-seed0", TRACE)
    page = PageReader(build_report(results_folder).read_text(encoding="utf-8"))
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == ["runs/ssp%204-seed0/perfetto.json"]
    assert (results_folder / "runs" / "ssp 4-seed0" / "perfetto.json").exists()


def test_a_timeline_is_renewed_only_when_a_trace_is_newer(results_folder: Path):
    trace = add_trace(results_folder, "bsp-seed0", TRACE)
    build_report(results_folder)
    timeline = trace.with_name("perfetto.json")
    timeline.write_text("kept", encoding="utf-8")
    build_report(results_folder)
    assert timeline.read_text(encoding="utf-8") == "kept"
    later_ns = timeline.stat().st_mtime_ns + 1_000_000_000
    os.utime(trace, ns=(later_ns, later_ns))
    build_report(results_folder)
    assert "traceEvents" in timeline.read_text(encoding="utf-8")


def test_a_garbled_trace_is_named_and_stops_nothing(results_folder: Path):
    add_trace(results_folder, "bsp-seed0", "no trace\n")
    page = PageReader(build_report(results_folder).read_text(encoding="utf-8"))
    assert "its first line is no header" in page.visible


def test_the_page_replaces_an_older_one_and_leaves_nothing_else(results_folder: Path):
    (results_folder / "report.html").write_text("older", encoding="utf-8")
    path = build_report(results_folder)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(entry.name for entry in results_folder.iterdir()) == ["report.html", "results.json"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "does not exist"),
        ("", "not a results file"),
        ("{", "not a results file"),
        ("[]", "schema version"),
        ('{"schema_version": 1}', "garbled"),
        ('{"schema_version": 1, "runs": 3}', "garbled"),
        ('{"schema_version": 1, "runs": [{"policy": "bsp"}]}', "not a run"),
        ('{"schema_version": 1, "runs": []}', "no runs"),
        ('{"schema_version": 99, "runs": []}', "schema version 99"),
    ],
)
def test_results_that_cannot_be_reported_say_why(tmp_path: Path, text: str | None, problem: str):
    if text is not None:
        (tmp_path / "results.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=problem) as raised:
        build_report(tmp_path)
    assert "results.json" in str(raised.value)
    assert not (tmp_path / "report.html").exists()


def test_a_report_can_be_rebuilt_from_its_file(results_folder: Path):
    first = build_report(results_folder).read_bytes()
    assert build_report(results_folder).read_bytes() == first
