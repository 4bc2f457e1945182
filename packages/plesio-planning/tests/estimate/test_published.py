"""Limits of the estimate's errors: every published step, with its family or its program left out of the fit."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError
from plesio_planning.estimate import CONSTANTS, validate_estimator
from plesio_planning.estimate.accuracy import OTHER_ERROR, STEP_ERRORS
from plesio_planning.estimate.calibrate import EXPERTS, FITTED, fit_constants, predicted_s
from plesio_planning.estimate.cross_validation import HeldOut, LeftOutGroup, cross_validate, groups_of
from plesio_planning.estimate.published import PUBLISHED_STEPS, SOURCES
from plesio_planning.estimate.validation import (
    EXPERT_STEPS,
    FITTED_STEPS,
    NEVER_FITTED_STEPS,
    Validation,
    program_errors,
)


@pytest.fixture(scope="module")
def validation() -> Validation:
    """Made once; a dozen fits take seconds."""
    return validate_estimator()


@pytest.fixture(scope="module")
def small() -> Validation:
    """Leave out the groups of a few steps only; what is never in a fit, and memory, is as in the whole."""
    few = FITTED_STEPS[::16]
    return Validation(
        families=cross_validate(few, by=lambda step: step.family),
        programs=cross_validate(few, by=lambda step: step.program),
        experts=cross_validate(EXPERT_STEPS, by=lambda step: step.family, fitted=EXPERTS),
    )


def errors(validation: Validation, *quantities: str) -> list[float]:
    return [abs(prediction.error) for prediction in validation.predictions if prediction.quantity in quantities]


def mean_error(rows: tuple[HeldOut, ...]) -> float:
    return statistics.fmean(abs(row.error) for row in rows)


def coverage(rows: tuple[HeldOut, ...]) -> float:
    return sum(group.num_covered for group in groups_of(rows)) / len(rows)


def test_all_shared_rows_are_there():
    counts = {source: sum(step.source == source for step in PUBLISHED_STEPS) for source in SOURCES}
    halves = {"J1": 5, "J2": 5, "K1": 4, "K2": 3}
    assert counts == {"A": 10, "C": 8, "D": 3, "E": 3, "F": 3, "G": 16, "H": 3, "I": 72, "L": 4, "M": 1, **halves}
    assert len(FITTED_STEPS) == 112
    assert {step.source for step in NEVER_FITTED_STEPS} == {"E", "F", "J2", "K2", "M"}


def test_a_group_is_predicted_with_constants_of_the_others(small: Validation):
    for rows in (small.families, small.programs):
        others = [one.step for one in rows if one.group != rows[0].group]
        assert rows[0].predicted_s == predicted_s(rows[0].step, fit_constants(others))


@pytest.mark.slow
def test_a_family_is_left_out_with_all_its_steps(validation: Validation):
    assert {row.group for row in validation.families} == {"gpt", "llama", "mcore", "mpt", "nemotron"}
    assert {row.step.source for row in validation.families if row.group == "gpt"} == set("ACGH")


@pytest.mark.slow
def test_families_that_were_left_out(validation: Validation):
    """The goal is 4 % in the mean and 8 % for the worst family; today 3.9 and 4.9 %."""
    assert mean_error(validation.families) < 0.04
    assert groups_of(validation.families)[0].mean_error < 0.07


@pytest.mark.slow
def test_programs_that_were_left_out(validation: Validation):
    """Today 3.9 %, and 6.5 % for the worst, DeepSpeed of 2021."""
    assert mean_error(validation.programs) < 0.04
    assert groups_of(validation.programs)[0].mean_error < 0.08


@pytest.mark.slow
def test_every_family_and_program_is_closer_than_a_constant_utilisation(validation: Validation):
    groups: list[LeftOutGroup] = [*groups_of(validation.families), *groups_of(validation.programs)]
    assert all(group.mean_error < group.baseline_error for group in groups)


@pytest.mark.slow
def test_the_interval_covers_what_it_says(validation: Validation):
    """That of the other groups covers 104 and 108 of 112 steps today, a program's own at least 14 of 16 in each."""
    assert coverage(validation.families) > 0.9
    assert coverage(validation.programs) > 0.9
    *programs, other = program_errors(validation)
    assert all(one.num_covered >= 0.85 * one.num_steps for one in programs)
    assert {one.name: one.error for one in programs} == pytest.approx(STEP_ERRORS, abs=0.0015)
    assert other.error == pytest.approx(OTHER_ERROR, abs=0.0015)


