"""What the estimate must not get worse at: every published step, with constants fitted on half of them."""

import statistics
from dataclasses import replace

import pytest

from plesio.core.errors import ConfigError
from plesio.core.predictions import Prediction
from plesio.planning.estimate import CONSTANTS, validate_estimator
from plesio.planning.estimate.calibrate import FITTED, fit_constants, fit_matrix_efficiency, predicted_s
from plesio.planning.estimate.published import PUBLISHED_STEPS
from plesio.planning.estimate.validation import FITTED_STEPS, FITTED_STEPS_H100


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    return validate_estimator()


def errors(predictions: list[Prediction], *quantities: str) -> list[float]:
    return [abs(prediction.error) for prediction in predictions if prediction.quantity in quantities]


def mean_error(predictions: list[Prediction], *quantities: str) -> float:
    return statistics.fmean(errors(predictions, *quantities))


def test_step_times_on_a100(predictions: list[Prediction]):
    """The goal is 6 %; today 2.1 %, and 2.6 % of the rows held out, at most 4.8 %."""
    both = ("step time, fitted (s)", "step time, held out (s)")
    assert len(errors(predictions, *both)) == 18
    assert mean_error(predictions, *both) < 0.03
    assert mean_error(predictions, "step time, held out (s)") < 0.035
    assert max(errors(predictions, *both)) < 0.07


def test_step_times_of_a_model_that_was_left_out(predictions: list[Prediction]):
    """The goal is 8 %; today 2.8 %."""
    assert len(errors(predictions, "step time, model left out (s)")) == 18
    assert mean_error(predictions, "step time, model left out (s)") < 0.04


def test_step_times_on_h100_with_one_constant(predictions: list[Prediction]):
    """The goal is 10 %; today 3.6 % at most, of D's other two models and of Llama 3 405B."""
    assert len(errors(predictions, "H100 step time, held out (s)")) == 4
    assert max(errors(predictions, "H100 step time, held out (s)")) < 0.06


def test_memory_of_korthikantis_figure_1(predictions: list[Prediction]):
    """The goal is 8 %; today 1.5 %, of 22B's parameters, as its one stage has the embedding, too."""
    rows = errors(predictions, "parameters and optimizer, GiB", "activations, GiB", "selective activations, GiB")
    assert len(rows) == 12
    assert max(rows) < 0.02


def test_it_is_better_than_a_constant_utilisation(predictions: list[Prediction]):
    held_out = [prediction for prediction in predictions if prediction.quantity == "step time, held out (s)"]
    baseline = statistics.fmean(abs(prediction.baseline_error) for prediction in held_out)
    assert mean_error(predictions, "step time, held out (s)") < baseline / 3


def test_the_constants_are_those_of_the_fit():
    fitted = fit_matrix_efficiency(FITTED_STEPS_H100, begin=fit_constants(FITTED_STEPS))
    assert fitted.matrix_efficiency["ampere"] == pytest.approx(CONSTANTS.matrix_efficiency["ampere"], abs=2e-3)
    assert fitted.matrix_efficiency["hopper"] == pytest.approx(CONSTANTS.matrix_efficiency["hopper"], abs=2e-3)
    assert fitted.exposed_traffic == pytest.approx(CONSTANTS.exposed_traffic, abs=2e-3)
    assert fitted.memory_efficiency == pytest.approx(CONSTANTS.memory_efficiency, abs=2e-3)


def test_half_of_the_rows_are_held_out():
    a100 = [step for step in PUBLISHED_STEPS if step.source in ("A", "C")]
    assert (len(a100), len(FITTED_STEPS), len(FITTED_STEPS_H100)) == (18, 9, 1)
    assert set(map(id, FITTED_STEPS)) <= set(map(id, a100))


def test_a_fit_finds_the_constants_that_made_the_times():
    true = replace(
        CONSTANTS,
        matrix_efficiency={**CONSTANTS.matrix_efficiency, "ampere": 0.6},
        exposed_traffic=0.5,
        memory_efficiency=0.8,
    )
    steps = [replace(step, step_s=predicted_s(step, true)) for step in FITTED_STEPS]
    fitted = fit_constants(steps)
    found = (fitted.matrix_efficiency["ampere"], fitted.exposed_traffic, fitted.memory_efficiency)
    assert found == pytest.approx((0.6, 0.5, 0.8), rel=1e-4)


def test_too_few_or_mixed_steps_are_refused():
    with pytest.raises(ConfigError, match=f"give {len(FITTED)} or more"):
        fit_constants(FITTED_STEPS[:2])
    with pytest.raises(ConfigError, match="ampere, hopper"):
        fit_constants(PUBLISHED_STEPS)
    with pytest.raises(ConfigError, match="no accelerators"):
        fit_matrix_efficiency([])
