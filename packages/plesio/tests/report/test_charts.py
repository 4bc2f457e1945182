"""Every kind of chart, on a page and as a picture."""

import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from rich.console import Console

from plesio.core.charts import (
    Axis,
    BarChart,
    Chart,
    HeatMap,
    LineChart,
    Look,
    Panels,
    RangeChart,
    Series,
    Table,
    Timeline,
    TimelineBar,
)
from plesio.report.charts import draw_figure, draw_picture, terminal_table
from plesio.report.charts.colours import AMOUNTS, COLOURS, ink_on
from plesio.report.charts.rules import bar_texts, column_labels, extent, log_ticks, mark_rows
from plesio.report.document import Document, Folded, PageBlock, Pictures, section
from plesio.report.page_frame import render_document
from support.browser import check_figures, load, opened

TIME, SIZE = Axis(title="time (s)"), Axis(title="size (bytes)", log=True)
WORDS = {"title": "It grows", "caption": "Time by size."}
BARS = Series(name="", x=[0, 1], y=[2, 1], style="bars")
CHARTS: list[Chart] = [
    LineChart(
        slug="lines",
        **WORDS,
        x=SIZE,
        y=TIME,
        series=[
            Series(name="model", x=[1, 10, 100], y=[1, math.nan, 3], low=[0.5, 1, 2], high=[2, 3, 4]),
            Series(name="<best>", x=[10], y=[2], style="points", labels=["here & now"]),
            Series(name="bound", x=[1, 100], y=[1, 1], style="dashed"),
        ],
        marks={"crossover": 20.0},
    ),
    BarChart(slug="bars", **WORDS, axis=TIME, rows=["a", "b"], parts={"compute": [1, 2], "wait": [0, 1]}),
    RangeChart(slug="ranges", **WORDS, axis=TIME, base=5, rows=["bandwidth", "latency"], low=[7, 4.9], high=[4, 5.1]),
    HeatMap(
        slug="amounts", **WORDS, x=SIZE, y=TIME, columns=["1", "2"], rows=["a"], values=[[1, math.nan]], scale=TIME
    ),
    HeatMap(
        slug="winners",
        **WORDS,
        x=SIZE,
        y=TIME,
        columns=["1", "2"],
        rows=["a"],
        values=[[0, 1]],
        categories=["ring", "tree"],
        texts=[["r", "t"]],
    ),
    HeatMap(
        slug="many-columns",
        title="Each size has a winner of its own",
        caption="Winners.",
        x=Axis(title="a title of an axis that is longer than a narrow screen is wide (bytes)"),
        y=TIME,
        columns=[f"{2**place} bytes" for place in range(25)],
        rows=["a", "b"],
        values=[[place % 2 for place in range(24)] + [math.nan]] * 2,
        categories=["halving-doubling", "hierarchical"],
    ),
    HeatMap(
        slug="names",
        **WORDS,
        x=Axis(title="weighting"),
        y=Axis(title="staleness"),
        columns=["unweighted", "inverse", "exponential"],
        rows=["11 workers, one slow", "constant"],
        values=[[1, 2, 3], [4, 5, 6]],
        scale=Axis(title="iterations, share of the unweighted ones"),
    ),
    HeatMap(
        slug="many-texts",
        **WORDS,
        x=SIZE,
        y=TIME,
        columns=[str(place) for place in range(13)],
        rows=["0.001", "0.1"],
        values=[list(range(13))] * 2,
        scale=TIME,
        texts=[["1187"] * 13] * 2,
    ),
    LineChart(
        slug="marks",
        title="Marks stand above",
        caption="Two decades, and marks close to each other and to both ends.",
        x=SIZE,
        y=Axis(title="loss", log=True),
        series=[
            Series(name=f"staleness up to {place}", x=[3, 90, 200], y=[4 + place, 60 + place, 290])
            for place in range(8)
        ],
        marks={"the best": 3.0, "nearly the best": 3.5, "the default": 150.0, "too large": 200.0},
    ),
    LineChart(
        slug="mark-of-one-line",
        **WORDS,
        x=TIME,
        y=SIZE,
        series=[Series(name="alone", x=[1, 2], y=[1, 2])],
        marks={"ideal": 1.0, "expected": 1.8},
    ),
    Timeline(
        slug="times",
        **WORDS,
        axis=TIME,
        rows=["w0", "w1"],
        spans=[TimelineBar(0, 0, 1, "compute", "F1"), TimelineBar(1, 1, 2, "wait", hint="<step> 3")],
    ),
    LineChart(
        slug="rows",
        **WORDS,
        x=Axis(title="time (s)", from_zero=True),
        y=Axis(title="", ticks={0: "bsp", 1: "local_sgd:8,delay=4,exchange=store"}, down=True),
        series=[
            Series(name="", x=[2], y=[0], style="strokes", look=Look("#7d8590")),
            Series(name="", x=[1, 3], y=[0, 0], style="points", hints=["seed 0", "<seed> 1"], look=Look("#7d8590")),
            Series(name="", x=[2, 4], y=[1, 1], style="points", hollow=True),
        ],
    ),
    LineChart(
        slug="changes",
        **WORDS,
        x=Axis(title="steps", view=(0, 20)),
        y=Axis(title="slack (steps)", ticks={0: "0", 1: "1", 2: "any"}, view=(-0.3, 2.3)),
        series=[
            Series(name="allowed", x=[0, 10, 10, 20], y=[1, 1, 2, 2], style="steps"),
            Series(name="in force", x=[0, 10, 10, 20], y=[0, 0, 1, 1], style="steps", weight="thick"),
            Series(name="saved", x=[0, 20], y=[1, 2], low=[0, 1], high=[1, 2], style="band"),
            Series(name="run", x=[0, 20], y=[0, 1], weight="thin"),
            Series(name="nowhere", x=(), y=(), style="points", hollow=True),
        ],
        moments=[10],
        levels=[0.5],
    ),
    Panels(
        slug="histograms",
        **WORDS,
        charts=[
            LineChart(title=title, x=Axis(title="staleness", view=(-0.6, 1.6)), y=TIME, series=[BARS])
            for title in ("bsp", "<asp>")
        ],
    ),
    Panels(
        slug="grid",
        **WORDS,
        columns=2,
        charts=[
            LineChart(title=title, x=SIZE, y=SIZE, series=[Series(name="run", x=[1, 9], y=[2, 8], style="points")])
            for title in ("throughput", "waiting", "bytes")
        ],
    ),
    Panels(
        slug="workers",
        **WORDS,
        charts=[
            BarChart(title=title, axis=TIME, rows=["0", "1"], parts={"compute": [1, 2], "wait": [1, 0]})
            for title in ("bsp", "asp")
        ],
    ),
    HeatMap(
        slug="factors",
        **WORDS,
        x=Axis(title="to rank"),
        y=Axis(title=""),
        columns=["0", "1"],
        rows=["a", "b"],
        values=[[math.nan, 10], [1000, math.nan]],
        scale=Axis(title="MB/s", log=True),
        texts=[["", "10"], ["1000", ""]],
    ),
]


