"""The page in a real browser. There is no skip without one: a page nobody has opened is not tested."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from plesio.core.results import RunResult, write_results
from plesio.report.build import build_report

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
]
FIGURES = {"time", "final-metric", "time-to-target", "bytes", "metric", "loss", "worker-times", "staleness"}

CUT_OFF = """all => all.flatMap(figure => {
    const frame = figure.getBoundingClientRect();
    return [...figure.querySelectorAll('.main-svg text')]
        .filter(text => text.textContent && !text.closest('.hoverlayer'))
        .map(text => [text.textContent, text.getBoundingClientRect()])
        .filter(([, box]) => box.width > 0 && (box.left < frame.left || box.right > frame.right))
        .map(([text]) => figure.id + ': ' + text);
})"""
OVERLAPPING = """all => all.flatMap(figure => {
    const labels = [...figure.querySelectorAll('.main-svg text')]
        .filter(text => text.textContent.trim() && !text.closest('.hoverlayer'))
        .map(text => ({ text: text.textContent, box: text.getBoundingClientRect() }))
        .filter(({ box }) => box.width > 0);
    // A box is taller than its letters: 3 pixels of two lines' boxes may be shared.
    const hit = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom;
    return labels.flatMap((one, place) => labels.slice(place + 1)
        .filter(other => hit(one.box, other.box))
        .map(other => figure.id + ': ' + one.text + ' / ' + other.text));
})"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM.exists(), "this test needs Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, all_runs: list[RunResult]) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_results(folder / "results.json", all_runs)
    return build_report(folder)


@contextmanager
def opened(browser: Browser, *, width: int) -> Iterator[Page]:
    """A page; that it complains about nothing and asks for nothing but itself is checked when it is left."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    requests: list[str] = []
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    yield page
    assert complaints == []
    assert requests == [page.url]
    context.close()


def load(page: Page, report: Path) -> None:
    page.goto(report.as_uri())
    page.wait_for_function(
        "() => { const all = document.querySelectorAll('figure'); return all.length > 0"
        " && [...all].every(figure => figure.querySelector('.main-svg .trace')) }"
    )


@pytest.mark.parametrize("width", [400, 1280])
def test_every_figure_is_drawn_offline_with_room_for_every_label(browser: Browser, report: Path, width: int):
    with opened(browser, width=width) as page:
        load(page, report)
        assert set(page.eval_on_selector_all("figure", "all => all.map(figure => figure.id)")) == FIGURES
        drawn = page.eval_on_selector_all(
            "figure", "all => all.map(f => f.querySelectorAll('.main-svg .trace').length)"
        )
        assert min(drawn) >= 3
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.eval_on_selector_all("figure", CUT_OFF) == []
        assert page.eval_on_selector_all("figure", OVERLAPPING) == []


def test_text_in_figures_follows_the_readers_dark_mode(browser: Browser, report: Path):
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
    assert colours[0] != colours[1]


def test_the_check_for_overlaps_finds_one(browser: Browser, report: Path):
    with opened(browser, width=800) as page:
        load(page, report)
        page.evaluate(
            """() => { const [one, other] = document.querySelectorAll('#time .ytick text');
            for (const name of ['x', 'y', 'transform']) other.setAttribute(name, one.getAttribute(name)); }"""
        )
        assert page.eval_on_selector_all("figure", OVERLAPPING) != []
