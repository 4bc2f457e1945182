"""The twins of pipelines, experts, states and cut layers, in a reduced form: structure and laws, no times."""

import json
import math

import pytest

from plesio.bench.namespaces import why_no_namespaces
from plesio.bench.twins import TWINS
from plesio.bench.twins.checkpointing import measure_states
from plesio.bench.twins.mixture_of_experts import measure_routings
from plesio.bench.twins.pipeline import measure_pipelines
from plesio.bench.twins.tensor_parallel import measure_cuts
from plesio.studies.measured import Measured

NO_NAMESPACES = why_no_namespaces()
needs_hosts = pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))


def check(measured: Measured, *, study: str) -> None:
    assert measured.study == study
    assert study in TWINS
    assert measured.finding.endswith(".")
    assert measured.setting.endswith(".")
    assert measured.charts
    for one in measured.predictions:
        if one.scale == "relative":
            assert 0 < one.measured < math.inf
            assert 0 < one.predicted < math.inf
    json.dumps(measured.to_json())


def test_pipeline():
    measured = measure_pipelines(
        on_step=lambda what: None, micro_batches=(1, 8), schedules=("gpipe", "1f1b", "interleaved", "zbv"), repeats=1
    )
    check(measured, study="pipeline")
    bubbles = [one for one in measured.predictions if one.quantity == "bubble"]
    assert len(bubbles) == 2 * 2 * 2 + 2
    assert all(0 <= one.measured < 1 for one in bubbles)
    waiting = [one for one in bubbles if one.setting["stages"] == "4 waiting"]
    assert waiting[0].measured > 0.7  # one micro-batch in four stages: three of four always wait


def test_mixture_of_experts():
    measured = measure_routings(
        on_step=lambda what: None, fitted_tokens=(16, 64, 256), tokens=(64,), skews=(0.0, 1.0), repeats=2
    )
    check(measured, study="mixture-of-experts")
    assert len(measured.predictions) == 4


@needs_hosts
def test_tensor_parallel_sends_what_it_should():
    measured = measure_cuts(
        on_step=lambda what: None, tokens=(32, 64), fitted_bytes=(10_000, 400_000, 1_000_000), repeats=2
    )
    check(measured, study="tensor-parallel")
    sizes = [one for one in measured.predictions if one.quantity == "sent (bytes)"]
    assert len(sizes) == 6
    assert all(abs(one.error) < 0.02 for one in sizes)  # Gloo's own headers


def test_checkpointing():
    measured = measure_states(
        on_step=lambda what: None, fitted_bytes=(120_000, 600_000, 1_200_000), other_bytes=(480_000,), repeats=2
    )
    check(measured, study="checkpointing")
    assert [one.quantity for one in measured.predictions] == 2 * ["write (s)", "read (s)", "best interval (s)"]
