"""How sure an estimate is, and what it warns of."""

import math
from dataclasses import replace

import pytest

from plesio_planning.estimate import SOFTWARE, Layout, find_model, parse_machine
from plesio_planning.estimate.accuracy import STEP_ERROR, UNTESTED_ERROR, step_error, step_notes

TP8 = Layout(tp=8, dp=8, sequence_parallel=True)
NVIDIAS = replace(TP8, software=SOFTWARE["megatron-core"])


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
    error = step_error(find_model(name), NVIDIAS, parse_machine(machine))
    assert error == pytest.approx(math.hypot(STEP_ERROR, UNTESTED_ERROR * math.sqrt(num_untested)))
    assert ("No constant was fitted on runs with" in notes(name, NVIDIAS, machine)) == bool(num_untested)


def test_software_that_no_constant_was_fitted_on_is_less_sure():
    model, machine = find_model("llama-2-70b"), parse_machine("64xh100")
    assert step_error(model, NVIDIAS, machine) < step_error(model, TP8, machine)
    assert "No constant was fitted on runs with this software" in notes("llama-2-70b", TP8, "64xh100")


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
