"""Short forms of `make stress`: strangers and a hostile member, schedules, and faults of processes."""

import json
import os
from argparse import Namespace
from contextlib import ExitStack
from pathlib import Path

import pytest

from plesio.core.results import read_results
from plesio.runtime.coordinator.sampling import Sampling
from plesio.testing import LocalJob

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
NUM_CONNECTIONS, NUM_MESSAGES = 350, 40


def test_a_run_goes_on_and_all_that_does_not_belong_to_it_is_refused_and_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(os, "nice", lambda by: 0)  # it would be for all tests that follow
    from stress import measure

    found = measure(num_connections=NUM_CONNECTIONS, num_messages=NUM_MESSAGES, rate=1000.0, window_s=0.5)
    assert found["alive"]
    assert sum(found["refused"].values()) == NUM_CONNECTIONS + NUM_MESSAGES, found
    assert {"handshake", "ticket", "malformed", "oversize", "out_of_order", "foreign_generation"} <= set(
        found["refused"]
    )
    assert found["memory_grown_bytes"] < 2**26
    assert found["steps_per_s_attacked"] > 0


def machines(out: Path, *, schedules: int, policies: list[str] | None = None) -> int:
    from stress_machines import campaign

    settings = {"schedules": schedules, "seed": 0, "processes": 1, "policies": policies, "out": out, "no_save": True}
    return campaign(Namespace(**settings))


def test_schedules_by_chance_keep_all_laws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    assert machines(tmp_path, schedules=300) == 0
    assert "300 schedules, " in capsys.readouterr().out


def test_a_schedule_that_fails_is_written_and_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: samples that a worker reports as done are not entered."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from stress_machines import replay

    monkeypatch.setattr(Sampling, "finish", lambda sampling, worker, **_: sampling.answer())
    assert machines(tmp_path, schedules=4, policies=["asp"]) == 1
    assert "NOT MET" in capsys.readouterr().out
    [path, *_] = tmp_path.glob("schedule-0-*.jsonl")
    assert replay(path) == 1
    assert "wait for ever" in capsys.readouterr().out
    monkeypatch.undo()
    assert replay(path) == 0


@pytest.mark.slow
def test_a_server_that_is_killed_in_a_campaign_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(LocalJob, "forks_servers", False)  # as in a campaign
    from process_faults import Case, run_with
    from process_truth import problem

    with ExitStack() as stack:
        case = Case(kind="kill server", policy="local_sgd:4", num_workers=2, victim=0, at_s=0.1)
        run = run_with(case, tmp_path, stack, links=None)
    assert problem(run) is None
    [result] = read_results(run.trace / "results.json")
    assert [line for line in result.fallbacks if line.startswith("the job's server was lost at step ")]


def test_a_worker_that_is_killed_at_its_end_costs_no_totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from process_faults import Case, try_case

    case = Case(kind="kill worker at its end", policy="local_sgd:4", num_workers=2, victim=1, at_s=0.0)
    verdict = try_case(case, tmp_path / "ending", links=None)
    assert verdict.outcome == "survived", verdict.text


def test_faults_of_processes_are_survived_and_a_wrong_parameter_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from process_faults import Case, run_with
    from process_truth import problem

    (tmp_path / "worker").mkdir()
    with ExitStack() as stack:
        lost = Case(kind="kill worker", policy="bsp", num_workers=3, victim=1, at_s=0.1)
        run = run_with(lost, tmp_path / "worker", stack, links=None)
    assert problem(run) is None
    results = run.trace / "results.json"
    values = json.loads(results.read_text())
    values["runs"][0]["final_metric"] += 1
    results.write_text(json.dumps(values))
    assert "the parameter is" in str(problem(run))
