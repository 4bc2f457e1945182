"""A study's page in a real browser."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from plesio_planning.report.study import write_study
from plesio_planning.studies import find_study
from support.browser import load, opened


@pytest.mark.browser
def test_a_study_is_drawn_from_its_page_alone(browser: Browser, tmp_path: Path):
    with opened(browser, width=1280) as page:
        load(page, write_study(find_study("hierarchical").ask(), tmp_path))
        assert page.eval_on_selector_all("figure", "all => all.length") > 0
