"""Pipelines, experts, states and cut layers, measured in a reduced form: laws that hold on a busy machine too."""

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plesio.core.errors import PlesioError
from plesio.testbed.namespaces import why_no_namespaces
from plesio.testbed.network import BUCKET_S
from plesio_planning.measured import checkpointing, mixture_of_experts, pipeline, tensor_parallel
from plesio_planning.measured.checkpoint_intervals import STEP_S, WaitingWork, measure_intervals
from plesio_planning.measured.checkpointing import measure_states, state_times
from plesio_planning.measured.failing_runs import run_with_failures
from plesio_planning.measured.mixture_of_experts import BYTES_PER_S, CAPACITY, NUM_EXPERTS, TOKEN_BYTES, routed
from plesio_planning.measured.pipeline import FORWARD_S
from plesio_planning.measured.twin import Twin
from plesio_planning.studies import find_study
from plesio_planning.studies.measured import Measured

NO_NAMESPACES = why_no_namespaces()
needs_hosts = pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))


def check(measured: Measured, *, study: str) -> None:
    assert measured.study == study
    assert find_study(study)
    assert measured.finding.endswith(".")
    assert measured.setting.endswith(".")
    assert measured.charts
    for one in measured.predictions:
        if one.scale == "relative":
            assert 0 < one.measured < math.inf
            assert 0 < one.predicted < math.inf
    json.dumps(measured.to_json())


def test_pipeline():
    measured = pipeline.measure(Twin(lambda what: None), (1,), ("gpipe", "1f1b", "zbv"), 1, 5, num_micro_batches=8)
    check(measured, study="pipeline")
    bubbles = [one for one in measured.predictions if one.quantity == "bubble"]
    assert len(bubbles) == 2 * 2 * 2 + 1
    assert all(0 <= one.measured < 1 for one in bubbles)
    for one in bubbles:
        if one.setting["micro-batches"] == "1":  # in p stages: all but one always wait
            assert one.measured > 1 - 1 / int(one.setting["stages"].split()[0]) - 1e-6
    for one in measured.predictions:
        if (
            one.quantity == "iteration (s)"
            and "waiting" in one.setting["stages"]
            and one.setting["schedule"] in ("gpipe", "1f1b")
        ):
            # a sleep never ends early
            assert one.measured >= (int(one.setting["micro-batches"]) + 4 - 1) * 3 * FORWARD_S


@pytest.mark.slow
def test_mixture_of_experts():
    measured = mixture_of_experts.measure(Twin(lambda what: None), (16, 64, 256), 2, tokens_per_device=256, skew=1.0)
    check(measured, study="mixture-of-experts")
    assert len(measured.predictions) == 2 * 4 * 2
    found = {tuple(one.setting.values()): one for one in measured.predictions}
    even, skewed = found["262 kB", "0", "none"], found["262 kB", "1", "none"]
    assert skewed.predicted / skewed.baseline > even.predicted / even.baseline, "its busiest rank receives twice a part"
    for skew in (0.0, 1.0):
        for capacity in (None, CAPACITY):
            tokens = routed(256, skew, capacity, routing={"num_experts": NUM_EXPERTS}) // TOKEN_BYTES
            last = min(max(sent, received) for sent, received in zip(tokens.sum(1), tokens.sum(0), strict=True))
            if NO_NAMESPACES is None:
                one = found["262 kB", f"{skew:g}", f"{capacity:g}" if capacity else "none"]
                assert one.measured > last * TOKEN_BYTES / BYTES_PER_S - BUCKET_S


@needs_hosts
def test_tensor_parallel_sends_what_it_should():
    measured = tensor_parallel.measure(Twin(lambda what: None), (1,), (10_000, 200_000, 500_000), 2, sequence_length=32)
    check(measured, study="tensor-parallel")
    sizes = [one for one in measured.predictions if one.quantity == "sent (bytes)"]
    assert len(sizes) == 3
    for one in sizes:  # Gloo's own headers come to that
        assert one.predicted < one.measured < 1.02 * one.predicted
    times = [one for one in measured.predictions if one.quantity == "time (s)"]
    for time, sent in zip(times, sizes, strict=True):
        assert time.setting == sent.setting
        assert time.measured > sent.predicted / BYTES_PER_S - BUCKET_S


def test_checkpointing():
    twin = Twin(lambda what: None)
    costs = measure_states(twin, (120_000, 600_000, 1_200_000), (480_000,), repeats=2)
    costs.predict(twin, (480_000,), most=1_200_000)
    assert [one.quantity for one in twin.predictions] == 2 * ["write (s)", "read (s)"]


def test_the_best_interval_is_found_by_runs():
    runs = measure_intervals(
        on_step=lambda what: None, checkpoint_s=0.002, mtbf_s=0.4, work_s=0.5, interval_s=0.1, factors=(1.0, 4.0)
    )
    assert runs.work_s > 0.5
    assert 0.1 * runs.work_s / 0.5 in [pytest.approx(interval_s) for interval_s in runs.runs]
    for interval_s, run in runs.runs.items():
        assert run.total_s > runs.work_s * 0.9
        assert len(run.restarts_s) in (run.num_failures, run.num_failures - 1)  # it may be killed before it is back
        assert len(run.writes_s) >= runs.work_s / interval_s - 2


def test_states_and_runs_are_one_measurement():
    sizes = (120_000, 600_000, 1_200_000), (300_000,)
    asked = {"checkpoint_s": 0.002, "cluster_mtbf_s": 0.4, "work_s": 0.5, "checkpoint_interval_s": 0.1}
    measured = checkpointing.measure(Twin(lambda what: None), *sizes, 1, (1.0, 4.0), **asked)
    check(measured, study="checkpointing")
    best = next(one for one in measured.predictions if one.quantity == "best interval (s)")
    assert best.predicted < best.baseline, "Young's rule is the longer one"


def test_a_run_goes_on_from_its_last_state(tmp_path: Path):
    run = run_with_failures(
        WaitingWork, arguments=(1000,), num_steps=40, steps_per_state=5, gaps_s=(0.15, 60.0), folder=tmp_path
    )
    assert run.num_failures == len(run.restarts_s) == 1
    assert len(run.writes_s) >= 7
    assert run.total_s > 40 * STEP_S


def test_a_run_that_fails_by_itself_says_so(tmp_path: Path):
    with pytest.raises(PlesioError, match="status 1"):
        run_with_failures(int, arguments=("seven",), num_steps=1, steps_per_state=1, gaps_s=(), folder=tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sharded", "rank"), [(False, 0), (False, 1), (True, 0), (True, 1)])
def test_a_state_has_the_bytes_that_it_is_said_to_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rank: int, *, sharded: bool
):
    written: list[int] = []
    monkeypatch.setattr(checkpointing.os, "fsync", lambda file: written.append(os.fstat(file).st_size))
    monkeypatch.setattr(checkpointing.dist, "barrier", lambda group: None)
    group: Any = SimpleNamespace(rank=rank, size=2, process_group=None)
    writes, reads = state_times(group, folder=str(tmp_path), num_bytes=1_200_000, sharded=sharded, repeats=2)
    assert len(writes) == len(reads) == 2
    expected = 600_000 if sharded else 1_200_000 if rank == 0 else 0
    assert len(written) == (3 if expected else 0)
    for size in written:
        assert 0 <= size - expected < 4_000  # what torch.save writes beside the numbers