def page_of(*blocks: PageBlock) -> str:
    return render_document(Document(title="All", heading="All", sections=[section("All", *blocks, slug="all")]))


each_chart = pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.slug)


@pytest.fixture(scope="module")
def pictures() -> dict[str, bytes]:
    return {chart.slug: draw_picture(chart) for chart in CHARTS}


@pytest.mark.one_in(4)
@each_chart
def test_a_picture_of_every_kind_is_a_png_that_is_the_same_each_time(chart: Chart, pictures: dict[str, bytes]):
    picture = pictures[chart.slug]
    assert picture.startswith(b"\x89PNG")
    assert picture == draw_picture(chart)


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(Pictures(CHARTS))


@each_chart
def test_a_page_has_the_charts_words_and_its_data(chart: Chart, page: str):
    own = page.partition(f'<figure id="{chart.slug}"')[2].partition("<figure ")[0]
    assert all(words in own for words in (chart.title, chart.caption))
    figure = draw_figure(chart)
    assert len(figure.data) >= 1
    assert "<best>" not in figure.to_json(), "names are escaped"


def test_folded_charts_have_the_script_that_draws_them():
    inner = Folded(summary="Inner", blocks=[Pictures(CHARTS[:1])])
    assert 'id="plotly"' in page_of(Folded(summary="Outer", blocks=["Text.", inner]))
    assert 'id="plotly"' not in page_of(Folded(summary="Outer", blocks=["Text."]))


def test_a_block_that_the_page_cannot_show_is_an_error():
    with pytest.raises(AssertionError, match="no branch for a int"):
        page_of(Folded(summary="Outer", blocks=[3]))  # type: ignore[list-item]


def test_two_charts_that_differ_are_different_pictures(pictures: dict[str, bytes]):
    assert len(set(pictures.values())) == len(pictures) == len(CHARTS)


