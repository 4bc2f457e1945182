"""Differential: runs of every policy against what they came to when they were recorded (`recorded/renew.py`)."""

import json
from pathlib import Path
from typing import Any

import pytest

from plesio.policies import read_log, verify, write_log
from support.recorded_runs import RUNS, capability, digests_of, train

HERE = Path(__file__).parent / "recorded"
RECORDED: dict[str, Any] = json.loads((HERE / "digests.json").read_text(encoding="utf-8"))
TOLERANCE = 1e-4
"""Relative, of numbers where sums are rounded in another way."""


def assert_alike(found: Any, recorded: Any) -> None:
    """Equal but for how numbers were rounded."""
    if isinstance(recorded, dict):
        assert found.keys() == recorded.keys()
        for key, value in recorded.items():
            assert_alike(found[key], value)
    elif isinstance(recorded, list):
        assert len(found) == len(recorded)
        for mine, theirs in zip(found, recorded, strict=True):
            assert_alike(mine, theirs)
    elif isinstance(recorded, float):
        assert found == pytest.approx(recorded, rel=TOLERANCE, abs=TOLERANCE**2, nan_ok=True)
    else:
        assert found == recorded


def events(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_comes_to_what_it_came_to_before(name: str, tmp_path: Path):
    train(RUNS[name], tmp_path)
    found, recorded = digests_of(tmp_path), RECORDED["runs"][name]
    if capability() != RECORDED["capability"]:  # other processors add up in another order
        if RUNS[name].adaptive:
            pytest.skip(f"recorded with {RECORDED['capability']}, and its decisions depend on rounding")
        for key in ("status", "wall_s"):  # the length of a number's text has a say in virtual times
            assert_alike(found[key], recorded[key])
        assert_alike(events(tmp_path / "events.jsonl"), events(HERE / "logs" / f"{name}.jsonl"))
    else:
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
