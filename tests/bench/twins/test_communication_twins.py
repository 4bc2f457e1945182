"""The twins of the studies of communication, in a reduced form: structure and laws, no times."""

import json
import math

import pytest

from plesio.bench.namespaces import why_no_namespaces
from plesio.bench.twins import TWINS, measure_twin
from plesio.bench.twins.collectives import measure_collectives
from plesio.bench.twins.data_parallel import measure_data_parallel
from plesio.bench.twins.hierarchical import measure_hierarchical
from plesio.bench.twins.overlap import DEFAULT, measure_overlap
from plesio.core.errors import ConfigError
from plesio.studies.measured import Measured

NO_NAMESPACES = why_no_namespaces()
needs_hosts = pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))


def check(measured: Measured, *, study: str) -> None:
    assert measured.study == study
    assert study in TWINS
    assert measured.finding.endswith(".")
    assert measured.setting.endswith(".")
    assert measured.charts
    for chart in measured.charts:
        assert {series.style for series in chart.series} >= {"line", "points"}  # type: ignore[attr-defined]
    for one in measured.predictions:
        assert 0 < one.measured < math.inf
        assert 0 < one.predicted < math.inf
        assert one.baseline > 0
    json.dumps(measured.to_json())


@pytest.mark.parametrize("on_hosts", [pytest.param(True, marks=needs_hosts), False])
def test_collectives(monkeypatch: pytest.MonkeyPatch, *, on_hosts: bool):
    if not on_hosts:
        monkeypatch.setattr("plesio.bench.twins.collectives.why_no_namespaces", lambda: "only root can")
    steps: list[str] = []
    fitted_bytes = (50_000, 250_000, 1_000_000) if on_hosts else (4_000, 4_000_000, 16_000_000)
    measured = measure_collectives(on_step=steps.append, fitted_bytes=fitted_bytes, other_bytes=(500_000,), repeats=3)
    check(measured, study="collectives")
    assert len(steps) == 8
    assert [one.setting["algorithm"] for one in measured.predictions] == ["ring"] + 4 * ["tree"]
    assert ("loopback" in measured.setting) is not on_hosts


@needs_hosts
def test_data_parallel():
    measured = measure_data_parallel(
        on_step=lambda what: None, counts=(2, 3), compute_s=0.02, fitted_bytes=(20_000, 400_000, 2_000_000), repeats=3
    )
    check(measured, study="data-parallel")
    two, three = measured.predictions
    assert three.predicted < two.predicted < two.baseline == 1
    assert all(one.measured < 1 for one in measured.predictions)


@needs_hosts
def test_overlap():
    measured = measure_overlap(
        on_step=lambda what: None,
        caps_mib=(0.5, 1.5),
        pause_s=0.002,
        fitted_bytes=(50_000, 400_000, 1_500_000),
        repeats=2,
    )
    check(measured, study="overlap")
    assert [one.setting["buckets"] for one in measured.predictions] == ["0.5 MiB", "1.5 MiB", DEFAULT]
    whole = measured.predictions[1]
    assert whole.predicted == whole.baseline  # all layers in one bucket: nothing is hidden
    assert all(one.predicted <= one.baseline * 1.2 for one in measured.predictions)


@needs_hosts
def test_two_levels():
    measured = measure_hierarchical(
        on_step=lambda what: None, fitted_bytes=(12_000, 400_000, 2_000_000), sizes_bytes=(60_000, 600_000), repeats=3
    )
    check(measured, study="hierarchical")
    assert [one.setting["all-reduce"] for one in measured.predictions] == 2 * ["flat"] + 2 * ["two levels"]
    flat = [one for one in measured.predictions if one.setting["all-reduce"] == "flat"]
    assert all(one.predicted == one.baseline for one in flat)


def test_a_study_without_a_twin_is_refused():
    with pytest.raises(ConfigError, match="these have"):
        measure_twin("parameter-server", on_step=lambda what: None)