def test_names_that_do_not_fit_side_by_side_are_below_one_another_in_a_taller_picture():
    def height_px(names: Sequence[str]) -> int:
        series = [Series(name=name, x=[1, 2], y=[1, 2]) for name in names]
        picture = draw_picture(LineChart(slug="names", **WORDS, x=TIME, y=TIME, series=series))
        return int.from_bytes(picture[20:24], "big")

    one, side_by_side = height_px(["a"]), height_px(["a", "b", "c"])
    assert one < side_by_side < height_px([f"a name of a series that is as long as a sentence, {one}" for one in "abc"])


def test_a_label_stands_where_there_is_room():
    chart = LineChart(
        slug="front",
        **WORDS,
        x=TIME,
        y=TIME,
        series=[Series(name="machines", x=[1, 5, 9], y=[3, 2, 1], style="points", labels=["a", "b", "c"])],
    )
    (points,) = draw_figure(chart).data
    assert list(points.textposition) == ["top right", "top right", "bottom left"]


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.4), (2.1, 4.8), (3, 290), (0.02, 0.9), (1e-12, 1), (7, 1e7)])
def test_a_logarithmic_axis_has_a_few_ticks_that_all_are_on_it(low: float, high: float):
    ticks = log_ticks(low, high)
    assert 3 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_a_page_has_the_same_ticks_as_the_rule_says():
    chart = next(chart for chart in CHARTS if chart.slug == "marks")
    axis = draw_figure(chart).layout.yaxis
    low, high = extent([4.0, 290.0])
    assert list(axis.tickvals) == log_ticks(low, high) == [10, 30, 100, 300]
    assert [10**end for end in axis.range] == pytest.approx([low, high])


def test_names_below_columns_are_all_there_and_sizes_are_thinned_to_what_fits():
    for letters in (38, 90):
        sizes = [f"{2**place} kB" for place in range(25)]
        kept, tilted = column_labels(sizes, letters=letters)
        assert not tilted
        assert {0, 24} <= kept.keys()
        assert len(kept) * (max(map(len, sizes)) + 1) <= letters
        names = ["none", "inverse", "exponential", "capped at ten"]
        assert list(column_labels(names, letters=letters)[0].values()) == names


def test_words_of_marks_that_would_touch_are_in_different_rows():
    chart = next(chart for chart in CHARTS if isinstance(chart, LineChart) and chart.slug == "marks")
    rows = mark_rows(chart, letters=38)
    assert rows["the best"] != rows["nearly the best"]
    assert rows["the default"] != rows["too large"]
    assert rows["the best"] == 0


def test_lines_differ_by_shape_where_colours_come_again_and_a_line_alone_has_none():
    def traces(number: int) -> list[tuple[str, str]]:
        series = [Series(name=str(place), x=[1, 2], y=[1, 2]) for place in range(number)]
        figure = draw_figure(LineChart(slug="lines", **WORDS, x=TIME, y=TIME, series=series))
        return [(trace.marker.color, trace.marker.symbol) for trace in figure.data if "markers" in trace.mode]

    assert len(set(traces(20))) == 20
    assert len({symbol for _, symbol in traces(6)}) == 6
    assert traces(1) == []


def test_what_was_measured_looks_like_its_model_but_filled():
    series = [
        Series(name="ring", group="ring", x=[1, 2], y=[1, 2]),
        Series(name="tree", x=[1, 2], y=[2, 3]),
        Series(name="ring, measured", group="ring", x=[1], y=[1], style="points"),
    ]
    ring, tree, measured = draw_figure(LineChart(slug="r", **WORDS, x=TIME, y=TIME, series=series)).data
    assert (measured.marker.color, f"{measured.marker.symbol}-open") == (ring.marker.color, ring.marker.symbol)
    assert tree.marker.symbol != ring.marker.symbol


def test_series_of_one_name_are_one_entry_of_the_legend_also_in_panels():
    series = [
        Series(name="asp", x=[1, 2], y=[1, 2], weight="thin"),
        Series(name="asp", x=[1, 2], y=[1, 2]),
        Series(name="bsp", x=[1, 2], y=[2, 2]),
    ]
    chart = LineChart(slug="lines", **WORDS, x=TIME, y=TIME, series=series)
    for drawn in (chart, Panels(slug="panels", **WORDS, charts=[chart, chart])):
        entries = [trace for trace in draw_figure(drawn).data if trace.showlegend]
        assert [(trace.name, trace.line.width) for trace in entries] == [("asp", 2), ("bsp", 2)]


