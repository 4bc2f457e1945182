"""Report pages in a real browser. Without one these tests are skipped, loudly; continuous integration has one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

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
BAD_LABELS = """all => all.flatMap(figure => {
    const frame = figure.getBoundingClientRect();
    const picture = figure.querySelector('.main-svg').getBoundingClientRect();
    const labels = [...figure.querySelectorAll('.main-svg text')]
        .filter(text => text.textContent.trim() && !text.closest('.hoverlayer'))
        .map(text => ({ text: text.textContent, box: text.getBoundingClientRect() }))
        .filter(({ box }) => box.width > 0);
    // A box is taller than its letters: 3 pixels of two lines' boxes may be shared.
    const hit = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom;
    const out = box => box.left < frame.left || box.right > frame.right
        || box.top < picture.top - 3 || box.bottom > picture.bottom + 3;
    return labels.flatMap((one, place) => labels.slice(place + 1)
        .filter(other => hit(one.box, other.box))
        .map(other => figure.id + ': ' + one.text + ' / ' + other.text)
        .concat(out(one.box) ? [figure.id + ': ' + one.text] : []));
})"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Started once: that takes longer than to open a page."""
    assert CHROMIUM.exists(), "this test needs Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


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


def load(page: Page, path: Path) -> None:
    """Open a file and wait until its figures are drawn."""
    page.goto(path.as_uri())
    page.wait_for_function(
        "() => { const all = document.querySelectorAll('figure'); return all.length > 0"
        " && [...all].every(figure => figure.querySelector('.main-svg .trace, .main-svg .hm')) }"
    )


def bad_labels(page: Page) -> list[str]:
    """Labels that overlap or leave their figure."""
    found: list[str] = page.eval_on_selector_all("figure", BAD_LABELS)
    return found


def check_figures(page: Page, *, width: int) -> None:
    """The page is no wider than its window, and every figure has room for its labels."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert bad_labels(page) == []
