import dataclasses
import io

import pytest
from rich.console import Console

from plesio.core.results import RunResult
from plesio.report.summarise import compare_runs
from plesio.report.table import render_comparison


def printed(runs: list[RunResult], *, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render_comparison(compare_runs(runs)))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_figure_is_cut_off(all_runs: list[RunResult], width: int):
    text = printed(all_runs, width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_each_policy_has_a_row_and_a_sentence(all_runs: list[RunResult]):
    text = printed(all_runs, width=160)
    for summary in compare_runs(all_runs).policies:
        assert sum(line.startswith(summary.policy + " ") for line in text.splitlines()) == 3
        assert summary.time_s is not None
        assert f"{summary.time_s.mean:.1f} ± " in text


def test_text_that_looks_like_markup_is_printed_as_it_is(all_runs: list[RunResult]):
    runs = [dataclasses.replace(run, policy=f"[red]{run.policy}[/red]") for run in all_runs]
    assert "[red]asp[/red]" in printed(runs, width=200)


def test_there_is_no_target_column_without_a_target(all_runs: list[RunResult]):
    runs = [dataclasses.replace(run, target=None, time_to_target_s=None) for run in all_runs]
    assert "to 97.0 %" in printed(all_runs, width=160)
    assert "97.0 %" not in printed(runs, width=160).splitlines()[0]
