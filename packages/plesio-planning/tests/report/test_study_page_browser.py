"""A study's page in a real browser, with the script that lies beside it and without."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from plesio.report.page_frame import SCRIPT_FILE
from plesio_planning.report.study import write_study
from plesio_planning.studies import find_study

pytestmark = pytest.mark.browser


@pytest.fixture
def study_page(tmp_path: Path) -> Path:
    return write_study(find_study("hierarchical").ask(), tmp_path)


def test_pictures_are_drawn_by_the_script_beside_the_page(browser: Browser, study_page: Path):
    requests: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.goto(study_page.as_uri())
    page.wait_for_function(
        "() => [...document.querySelectorAll('figure')].every(figure => figure.querySelector('.main-svg'))"
    )
    assert requests == [study_page.as_uri(), (study_page.parent / SCRIPT_FILE).as_uri()]
    context.close()


def test_a_page_without_its_script_says_what_it_needs(browser: Browser, study_page: Path):
    (study_page.parent / SCRIPT_FILE).unlink()
    context = browser.new_context()
    page = context.new_page()
    page.goto(study_page.as_uri())
    page.wait_for_function("() => document.querySelector('header').innerText.includes('plotly.min.js')")
    context.close()
