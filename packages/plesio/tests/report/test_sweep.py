"""A sweep's figures, sentences and tables, of made-up runs; and the page in a real browser."""

import io
import math
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest
from playwright.sync_api import Browser
from rich.console import Console

from plesio.core.results import Evaluation, RunResult
from plesio.report.charts import draw_figure
from plesio.report.sweep import (
    Sweep,
    render_sweep,
    render_sweep_page,
    summarise_sweep,
    sweep_charts_of,
    sweep_sentences,
)
from plesio.report.sweep_charts import THROUGHPUT, TIME, bandwidth_chart, bound_chart, bound_policies, point_at
from support.browser import check_figures, load, opened

NARROW, MIDDLE, WIDE = "100 Mbit/s", "1 Gbit/s", "10 Gbit/s"
TIMES_S: dict[str, dict[str, list[float | None]]] = {
    NARROW: {"ssp:0": [12.0, 14.0, 13.0], "ssp:4,period=3": [5.0, 6.0, 7.0], "ssp:inf": [None, None, None]},
    MIDDLE: {"ssp:0": [4.0, 4.2, 4.4], "ssp:4,period=3": [2.0, None, 2.2], "ssp:inf": [1.6, 1.5, 1.4]},
    WIDE: {"ssp:0": [4.0, 4.1, 4.4], "ssp:4,period=3": [2.0, 2.1, 2.2], "ssp:inf": [1.5, 1.4, 1.45]},
}
"""Time to the target of seeds 0, 1, 2."""


def a_run(policy: str, seed: int, time_s: float | None, **overrides: object) -> RunResult:
    values: dict[str, object] = {
        "policy": policy,
        "task": "digits",
        "world": "virtual",
        "seed": seed,
        "num_workers": 4,
        "status": "finished",
        "steps": 100,
        "samples": 1000,
        "wall_s": 20.0,
        "virtual_s": 20.0 + seed,
        "metric_name": "accuracy",
        "target": 0.95,
        "time_to_target_s": time_s,
        "evaluations": (Evaluation(samples=10, at_s=0.5, metric=0.1),),
    }
    return RunResult(**{**values, **overrides})  # type: ignore[arg-type]


def a_sweep(times_s: dict[str, dict[str, list[float | None]]] = TIMES_S) -> Sweep:
    runs = {
        bandwidth: [
            a_run(policy, seed, time_s) for policy, by_seed in of_it.items() for seed, time_s in enumerate(by_seed)
        ]
        for bandwidth, of_it in times_s.items()
    }
    return summarise_sweep(runs, network="cluster <4x1gbe>")


def printed(sweep: Sweep) -> str:
    text = io.StringIO()
    Console(width=140, file=text).print(render_sweep(sweep))
    return text.getvalue()


def test_the_sentences_say_which_policy_is_best_where_and_from_where_on_it_does_not_matter():
    assert sweep_sentences(a_sweep()) == [
        "At 100 Mbit/s ssp:4,period=3 is first at accuracy 95.0 %, in 6 s: 2.17x as fast as ssp:0, the last. "
        "Not on every seed: ssp:inf.",
        "At 1 Gbit/s ssp:inf is first at accuracy 95.0 %, in 1.5 s: 2.80x as fast as ssp:0, the last. "
        "Not on every seed: ssp:4,period=3.",
        "At 10 Gbit/s ssp:inf is first at accuracy 95.0 %, in 1.45 s: 2.83x as fast as ssp:0, the last.",
        "Bandwidth matters up to 10 Gbit/s: the last step, from 1 Gbit/s, still makes ssp:4,period=3 reach the target; "
        "ssp:inf and ssp:0 no longer gain.",
        "The smallest bound within 10 % of the best one: ssp:4,period=3 at 100 Mbit/s; ssp:inf at 1 Gbit/s and 10 "
        "Gbit/s.",
        "The times of a policy's seeds are up to 1.40x apart (ssp:4,period=3 at 100 Mbit/s): smaller differences may "
        "be chance.",
    ]


@pytest.mark.parametrize(
    ("times_s", "expected"),
    [
        ({MIDDLE: {"bsp": [2.0], "asp": [1.95]}, WIDE: {"bsp": [2.0], "asp": [1.9]}}, "Bandwidth beyond 1 Gbit/s shor"),
        ({MIDDLE: {"bsp": [2.0], "asp": [1.95]}}, "asp is first at accuracy 95.0 %, in 1.95 s, but the choice hardly"),
        ({MIDDLE: {"bsp": [None], "asp": [None]}}, "At 1 Gbit/s no policy reached accuracy 95.0 % on every seed."),
        ({MIDDLE: {"bsp": [3.0], "asp": [None]}}, "At 1 Gbit/s bsp reaches accuracy 95.0 % in 3 s. Not on every seed"),
        ({MIDDLE: {"bsp": [3.0]}, WIDE: {"bsp": [2.0]}}, "from 1 Gbit/s, still makes bsp 1.50x as fast."),
        ({MIDDLE: {"bsp": [3.0]}}, "One seed: small differences may be chance."),
        ({MIDDLE: {"bsp": [0.5]}}, "Some runs were there when first evaluated"),
    ],
)
def test_what_is_said_of_a_sweep(times_s: dict[str, dict[str, list[float | None]]], expected: str):
    assert expected in " ".join(sweep_sentences(a_sweep(times_s)))


