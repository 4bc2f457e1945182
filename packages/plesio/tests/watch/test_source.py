"""Finding a run and looking at it: at a real job while it goes on, and at its files afterwards."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import plesio
from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError, TransportError
from plesio.core.results import write_results
from plesio.runtime.transport import JobKeys, RunningJob
from plesio.runtime.transport.job_secret import SECRET_VARIABLE, secret_of_user
from plesio.testing import LocalJob
from plesio.watch import LiveRun, NoRunYetError, RunView, Watched, await_run, find_run
from support.watched import a_result, times

PATIENCE_S = 60.0


def train(folder: str) -> None:
    """Train until the file `stop` is there."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with plesio.join(model, optimizer, policy="bsp", trace=Path(folder, "trace"), total_samples=10**9) as session:
        while not session.evaluate(lambda: float(Path(folder, "stop").exists())):
            for _ in range(5):
                loss = model(torch.ones(2, 4)).square().mean()
                loss.backward()
                session.step(loss, samples=2)
                time.sleep(0.002)


def noted(name: str, *, secret_of: str | None = None, **changes: object) -> RunningJob:
    keys = JobKeys.derive(secret_of_user(secret_of or name))
    addresses = keys.sealed({"job": name, "control": "tcp://127.0.0.1:1"})
    return RunningJob(**{"job": name, "meeting": "127.0.0.1:7", "starter": None, "addresses": addresses, **changes})


def until(watched: Watched, found: Callable[[RunView], bool]) -> RunView:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        view = watched.look()
        if view is not None and found(view):
            return view
        assert time.monotonic() < deadline_s, view
        time.sleep(0.05)


def test_a_job_is_seen_while_it_goes_on_by_its_folder_or_its_address_and_afterwards_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with LocalJob(2) as job:
        monkeypatch.setenv(SECRET_VARIABLE, job._secret)
        for rank in range(2):
            job.start(rank, Path(__file__), "train", folder=str(tmp_path))
        deadline_s = time.monotonic() + PATIENCE_S
        while not (jobs := [one for one in RunningJob.all() if one.folder is not None]):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        address = jobs[0].meeting
        by_folder, by_address = find_run(str(tmp_path)), find_run(address)
        with pytest.MonkeyPatch.context() as elsewhere:
            elsewhere.setattr(RunningJob, "all", list)
            by_store = find_run(address)
        try:
            for watched in (by_folder, by_address, by_store):
                view = until(watched, lambda view: len(view.workers) == 2 and view.steps > 20)
                assert (view.status, view.in_force, view.total_samples) == ("running", "bsp", 10**9)
                assert {row.state for row in view.workers} <= {"training", "evaluating"}
                assert view.metrics[0][1] == 0.0
                assert view.loss is not None
            (tmp_path / "stop").touch()
            assert {one.exit_status for one in job.wait(timeout_s=PATIENCE_S).values()} == {0}
            over = until(by_address, lambda view: view.status == "finished")
        finally:
            for watched in (by_folder, by_address, by_store):
                watched.close()
        assert by_address.over
        assert "this run is over: its last state" in over.note
        last = find_run(str(tmp_path / "trace")).look()
        assert last is not None
        assert (last.status, last.steps) == ("finished", over.steps)


def test_notes_are_of_jobs_that_can_be_asked_and_whose_server_lives():
    job = noted("mine")
    others = [noted("others", secret_of="unknown"), noted("killed", pid=2**22 + 1)]
    for one in (job, *others):
        one.announce()
    try:
        assert RunningJob.all() == [job]
        watched = find_run(None)
        assert isinstance(watched, LiveRun)
        watched.close()
        second = noted("second", meeting="127.0.0.1:8", folder="/runs/second")
        second.announce()
        with pytest.raises(ConfigError, match=r"2 runs are under way .*127.0.0.1:7, 127.0.0.1:8 \(/runs/second\)"):
            find_run(None)
        second.withdraw()
    finally:
        for one in (job, *others):
            one.withdraw()
    assert RunningJob.all() == []


def test_a_job_of_plesio_run_is_asked_with_the_secret_of_its_starter():
    job = noted("named", secret_of="starter", starter="starter")
    assert job.secret() == secret_of_user("starter")
    assert noted("named", secret_of="starter").secret() is None


def test_a_run_that_has_not_come_up_is_waited_for_and_a_line_says_so():
    job, lines = noted("mine", folder="/runs/mine"), []

    def tell(line: str) -> None:
        lines.append(line)
        job.announce()

    for where in (None, "/runs/mine"):
        try:
            await_run(where, patience_s=PATIENCE_S, tell=tell).close()
        finally:
            job.withdraw()
    assert [line.partition(". ")[2] for line in lines] == ["Waiting 60 s for one to come up (Ctrl-C ends the wait)"] * 2
    with pytest.raises(NoRunYetError):
        await_run(None, patience_s=0.0, tell=tell)
    assert len(lines) == 2


def test_without_a_run_one_line_says_what_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(NoRunYetError, match="no run whose workers have joined is under way on this machine"):
        find_run(None)
    with pytest.raises(TransportError, match=r"cannot watch 127\.0\.0\.1:1: "):
        find_run("127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"write 127\.0\.0\.1:41234"):
        find_run("41234")
    assert invoke(["watch", str(tmp_path), "--once"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no run of this machine writes to" in error
    assert "write the folder given as trace=" in error


def test_a_folder_without_results_tells_what_it_has(tmp_path: Path):
    (tmp_path / "over").mkdir()
    write_results(tmp_path / "over" / "results.json", [a_result(times(0, steps=5, compute_s=1.0))])
    with pytest.raises(NoRunYetError, match=f"of one that is over write {tmp_path}/over$"):
        find_run(str(tmp_path))
    (tmp_path / "trace-0.jsonl").touch()
    with pytest.raises(NoRunYetError, match="a run that was cut off before its results"):
        find_run(str(tmp_path))


def test_a_run_that_is_over_is_shown_in_its_last_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_results(
        tmp_path / "results.json",
        [a_result(times(0, steps=50, compute_s=1.0), status="failed", error="worker 1 was lost", lost_workers=(1,))],
    )
    for options in (["--once"], []):
        assert invoke(["watch", str(tmp_path), *options]) == 0
        shown = capsys.readouterr().out
        assert "this run is over: its last state" in shown
        assert "worker 1 was lost" in shown
    assert os.sep in shown
    for option in (["--page"], ["--port", "0"]):
        assert invoke(["watch", str(tmp_path), "--once", *option]) == 2
        assert "--once shows the state here and ends" in capsys.readouterr().err


def test_of_several_runs_the_last_is_shown_and_the_others_are_told_of(tmp_path: Path):
    write_results(tmp_path / "results.json", [a_result(times(0, steps=5, compute_s=1.0))] * 3)
    view = find_run(str(tmp_path)).look()
    assert view is not None
    assert f"the last of 3 runs in {tmp_path}/results.json, which are over; plesio report" in view.note
