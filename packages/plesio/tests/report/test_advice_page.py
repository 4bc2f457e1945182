"""The page of the advisor, of a world of which all is known."""

import io
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from rich.console import Console

from plesio.advisor import Advice, FailureModel, advise
from plesio.report.advice import render_advice, render_advice_page
from support.advisor import Clock, KnownWorld, question, situation
from support.browser import check_figures, load, opened
from support.narrow import WIDTH, too_long


@pytest.fixture(scope="module")
def advice() -> Advice:
    world = KnownWorld(situation("4x1gbe", slow=2.0), Clock(), needs={"adaptive": 1.2}, seed_spread=0.1)
    failures = FailureModel(mtbf_s=3600.0, num_workers=4, state_bytes=4e6)
    return advise(question(world.at, failures=failures, price_per_hour=2.0), world, now_s=world.clock)


def test_texts_are_escaped(advice: Advice):
    page = render_advice_page(advice, recipe='name = "<b>"')
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_the_table_fits_80_columns(advice: Advice):
    console = Console(width=WIDTH, file=io.StringIO())
    console.print(render_advice(advice))
    assert too_long(console.file.getvalue()) == []  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1280])
def test_every_figure_is_drawn_with_room_for_every_label(browser: Browser, advice: Advice, tmp_path: Path, width: int):
    path = tmp_path / "advice.html"
    path.write_text(render_advice_page(advice, recipe=None), encoding="utf-8")
    with opened(browser, width=width) as page:
        load(page, path)
        figures = page.eval_on_selector_all("figure", "all => all.map(figure => figure.id)")
        assert figures == ["progress", "flip-bandwidth", "flip-imbalance", "flip-model-size", "flip-failures"]
        check_figures(page, width=width)
