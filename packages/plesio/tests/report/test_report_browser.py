"""The page in a real browser."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from plesio.core.results import RunResult, write_results
from plesio.report.build import build_report
from support.browser import bad_labels, check_figures, load, opened

FIGURES = {"time", "final-metric", "time-to-target", "bytes", "metric", "loss", "worker-times", "staleness"}

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, all_runs: list[RunResult]) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_results(folder / "results.json", all_runs)
    return build_report(folder)


@pytest.mark.parametrize("width", [pytest.param(400, marks=pytest.mark.slow), 1280])
def test_every_figure_is_drawn_offline_with_room_for_every_label(browser: Browser, report: Path, width: int):
    with opened(browser, width=width) as page:
        load(page, report)
        assert set(page.eval_on_selector_all("figure", "all => all.map(figure => figure.id)")) == FIGURES
        drawn = page.eval_on_selector_all(
            "figure", "all => all.map(f => f.querySelectorAll('.main-svg .trace').length)"
        )
        assert min(drawn) >= 3
        check_figures(page, width=width)


def test_at_500_pixels_the_page_keeps_its_width_and_wide_tables_scroll(browser: Browser, report: Path):
    with opened(browser, width=500) as page:
        load(page, report)
        check_figures(page, width=500)
        page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 500
        inside, scrolls = page.evaluate(
            "() => { const all = [...document.querySelectorAll('table')]; return ["
            " all.every(table => table.closest('.scroll').getBoundingClientRect().right <= 500),"
            " all.some(table => table.closest('.scroll').scrollWidth > table.closest('.scroll').clientWidth)] }"
        )
        assert inside
        assert scrolls, "no table of this page is wide enough to be scrolled"


def test_text_in_figures_follows_the_readers_dark_mode_and_the_check_for_overlaps_finds_one(
    browser: Browser, report: Path
):
    colours = []
    with opened(browser, width=800) as page:
        load(page, report)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            ink, label = page.evaluate(
                "[getComputedStyle(document.body).color,"
                " getComputedStyle(document.querySelector('.main-svg .xtick text')).fill]"
            )
            assert label == ink
            colours.append(ink)
        page.evaluate(
            """() => { const [one, other] = document.querySelectorAll('#time .ytick text');
            for (const name of ['x', 'y', 'transform']) other.setAttribute(name, one.getAttribute(name)); }"""
        )
        assert bad_labels(page) != []
    assert colours[0] != colours[1]
