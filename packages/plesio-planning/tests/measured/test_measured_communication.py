"""Measurements of the studies of communication, in a reduced form: laws that hold on a busy machine too.

A link is limited by a token bucket: in any T seconds it carries ``T B`` bytes and what the bucket holds, at most. So
nothing measured over links may be quicker than the bytes that the last rank to begin has yet to send or receive.
"""

import json
import math

import pytest

from plesio.testbed.namespaces import why_no_namespaces
from plesio.testbed.network import BUCKET_S
from plesio_planning.measured import collectives, data_parallel, hierarchical, overlap
from plesio_planning.measured.collectives import BYTES_PER_S
from plesio_planning.measured.data_parallel import GRADIENT_BYTES
from plesio_planning.measured.overlap import DEFAULT
from plesio_planning.measured.twin import Twin
from plesio_planning.studies import find_study
from plesio_planning.studies.measured import Measured

NO_NAMESPACES = why_no_namespaces()
needs_hosts = pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))


MIB = 2**20


def least_s(num_bytes: float) -> float:
    """Return the seconds of so many bytes on a link that had been idle before."""
    return num_bytes / BYTES_PER_S - BUCKET_S


def check(measured: Measured, *, study: str) -> None:
    assert measured.study == study
    assert find_study(study)
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


@pytest.mark.parametrize(
    "on_hosts", [pytest.param(True, marks=needs_hosts), pytest.param(False, marks=pytest.mark.slow)]
)
def test_collectives(monkeypatch: pytest.MonkeyPatch, *, on_hosts: bool):
    if not on_hosts:
        monkeypatch.setattr("plesio_planning.measured.twin.why_no_namespaces", lambda: "only root can")
    steps: list[str] = []
    fitted_bytes = (50_000, 250_000, 1_000_000) if on_hosts else (4_000, 4_000_000, 16_000_000)
    measured = collectives.measure(Twin(steps.append), fitted_bytes, (500_000,), 3)
    check(measured, study="collectives")
    assert len(steps) == 8
    assert [one.setting["algorithm"] for one in measured.predictions] == ["ring"] + 4 * ["tree"]
    assert ("loopback" in measured.setting) is not on_hosts
    if on_hosts:
        ring, *trees = measured.predictions
        assert ring.measured > least_s(2 * 3 / 4 * 500_000)
        for tree, num_bytes in zip(trees, (50_000, 250_000, 500_000, 1_000_000), strict=True):
            # however Gloo reduces, a rank sends or receives 3/4 or more of it, and then all of it in the broadcast
            assert tree.measured > least_s((3 / 4 + 1) * num_bytes)
            assert tree.predicted > 2 * tree.baseline  # 2 ⌈log₂ 4⌉ of the message where the baseline has 3/2


@needs_hosts
def test_data_parallel():
    measured = data_parallel.measure(
        Twin(lambda what: None), (20_000, 400_000, 2_000_000), 3, num_workers=3, forward_s=0.01, backward_s=0.01
    )
    check(measured, study="data-parallel")
    two, three = measured.predictions
    assert three.predicted < two.predicted < two.baseline == 1
    for one, share in ((two, 2 * 1 / 2), (three, 2 * 2 / 3)):
        assert 0 < one.measured < 0.02 / (0.02 + least_s(share * GRADIENT_BYTES))


@pytest.mark.slow
@needs_hosts
def test_overlap():
    measured = overlap.measure(
        Twin(lambda what: None), (0.5,), (50_000, 400_000, 1_500_000), 2, num_layers=6, backward_s=6 * 0.002
    )
    check(measured, study="overlap")
    assert [one.setting["buckets"] for one in measured.predictions] == ["0.5 MiB", "1.5 MiB", DEFAULT]
    whole = measured.predictions[1]
    assert whole.predicted == whole.baseline  # all layers in one bucket: nothing is hidden
    assert all(one.predicted <= one.baseline * 1.2 for one in measured.predictions)
    layers = 6  # of 0.25 MiB; of one bucket none is sent before the last is ready
    for one, ready in zip(measured.predictions, (2, layers, 1), strict=True):
        assert one.measured > ready * 0.002 + least_s(1.5 * MIB)


@pytest.mark.slow
@needs_hosts
def test_two_levels():
    measured = hierarchical.measure(
        Twin(lambda what: None), (12_000, 400_000, 2_000_000), (0.1, 1.0), 3, message_bytes=600_000
    )
    check(measured, study="hierarchical")
    assert [one.setting["all-reduce"] for one in measured.predictions] == 2 * ["flat"] + 2 * ["two levels"]
    flat = [one for one in measured.predictions if one.setting["all-reduce"] == "flat"]
    assert all(one.predicted == one.baseline for one in flat)
    # of a host's link: a flat ring's part is 2(4-1)/4 of the message, that of two levels 2(2-1)/2 of two halves
    for one, share in zip(measured.predictions, (3 / 2, 3 / 2, 1, 1), strict=True):
        num_bytes = {"60 kB": 60_000, "600 kB": 600_000}[one.setting["message"]]
        assert one.measured > least_s(share * num_bytes)