def test_steps_that_are_never_in_a_fit(small: Validation):
    """The worst is Llama 3 405B, -10.7 %."""
    rows = [row for row in small.predictions if row.quantity == "step time, never in a fit (s)"]
    assert len(rows) == 15
    mean = {
        source: statistics.fmean(abs(row.error) for row in rows if row.setting["source"] == source)
        for source in ("E", "F", "J2", "K2", "M")
    }
    assert mean["E"] < 0.09
    assert mean["F"] < 0.04
    assert mean["J2"] < 0.07
    assert mean["M"] < 0.03
    assert mean["K2"] < 0.04


def test_a_program_of_its_own_waits_as_half_of_its_trials_do():
    """Soft L1 on the five trials of J1 is least where `synchronize_s` is what it is."""

    def loss(synchronize_s: float) -> float:
        constants = replace(CONSTANTS, synchronize_s=synchronize_s)
        errors = [
            math.log(predicted_s(step, constants) / step.step_s) for step in PUBLISHED_STEPS if step.source == "J1"
        ]
        return sum(math.sqrt(1 + (error / 0.05) ** 2) for error in errors)

    best_s = min((ms * 1e-3 for ms in range(30)), key=loss)
    assert best_s == CONSTANTS.synchronize_s


def test_memory_of_korthikantis_figure_1(small: Validation):
    """The goal is 8 %; today 1.5 %, of 22B's parameters, as its one stage has the embedding, too."""
    rows = errors(small, "parameters and optimizer, GiB", "activations, GiB", "selective activations, GiB")
    assert len(rows) == 12
    assert max(rows) < 0.02


def test_the_constants_are_those_of_the_fit():
    fitted = fit_constants(FITTED_STEPS)
    for one in FITTED:
        assert one.of(CONSTANTS) == pytest.approx(one.of(fitted), abs=2e-3), one.name
    of_experts = fit_constants(EXPERT_STEPS, fitted=EXPERTS)
    for one in EXPERTS:
        assert one.of(CONSTANTS) == pytest.approx(one.of(of_experts), rel=0.01), one.name


def test_experts_whose_family_was_left_out(small: Validation):
    """The worst is Qwen 3 30B on H100, -30 %: no other step has FP8 experts on Hopper. The others are within 10 %."""
    errors = sorted(abs(row.error) for row in small.experts)
    assert errors[-1] < 0.31
    assert errors[-2] < 0.1
    assert mean_error(small.experts) < 0.15
    assert mean_error(small.experts) < statistics.fmean(abs(row.baseline_error) for row in small.experts)


def test_a_fit_finds_the_constants_that_made_the_times():
    """But for the pull of the figures that it begins with: contention costs few of the steps anything."""
    true = replace(CONSTANTS, matrix_efficiency={**CONSTANTS.matrix_efficiency, "ampere": 0.7}, flash_1_efficiency=0.25)
    steps = [replace(step, step_s=predicted_s(step, true)) for step in FITTED_STEPS]
    fitted = fit_constants(steps)
    for one in FITTED:
        pull = 0.3 if one.name == "contention" else 0.07
        assert one.of(fitted) == pytest.approx(one.of(true), rel=pull), one.name


def test_a_constant_that_no_step_depends_on_stays_where_it_begins():
    fitted = fit_constants([step for step in FITTED_STEPS if step.source == "A"])
    begin = {(one.name, one.architecture): one.begin for one in FITTED}
    assert fitted.fp8_efficiency["hopper"] == pytest.approx(begin["fp8_efficiency", "hopper"])
    assert fitted.flash_1_efficiency == pytest.approx(begin["flash_1_efficiency", ""])


def test_no_steps_are_refused():
    with pytest.raises(ConfigError, match="give one or more"):
        fit_constants([])


def test_the_estimator_is_shown_beside_what_was_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, small: Validation
):
    monkeypatch.setattr("plesio_planning.estimate.validate_estimator", lambda: small)
    path = tmp_path / "errors.json"
    assert invoke(["lab", "validate", "estimator", "--json", str(path), "--out", str(tmp_path / "page")]) == 0
    printed = capsys.readouterr().out
    assert "Every family of models left out in turn, 7 steps" in printed
    assert "constant utilisation" in printed
    data = json.loads(path.read_text())
    assert {row["source"] for row in data["rows"]} == {"A", "C", "D", "E", "F", "G", "H", "I", "J2", "K2", "L", "M"}
    left_out = next(one for one in data["summary"] if one["quantity"] == "step time, family left out (s)")
    assert left_out["num_predictions"] == 7
    assert left_out["mean_error"] == pytest.approx(mean_error(small.families))
    page = (tmp_path / "page" / "report.html").read_text()
    assert "Family of models left out" in page
    assert small.families[0].step.model.name in page