def test_what_a_reader_points_at_says_its_hint_or_its_place():
    by_slug = {chart.slug: draw_figure(chart) for chart in CHARTS}
    assert by_slug["rows"].data[1].customdata == ("seed 0", "&lt;seed&gt; 1")
    assert "time (s): %{x:.4g}" in by_slug["rows"].data[2].hovertemplate
    assert "%{y" not in by_slug["rows"].data[2].hovertemplate, "rows have names, not values"


def test_rows_and_steps_go_on_two_axes_as_they_say():
    rows = next(draw_figure(chart) for chart in CHARTS if chart.slug == "rows").layout
    assert list(rows.yaxis.ticktext) == ["bsp", "local_sgd:8,delay=4,<br>exchange=store"]
    assert list(rows.yaxis.range) == [1.5, -0.5]
    assert rows.xaxis.rangemode == "tozero"
    changes = next(draw_figure(chart) for chart in CHARTS if chart.slug == "changes")
    assert [trace.line.dash for trace in changes.data[:2]] == ["solid", "dash"]
    assert list(changes.layout.xaxis.range) == [0, 20]


def test_rows_of_which_none_has_a_point_are_drawn():
    rows = Axis(title="", ticks={0: "bsp (0/1)"}, down=True)
    nobody = LineChart(slug="target", **WORDS, x=Axis(title="time (s)", from_zero=True), y=rows, series=[])
    assert draw_figure(nobody).layout.yaxis.ticktext == ("bsp (0/1)",)
    assert draw_picture(nobody).startswith(b"\x89PNG")


def test_a_bar_says_its_value_on_a_page():
    chart = next(chart for chart in CHARTS if isinstance(chart, BarChart))
    *_, texts = draw_figure(chart).data
    assert [text.strip() for text in texts.text] == [text for _, text in bar_texts(chart)] == ["1", "3"]


def test_figures_fill_the_rows_of_a_page():
    wide, narrow = next(one for one in CHARTS if one.wide), CHARTS[0]

    def classes(*order: Chart) -> list[str]:
        return re.findall(r'<figure id="[^"]+" class="(\w+)"', page_of(Pictures(order)))

    assert classes(narrow, narrow, wide, narrow) == ["narrow", "narrow", "wide", "wide"]
    assert classes(narrow, wide, narrow, narrow, narrow) == ["wide", "wide", "narrow", "narrow", "wide"]


@pytest.mark.parametrize("colour", [*COLOURS, *AMOUNTS])
def test_words_on_a_colour_have_the_better_contrast(colour: str):
    """At least 4.5 to 1, as WCAG 2 asks for."""
    linear = [(int(colour[place : place + 2], 16) / 255) ** 2.2 for place in (1, 3, 5)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    contrast = 1.05 / (luminance + 0.05) if ink_on(colour) == "white" else (luminance + 0.05) / 0.05
    assert contrast > 4.5


def test_a_terminal_table_has_every_cell():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal_table(Table(title="Sizes:", headers=("ranks", "time"), rows=[("2", "[1] ms")])))
    text = console.export_text()
    assert all(cell in text for cell in ("Sizes:", "ranks", "time", "2", "[1] ms"))


def test_a_table_with_a_cell_too_few_is_our_mistake():
    with pytest.raises(AssertionError, match="a cell for each header"):
        Table(title="Sizes", headers=("ranks", "time"), rows=[("2",)])


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, pytest.param(1280, marks=pytest.mark.slow)])
def test_every_kind_is_drawn_offline_with_room_for_every_label(browser: Browser, tmp_path: Path, width: int):
    page_file = tmp_path / "page.html"
    page_file.write_text(page_of(Pictures(CHARTS)))
    with opened(browser, width=width) as page:
        load(page, page_file)
        assert page.eval_on_selector_all("figure", "all => all.length") == len(CHARTS)
        check_figures(page, width=width)
        heights = page.eval_on_selector_all(
            ".main-svg text", "all => all.map(one => one.getBoundingClientRect().height).filter(Boolean)"
        )
        assert min(heights) >= 8, "all that is written can be read"


@pytest.mark.browser
def test_a_folded_chart_fills_its_figure_when_it_is_opened(browser: Browser, tmp_path: Path):
    page_file = tmp_path / "page.html"
    page_file.write_text(page_of(Folded(summary="Outer", blocks=[Pictures(CHARTS[:1])])))
    with opened(browser, width=1280) as page:
        load(page, page_file)
        page.click("summary")
        page.wait_for_function(
            "() => document.querySelector('.main-svg').getBoundingClientRect().width"
            " === document.querySelector('.plot').clientWidth"
        )
        check_figures(page, width=1280)
