import math

import pytest

from plesio.core.predictions import Prediction, Scale, predictions_to_json, summarise_predictions


def prediction(
    predicted: float, measured: float, *, baseline: float = 0.0, quantity: str = "throughput", scale: Scale = "relative"
) -> Prediction:
    return Prediction(
        setting={"policy": "bsp", "task": "digits"},
        quantity=quantity,
        scale=scale,
        predicted=predicted,
        measured=measured,
        baseline=baseline,
    )


def test_errors_are_relative_or_in_points():
    assert prediction(110, 100, baseline=50).error == pytest.approx(0.1)
    assert prediction(110, 100, baseline=50).baseline_error == pytest.approx(-0.5)
    assert prediction(0.5, 0.45, scale="points").error == pytest.approx(5)
    assert prediction(0, 0).error == 0
    assert prediction(1, 0).error == math.inf


def test_a_miss_is_in_the_summary_whatever_its_sign():
    rows = [prediction(90, 100, baseline=100), prediction(101, 100, baseline=150), prediction(102, 100, baseline=60)]
    rows.append(prediction(0.4, 0.5, quantity="wait share", scale="points"))
    throughput, waiting = summarise_predictions(rows)
    assert (throughput.quantity, throughput.num_predictions) == ("throughput", 3)
    assert throughput.median_error == pytest.approx(0.02)
    assert throughput.mean_error == pytest.approx(0.13 / 3)
    assert throughput.worst_error == pytest.approx(0.10)
    assert throughput.baseline_median_error == pytest.approx(0.4)
    assert throughput.baseline_mean_error == pytest.approx(0.3)
    assert throughput.baseline_worst_error == pytest.approx(0.5)
    assert (waiting.scale, waiting.worst_error) == ("points", pytest.approx(10))


def test_json_has_a_flat_object_a_row():
    data = predictions_to_json([prediction(110, 100, baseline=50)])
    [row] = data["rows"]
    assert row["policy"] == "bsp"
    assert row["task"] == "digits"
    assert row["quantity"] == "throughput"
    assert (row["predicted"], row["measured"]) == (110, 100)
    assert row["error"] == pytest.approx(0.1)
    assert data["summary"][0]["worst_error"] == pytest.approx(0.1)