def test_the_table_has_a_cell_for_every_policy_and_bandwidth():
    text = printed(a_sweep())
    assert re.search(r"policy +100 Mbit/s +1 Gbit/s +10 Gbit/s", text)
    assert re.search(r"ssp:4,period=3 +6\.00 s \(3 of 3\) +2\.10 s \(2 of 3\) +2\.10 s \(3 of 3\)", text)
    assert re.search(r"ssp:inf +never \(0 of 3\) +1\.50 s \(3 of 3\)", text)
    assert re.search(r"ssp:0 +48 +48 +48", text)
    assert "cluster <4x1gbe>" in text


def test_an_unfinished_run_counts_as_one_that_did_not_reach_the_target_and_is_named():
    runs = [a_run("bsp", 0, 3.0), a_run("bsp", 1, None, status="failed", error="worker 1 was lost")]
    sweep = summarise_sweep({MIDDLE: runs}, network="cluster x")
    text = printed(sweep)
    assert "3.00 s (1 of 2)" in text
    assert "bsp at 1 Gbit/s, seed 1, failed: worker 1 was lost" in text
    assert "seed 1, failed: worker 1 was lost" in render_sweep_page(sweep)


def lines_of(figure: go.Figure) -> dict[str, go.Scatter]:
    return {trace.name: trace for trace in figure.data if trace.mode == "lines"}


def test_a_caption_speaks_of_the_marks_that_are_there():
    times_s: dict[str, dict[str, list[float | None]]] = {MIDDLE: {"bsp": [2.0]}, WIDE: {"bsp": [1.0]}}
    time, rate = sweep_charts_of(a_sweep(times_s))
    assert time.caption == ""
    assert rate.caption == "Samples of all workers per second of virtual time."


def test_a_logarithmic_axis_within_a_decade_has_more_ticks():
    times_s: dict[str, dict[str, list[float | None]]] = {MIDDLE: {"bsp": [8.0]}, WIDE: {"bsp": [1.5]}}
    figure = bandwidth_chart(a_sweep(times_s).comparisons, TIME, slug="a", title="b")
    assert draw_figure(figure).layout.yaxis.tickvals == (2, 4, 6, 8)


@pytest.mark.parametrize(
    ("rates", "title"),
    [
        ({MIDDLE: (100, 50), WIDE: (100, 110)}, "bsp at 1 Gbit/s; all alike at 10 Gbit/s."),
        ({MIDDLE: (100, 50), WIDE: (100, 200)}, "bsp at 1 Gbit/s; asp at 10 Gbit/s."),
    ],
)
def test_the_throughput_figure_is_titled_with_who_has_most(rates: dict[str, tuple[int, int]], title: str):
    runs = {
        bandwidth: [
            a_run(policy, 0, 1.0, virtual_s=1000 / rate) for policy, rate in zip(("bsp", "asp"), pair, strict=True)
        ]
        for bandwidth, pair in rates.items()
    }
    *_, figure = sweep_charts_of(summarise_sweep(runs, network="cluster x"))
    assert figure.title == f"Most samples per second, within 10 %: {title}"


def test_a_point_is_filled_hollow_or_a_triangle_by_how_many_seeds_reached_the_target():
    chart = bound_chart(a_sweep().comparisons, TIME, slug="a", title="b")
    figure = draw_figure(chart)
    lines = lines_of(figure)
    assert list(lines) == [NARROW, MIDDLE, WIDE]
    assert list(lines[MIDDLE].x) == [0, 1, 2]
    assert list(figure.layout.xaxis.ticktext) == ["0<br>p = 1", "4<br>p = 3", "inf<br>p = 1"]
    assert list(lines[MIDDLE].y) == [4.2, 2.1, 1.5]
    marks = {
        trace.marker.symbol: list(trace.x) for trace in figure.data if trace.name == MIDDLE and trace.marker.size == 9
    }
    assert (marks["square"], marks["square-open"]) == ([0, 2], [1])
    assert list(lines[NARROW].y[:2]) == [13.0, 6.0]
    assert math.isnan(lines[NARROW].y[2])
    never = [trace for trace in figure.data if trace.marker.symbol == "triangle-up-open" and trace.x[0] is not None]
    assert [(list(trace.x), list(trace.y)) for trace in never] == [([2], [22.0])]
    assert {"not every seed", "no seed"} <= {trace.name for trace in figure.data}
    dots = [trace for trace in figure.data if trace.mode == "markers" and trace.marker.size == 5]
    assert sum(len(trace.x) for trace in dots) == 6 + 8 + 9
    assert len({x for trace in dots for x in trace.x}) == 2 + 3 + 3, "dots of two lines are on each other"
    legend = [trace for trace in figure.data if trace.showlegend]
    assert [trace.name for trace in legend] == [NARROW, MIDDLE, WIDE, "not every seed", "no seed"]
    assert [trace.marker.symbol for trace in legend[:3]] == ["circle", "square", "diamond"]
    for words in ("Small dots", "A hollow mark", "A hollow triangle", "its period p"):
        assert words in chart.caption
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.yaxis.ticktext == ("2", "5", "10", "20")


