"""Runs that train: staleness, batches, consistency, shares, failures; small, and laws that a busy machine keeps."""

import json
import math

import pytest

from plesio.core.predictions import Prediction
from plesio.core.results import Evaluation, RunResult
from plesio.testbed.namespaces import why_no_namespaces
from plesio.testbed.network import BUCKET_S
from plesio_planning.measured import (
    batch_scaling,
    bounded_staleness,
    consistency,
    load_balancing,
    parameter_server,
    time_to_train,
)
from plesio_planning.measured.batch_scaling import BatchTraining, fitted_critical_batch, window_scales
from plesio_planning.measured.consistency import time_to
from plesio_planning.measured.load_balancing import RankSpeeds
from plesio_planning.measured.time_to_train import num_parameters
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.measured import Measured

NO_NAMESPACES = why_no_namespaces()
needs_hosts = pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))


def check(measured: Measured, *, study: str) -> dict[tuple[str, ...], Prediction]:
    assert measured.study == study
    assert measured.finding.endswith(".")
    assert measured.setting.endswith(".")
    assert measured.charts
    assert measured.remarks
    for one in measured.predictions:
        assert all(0 <= value < math.inf for value in (one.measured, one.predicted, one.baseline))
    json.dumps(measured.to_json())
    return {(one.quantity, *one.setting.values()): one for one in measured.predictions}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bounded_staleness():
    measured = bounded_staleness.measure(Twin(lambda what: None), (0.2, 2.5), 40, stalenesses=(1,))
    found = check(measured, study="bounded-staleness")
    below, above = (found["loss that an update leaves", "1", share] for share in ("0.2", "2.5"))
    assert below.predicted < 1 < above.predicted
    assert below.measured < 1 < above.measured
    assert below.baseline < 1 < above.baseline, "more than 2/L diverges with fresh gradients, too"
    limit = found["limit of the step (1/L)", "1", "constant"]
    assert limit.predicted == pytest.approx(1.0)
    assert 0.2 < limit.measured == found["limit of the step (1/L)", "1", "the run's"].measured < 2.5


@pytest.mark.slow
def test_load_balancing():
    cluster = RankSpeeds(
        speeds=(0.5, 1.0, 1.5), batch=48, sample_s=2e-3, cap=40, jitter=0.0, rebalance_every=4, largest_move=4
    )
    assert cluster.shares(cluster.speeds).tolist() == [8, 16, 24]
    rebalanced = cluster.modelled("rebalanced", 12)
    assert rebalanced[0] == pytest.approx(16 * 2e-3 / 0.5)
    assert rebalanced[4] == pytest.approx(12 * 2e-3 / 0.5)
    assert rebalanced[8] == pytest.approx(8 * 2e-3 / 0.5)
    measured = load_balancing.measure(
        Twin(lambda what: None),
        low=0.5,
        high=1.5,
        num_workers=3,
        batch_size=16,
        sample_s=2e-3,
        cap=40,
        jitter=0.0,
        rebalance_every=4,
        largest_move=4,
        num_steps=12,
    )
    found = check(measured, study="load-balancing")
    equal, proportional = (found["step (s)", way] for way in ("equal", "proportional"))
    assert equal.measured > 16 * 2e-3 / 0.5
    assert proportional.measured > 8 * 2e-3 / 0.5
    assert equal.predicted - proportional.predicted == pytest.approx(8 * 2e-3 / 0.5)


@needs_hosts
@pytest.mark.timeout(300)
def test_parameter_server():
    bytes_per_s = 10e6
    measured = parameter_server.measure(
        Twin(lambda what: None),
        (1,),
        (20_000, 100_000, 400_000),
        2,
        3,
        num_workers=2,
        num_servers=2,
        gradient_bytes=400_000,
        bytes_per_s=bytes_per_s,
        compute_s=0.01,
    )
    found = check(measured, study="parameter-server")
    for name, carried in (("ring", 1), ("1 server", 4), ("2 servers", 2)):  # gradients that a link carries, both ways
        one = found["exchange (s)", "2", "400 kB", name]
        assert one.measured > carried * 400_000 / bytes_per_s - 2 * BUCKET_S
    assert (
        found["exchange (s)", "2", "400 kB", "1 server"].predicted
        > found["exchange (s)", "2", "400 kB", "ring"].predicted
    )
    for servers in ("1", "2"):
        rate = found["updates a second", "2", "400 kB", servers]
        assert rate.measured < rate.baseline


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_consistency():
    situation = {"num_workers": 2, "compute_s": 0.01, "cv": 0.3, "slowdown": 2.0, "heterogeneity": 0.1, "target": 1e-3}
    measured = consistency.measure(Twin(lambda what: None), (0,), 10, **situation, bounds=(), periods=(4,))
    found = check(measured, study="consistency")
    for policy in ("bsp", "local_sgd:4", "asp"):
        assert found["time to the target (s)", policy].measured > 0.05
    assert found["time to the target (s)", "bsp"].predicted == found["time to the target (s)", "bsp"].baseline


def run_of(points: list[tuple[float, float]]) -> RunResult:
    """A run with these seconds and losses."""
    return RunResult(
        policy="bsp",
        task="digits",
        world="process",
        seed=0,
        num_workers=2,
        status="finished",
        steps=4,
        samples=4,
        wall_s=4.0,
        evaluations=tuple(
            Evaluation(samples=number, at_s=at_s, metric=metric) for number, (at_s, metric) in enumerate(points)
        ),
    )


def test_the_time_to_a_target_is_between_evaluations():
    run = run_of([(1.0, 1.0), (2.0, 0.01), (3.0, 0.0001)])
    assert time_to(0.1, run) == pytest.approx(1.5)
    assert time_to(0.001, run) == pytest.approx(2.5)
    assert time_to(1e-6, run) == math.inf
    assert time_to(2.0, run) == 1.0


def test_batch_scaling():
    measured = batch_scaling.measure(Twin(lambda what: None), (1.0,), 120, batches=(8, 32, 128), target=0.6)
    found = check(measured, study="batch-scaling")
    small, middle = (found["steps to the target", batch] for batch in ("8", "32"))
    assert small.predicted > middle.predicted
    assert small.measured > middle.measured
    assert small.baseline == pytest.approx(4 * middle.baseline)


def test_the_noise_scale_is_that_of_the_gradients():
    # ‖G‖² of 2 and tr Σ of 60: batches of 20 have 2 + 3, the ranks' own of 10 have 2 + 6
    training = BatchTraining(batch=20, length=0.1, steps=16, own_squares=(8.0,) * 16, mean_squares=(5.0,) * 16)
    assert window_scales(training) == pytest.approx([30.0] * 8)
    assert fitted_critical_batch({8: 6.0, 16: 4.0, 32: 3.0}) == pytest.approx(16.0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_time_to_train():
    measured = time_to_train.measure(Twin(lambda what: None), (32, 64), 0.5, (1.0,), tokens=1500, device_mtbf_s=2.0)
    found = check(measured, study="time-to-train")
    trainings = [one for one in found.values() if one.quantity == "training (s)"]
    assert len(trainings) == 4
    one_device, two_devices = trainings[1], trainings[3]
    assert one_device.predicted == pytest.approx(2 * two_devices.predicted)
    assert one_device.baseline < one_device.predicted, "nobody is at the peak"
    (run,) = (one for one in found.values() if one.quantity == "run with failures (s)")
    assert run.predicted > run.baseline
    assert num_parameters(64) > 12 * 2 * 64**2
