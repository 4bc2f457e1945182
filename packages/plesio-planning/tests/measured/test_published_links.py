"""Steps over shaped links that others measured: nothing is fitted to the rows that are held out."""

import json
from pathlib import Path
from typing import Any

import pytest

from plesio_planning.cli.validation import validate_published


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    assert validate_published(folder / "errors.json", out=folder / "page", overwrite=False) == 0
    return folder


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "errors.json").read_text(encoding="utf-8"))["rows"]
    return found


def test_mean_steps_are_within_8_percent_in_the_rows_that_are_held_out(rows: list[dict[str, Any]]):
    held_out = [row for row in rows if row["rows"] == "held out" and "mean" in row["quantity"]]
    assert {row["policy"] for row in held_out} == {"ddp", "local_sgd"}
    assert len(held_out) == 10
    assert max(abs(row["error"]) for row in held_out) < 0.08


def test_rows_that_are_held_out_come_first_and_the_worst_at_the_top(rows: list[dict[str, Any]]):
    order = [(row["rows"] != "held out", -abs(row["error"])) for row in rows]
    assert order == sorted(order)
    assert {row["policy"] for row in rows if row["rows"] == "fitted"} == {"diloco"}


def test_one_message_at_the_bandwidth_has_ddp_a_quarter_too_fast_or_more(rows: list[dict[str, Any]]):
    assert all(row["baseline_error"] < -0.24 for row in rows if row["policy"] == "ddp")


def test_there_is_a_page(folder: Path):
    assert "measured by others" in (folder / "page" / "report.html").read_text(encoding="utf-8")
