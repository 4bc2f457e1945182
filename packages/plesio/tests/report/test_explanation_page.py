"""The page, the charts and the JSON of adaptive runs' explanations, whose events are made up."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from rich.console import Console

from plesio.core.records import to_values
from plesio.core.results import RunResult
from plesio.report.charts import draw_figure
from plesio.report.explanation import (
    Explanation,
    explanation_charts,
    explanation_of,
    recorded_changes,
    render_explanation,
    render_explanation_page,
)
from plesio.report.page import render_page
from plesio.report.summarise import compare_runs
from support.adaptive_logs import NETWORK, SLOW, SLOW_SHARES
from support.browser import check_figures, load, opened

MakeRun = Callable[..., RunResult]
EVIL = "<img src=x onerror=alert(1)>"


def printed(explanation: Explanation) -> str:
    console = Console(file=io.StringIO(), width=500, force_terminal=False)
    console.print(render_explanation(explanation))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_the_page_has_every_review_with_all_its_figures_known_or_not(network: Explanation):
    text = re.sub(r"<script.*?</script>", "", render_explanation_page(network), flags=re.DOTALL)
    assert [one.clock for one in network.reviews] == [5, 21, 38]
    assert "3 answers, each with its figures" in text
    assert "After 38 steps (1.52 s), local_sgd:2: local_sgd:2 has the most progress per second." in text
    assert "trial: excess 0.25, most 0.5, worth_low 0.85, worth_high 0.95" in text


def test_each_change_has_a_table_of_what_was_expected_and_what_came(network: Explanation):
    rows = [
        ("local_sgd:2 (chosen)", "20 ms", "0.80 to 1.00", "40 to 50"),
        ("bsp", "40 ms", "1.00 to 1.00", "25 to 25"),
        ("local_sgd:2, measured", "22.1 ms", "0.85 to 0.95", "38.5 to 43"),
    ]
    text, page = printed(network), render_explanation_page(network)
    for row in rows:
        assert re.search(" +".join(map(re.escape, row)), text), row
        assert re.search("".join(f"<t[dh][^>]*>{re.escape(cell)}</t[dh]>[^<]*" for cell in row), page), row


def test_an_explanation_is_json(network: Explanation):
    data = json.loads(json.dumps(to_values(network), allow_nan=False))
    assert data["chapters"][1]["change"]["before"] == "bsp"
    assert data["chapters"][1]["change"]["trial_end"]["excess"] == 0.25


def decisions() -> tuple[dict[str, Any], ...]:
    """Make decisions in the form of the ledger."""
    rows = [("bsp", "bsp", []), ("bsp", "bsp", list(SLOW_SHARES)), ("bsp", "local_sgd:2", list(SLOW_SHARES))]
    first, second, last = (
        {
            "at_s": 0.1, "clock": 5 + 16 * place, "before": before, "policy": policy, "shares": shares,
            "restore": False, "reason": f"it is {EVIL}", "inputs": {},
        }
        for place, (before, policy, shares) in enumerate(rows)
    )  # fmt: skip
    latest = {"at_s": 0.3, "clock": 53, "reason": "the noise is known now", "inputs": {"trial.excess": 0.25}}
    return first, second, {**last, "latest": latest}


def test_a_comparisons_page_tells_decisions_in_sentences(adaptive_run: MakeRun, make_run: MakeRun):
    run = adaptive_run(decisions=decisions())
    changes = recorded_changes(run)
    assert changes is not None
    assert [(one.clock, one.reshared) for one, _ in changes] == [(21, True), (37, False)]
    assert [None if latest is None else latest.clock for _, latest in changes] == [None, 53]
    page = render_page(compare_runs([make_run("bsp", 0), run]))
    assert "After 37 steps (1.48 s) it went from bsp to local_sgd:2, because it is &lt;img" in page
    assert "because they are not equally fast" in page
    assert "At the latest review, after 53 steps, it stayed with this because the noise is known now." in page
    assert '"inputs"' not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    unchanged = render_page(compare_runs([adaptive_run(decisions=decisions()[:1])]))
    assert "Nothing changed: all 40 steps ran under bsp, because it is &lt;img" in unchanged
    assert recorded_changes(adaptive_run(decisions=({"why": "because"},))) is None


def test_the_page_is_self_contained_and_escaped(adaptive_run: MakeRun):
    explanation = explanation_of(NETWORK, adaptive_run(task=EVIL, policy=EVIL, status="failed", error=EVIL))
    text = re.sub(r"<script.*?</script>", "", render_explanation_page(explanation), flags=re.DOTALL)
    assert "&lt;img" in text
    assert "<img" not in text
    assert not re.search(r'(?:src|href)="', text)
    assert EVIL in printed(explanation)


def test_the_slack_figure_draws_what_was_in_force(network: Explanation):
    slack, step_time, *_ = explanation_charts(network)
    assert slack.title == "The slack was 0 steps for 52 % of the run"
    assert step_time.title == "A step took 31.5 ms on average, 41 ms under bsp by prediction"
    figure = draw_figure(slack)
    lines = {trace.name: trace for trace in figure.data}
    assert set(lines) == {"in force", ""}
    assert list(lines["in force"].x) == [0, 5, 5, 21, 21, 38, 38, 40]
    assert list(lines["in force"].y) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert list(figure.layout.yaxis.ticktext) == ["0", "1", "3"]
    assert "is worth 0.80 to 1.00" in lines[""].customdata[0].replace("<br>", " ")


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_in_a_browser_has_room_for_every_label(browser: Browser, tmp_path: Path, adaptive_run: MakeRun):
    path = tmp_path / "explain.html"
    path.write_text(render_explanation_page(explanation_of(SLOW, adaptive_run(steps=37))), encoding="utf-8")
    for width in (400, 1280):
        with opened(browser, width=width) as page:
            load(page, path)
            check_figures(page, width=width)