def test_bandwidths_are_on_a_logarithmic_axis_with_a_line_for_each_policy():
    sweep = a_sweep()
    figure = draw_figure(bandwidth_chart(sweep.comparisons, THROUGHPUT, slug="a", title="b"))
    lines = lines_of(figure)
    assert list(lines) == ["ssp:0", "ssp:4,period=3", "ssp:inf"]
    assert list(lines["ssp:0"].x) == [1e8, 1e9, 1e10]
    assert lines["ssp:0"].y[0] == pytest.approx(1000 / 21)
    assert list(figure.layout.xaxis.ticktext) == ["100<br>Mbit/s", "1<br>Gbit/s", "10<br>Gbit/s"]


def test_bandwidths_that_are_close_have_one_label():
    times_s = {name: {"bsp": [1.0]} for name in (NARROW, "105 Mbit/s", MIDDLE)}
    figure = draw_figure(bandwidth_chart(a_sweep(times_s).comparisons, TIME, slug="a", title="b"))
    assert list(figure.layout.xaxis.ticktext) == ["100<br>Mbit/s", "1<br>Gbit/s"]


def test_bounds_are_in_order_and_told_apart_also_where_other_options_differ():
    of_it: dict[str, list[float | None]] = {
        policy: [1.0] for policy in ("ssp:inf", "grid:1x4", "bsp", "ssp:8,weight=inverse", "ssp:8", "ssp:2")
    }
    comparisons = a_sweep({MIDDLE: of_it}).comparisons
    assert bound_policies(comparisons) == ["ssp:2", "ssp:8", "ssp:8,weight=inverse", "ssp:inf"]
    figure = draw_figure(bound_chart(comparisons, TIME, slug="a", title="b"))
    assert figure.layout.xaxis.ticktext == ("2", "8", "8,<br>weight=inverse", "inf")
    assert point_at(comparisons[MIDDLE], "asp", TIME) is None


@pytest.mark.parametrize(
    ("times_s", "slugs"),
    [
        (TIMES_S, ["time-bound", "time-bandwidth", "throughput"]),
        ({MIDDLE: TIMES_S[MIDDLE]}, ["time-bound", "throughput"]),
        ({MIDDLE: {"bsp": [1.0], "asp": [1.0]}, WIDE: {"bsp": [1.0]}}, ["time-bandwidth", "throughput"]),
        ({MIDDLE: {"bsp": [1.0], "grid:2x2": [1.0]}, WIDE: {"grid:2x2": [1.0]}}, ["time-bandwidth", "throughput"]),
        ({MIDDLE: {"bsp": [1.0]}}, []),
    ],
)
def test_only_figures_that_there_is_data_for(times_s: dict[str, dict[str, list[float | None]]], slugs: list[str]):
    assert [figure.slug for figure in sweep_charts_of(a_sweep(times_s))] == slugs


def test_the_page_is_escaped_and_asks_for_nothing():
    page = re.sub(r"<script.*?</script>", "", render_sweep_page(a_sweep()), flags=re.DOTALL)
    assert "cluster &lt;4x1gbe&gt;" in page
    assert not re.search(r'(?:src|href)="', page)
    assert "$" not in page


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_in_a_browser_has_room_for_every_label(browser: Browser, tmp_path: Path):
    wide = {
        f"ssp:{bound}": [times_s * 2.0, None] for bound, times_s in zip((0, 1, 2, 4, 8, 16), range(1, 7), strict=True)
    }
    page_path = tmp_path / "report.html"
    page_path.write_text(render_sweep_page(a_sweep({**TIMES_S, "40 Gbit/s": wide})), encoding="utf-8")
    for width in (400, 1280):
        with opened(browser, width=width) as page:
            load(page, page_path)
            check_figures(page, width=width)
