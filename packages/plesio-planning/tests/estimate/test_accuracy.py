"""How sure an estimate is, and what it warns of."""

import math
from dataclasses import replace

import pytest

from plesio_planning.estimate import SOFTWARE, Layout, find_model, parse_machine
from plesio_planning.estimate.accuracy import OTHER_ERROR, STEP_ERRORS, UNTESTED_ERROR, step_error, step_notes
from plesio_planning.estimate.published import PUBLISHED_STEPS

TP8 = Layout(tp=8, dp=8, sequence_parallel=True)
NVIDIAS = replace(TP8, software=SOFTWARE["megatron-core"])
NVIDIAS_ERROR = STEP_ERRORS["megatron-core"]
OWN = replace(SOFTWARE["current"], eager=True)
"""A program of which no step was published."""


def notes(name: str, layout: Layout, machine: str) -> str:
    return " ".join(step_notes(find_model(name), layout, parse_machine(machine), global_batch=64))


@pytest.mark.parametrize(
    ("name", "machine", "num_untested"),
    [
        ("gpt-18b", "64xa100", 0),
        ("llama-2-70b", "64xh200", 0),
        ("gpt-18b", "64xb200", 1),
        ("mixtral-8x7b", "64xh100", 1),
        ("mixtral-8x7b", "64xb200", 2),
    ],
)
def test_what_no_published_step_tests_is_less_sure(name: str, machine: str, num_untested: int):
    error = step_error(find_model(name), NVIDIAS, parse_machine(machine), global_batch=64)
    # no published step of this software had a device's tensor parallelism and tokens: a doubling away, or more
    assert error == pytest.approx(math.hypot(NVIDIAS_ERROR, UNTESTED_ERROR * math.sqrt(num_untested + 1)))
    assert ("No constant was fitted on runs with" in notes(name, NVIDIAS, machine)) == bool(num_untested)


def test_software_that_no_constant_was_fitted_on_is_less_sure():
    step = next(step for step in PUBLISHED_STEPS if step.source == "G" and step.model.name == "llama-3.1-70b")
    errors = [
        step_error(step.model, layout, step.machine, global_batch=step.global_batch)
        for layout in (step.layout, replace(step.layout, software=OWN))
    ]
    assert errors == [NVIDIAS_ERROR, OTHER_ERROR]
    assert "No constant was fitted on runs with this software" in notes(
        "llama-2-70b", replace(TP8, software=OWN), "64xh100"
    )


def test_a_step_unlike_the_published_ones_is_less_sure():
    step = next(step for step in PUBLISHED_STEPS if step.source == "G" and step.model.name == "nemotron-15b")
    wider = [replace(step.model, hidden_size=width, head_size=128) for width in (6144, 7168, 8192, 12288, 24576)]
    errors = [step_error(model, step.layout, step.machine, global_batch=step.global_batch) for model in wider]
    assert errors == sorted(errors)
    assert errors[0] == NVIDIAS_ERROR < errors[1] < errors[2] < errors[3]
    assert errors[3] == errors[4] == pytest.approx(math.hypot(NVIDIAS_ERROR, UNTESTED_ERROR))


def test_current_software_warns_of_a_run_of_2021():
    said = notes("gpt-18b", TP8, "64xa100")
    assert "ran with Megatron-LM 2021" in said
    assert "longer" in said
    assert "`--software megatron-2021`" in said
    old = Layout(tp=8, dp=8, software=SOFTWARE["megatron-2021"])
    assert notes("gpt-18b", old, "64xa100") == ""
    assert "ran with" not in notes("gpt-18b", TP8, "64xh100")


def test_fused_attention_on_v100_is_warned_of():
    assert "FlashAttention needs Ampere" in notes("gpt-18b", Layout(tp=8, dp=8, precision="fp16"), "64xv100")
