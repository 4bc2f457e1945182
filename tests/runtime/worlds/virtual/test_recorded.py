"""Differential: runs of every policy against what they came to when they were recorded (`recorded/renew.py`)."""

import json
from pathlib import Path
from typing import Any

import pytest

from plesio.policies import read_log, verify, write_log
from support.recorded_runs import RUNS, capability, digests_of, train

HERE = Path(__file__).parent / "recorded"
RECORDED: dict[str, Any] = json.loads((HERE / "digests.json").read_text(encoding="utf-8"))
ROUNDED = ("parameters_sha256", "results_sha256")
"""What depends on how sums are rounded; the rest does only where the loss has a say in the decisions."""


@pytest.mark.parametrize("name", RUNS)
def test_a_run_comes_to_what_it_came_to_before(name: str, tmp_path: Path):
    train(RUNS[name], tmp_path)
    found, recorded = digests_of(tmp_path), RECORDED["runs"][name]
    if capability() != RECORDED["capability"]:  # other processors add up in another order
        if RUNS[name].adaptive:
            pytest.skip(f"recorded with {RECORDED['capability']}, and its decisions depend on rounding")
        found, recorded = ({key: one[key] for key in one if key not in ROUNDED} for one in (found, recorded))
    assert found == recorded


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_log_replays_to_the_same_actions(name: str, tmp_path: Path):
    path = HERE / "logs" / f"{name}.jsonl"
    log = read_log(path)
    assert verify(log) is None
    write_log(tmp_path / "again.jsonl", log)
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


def test_every_recorded_run_is_run():
    assert RECORDED["runs"].keys() == RUNS.keys()
    assert {path.stem for path in (HERE / "logs").iterdir()} == set(RUNS)
