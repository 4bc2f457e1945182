"""An estimate's page in a real browser."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from plesio_planning.estimate import find_model, parse_machine
from plesio_planning.estimate.estimate import Estimate
from plesio_planning.estimate.frontier import find_frontier
from plesio_planning.estimate.sensitivity import tornado
from plesio_planning.report.estimate import render_estimate_page
from support.browser import check_figures, load, opened


@pytest.mark.slow
@pytest.mark.browser
def test_figures_have_room_for_their_labels(browser: Browser, tmp_path: Path):
    machines = [parse_machine("8xa100"), parse_machine("16xa100")]
    frontier = find_frontier(find_model("llama-2-7b"), machines, global_batch=64, tokens=1e10)
    training = frontier.on(machines[0])
    estimate = Estimate(training=training, sensitivities=tornado(training), frontier=frontier)
    file = tmp_path / "estimate.html"
    file.write_text(render_estimate_page(estimate))
    for width in (400, 1280):
        with opened(browser, width=width) as page:
            load(page, file)
            assert page.eval_on_selector_all("figure", "all => all.length") == len(estimate.charts)
            check_figures(page, width=width)
