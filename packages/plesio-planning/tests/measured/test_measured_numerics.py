"""Measurements whose subject is numbers, in a reduced form: laws and figures of seeded runs, no times."""

import json
import math

import pytest
import torch

from plesio_planning.measured import compression, determinism, loss_scaling
from plesio_planning.measured.compression import kept_share, measured_share, weibull_shape
from plesio_planning.measured.real_gradients import training_gradients
from plesio_planning.measured.twin import Twin
from plesio_planning.studies import find_study
from plesio_planning.studies.measured import Measured


def check(measured: Measured, *, study: str) -> None:
    assert measured.study == study
    assert find_study(study)
    assert measured.finding.endswith(".")
    assert measured.setting.endswith(".")
    assert measured.charts
    for chart in measured.charts:
        assert {series.style for series in chart.series} >= {"line", "points"}  # type: ignore[attr-defined]
    for one in measured.predictions:
        assert all(0 <= value < math.inf for value in (one.measured, one.predicted, one.baseline))
    json.dumps(measured.to_json())


def test_gradients_are_those_of_one_training():
    alone, among = training_gradients([2]), training_gradients([0, 2])
    assert torch.equal(alone[0], among[1])
    assert not torch.equal(among[0], among[1])


def test_compression():
    said: list[str] = []
    measured = compression.measure(Twin(said.append), (0, 2), schemes=("topk:0.1", "randk:0.1", "qsgd:8", "fp16"))
    check(measured, study="compression")
    assert len(said) == 5
    by_key = {(one.setting["compression"], one.quantity): one for one in measured.predictions}
    for spec in ("topk:0.1", "randk:0.1", "qsgd:8", "fp16"):
        payload = by_key[spec, "payload (B)"]
        assert payload.predicted == payload.measured >= payload.baseline
    assert by_key["randk:0.1", "relative error"].measured == pytest.approx(0.9, abs=0.1)
    top, random = by_key["topk:0.1", "relative error"], by_key["randk:0.1", "relative error"]
    assert top.measured < random.measured
    assert abs(top.error) < 0.2
    assert top.baseline_error > 2, "as if gradients were normal"
    assert by_key["fp16", "relative error"].measured < 2**-22, "each is off by half of a 2^-10 at most"


def test_a_weibull_distribution_is_found_again():
    shape = 0.6
    numbers = torch.distributions.Weibull(1.0, shape).sample((200_000,))
    fitted = weibull_shape(measured_share(numbers, 0.05), share=0.05)
    assert fitted == pytest.approx(shape, rel=0.05)
    assert kept_share(fitted, share=0.01) == pytest.approx(measured_share(numbers, 0.01), abs=0.03)


def test_loss_scaling():
    measured = loss_scaling.measure(Twin(lambda what: None), (1, 4), num_steps=200)
    check(measured, study="loss-scaling")
    casts = [one for one in measured.predictions if "scale" in one.setting]
    for what in ("zero", "infinite"):
        shares = [one.measured for one in casts if one.quantity.startswith(what)]
        assert shares == sorted(shares, reverse=what == "zero")
    assert max(abs(one.error) for one in casts) < 8
    assert max(abs(one.baseline_error) for one in casts) > 20, "as if gradients were normal"
    (skipped,) = (one for one in measured.predictions if one.quantity == "steps skipped")
    assert abs(skipped.error) < 2


@pytest.mark.timeout(300)
def test_determinism():
    measured = determinism.measure(Twin(lambda what: None), 3, num_tensors=3, num_elements=10_000, num_steps=3)
    check(measured, study="determinism")
    differ = {
        (one.setting["ranks"], one.setting["order"]): one.measured
        for one in measured.predictions
        if "order" in one.setting
    }
    assert differ["2", "reverse order"] == differ["2", "Gloo's order"] == 0  # two ranks commute
    (three,) = (one for one in measured.predictions if one.setting.get("order") == "reverse order" and one.predicted)
    assert abs(three.error) < 10
    assert 0.05 < differ["3", "Gloo's order"] <= differ["3", "reverse order"] + 0.05
    assert "the same to the bit" in measured.finding


def test_deterministic_algorithms_are_switched_off_again_and_change_nothing():
    _, _, same = determinism.step_times(2)
    assert same
    assert not torch.are_deterministic_algorithms_enabled()
