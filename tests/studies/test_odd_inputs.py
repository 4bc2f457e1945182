"""Odd values of every input of every study: one clear line that names the input, or an answer that holds together."""

import json
import math
import re
from typing import Any

import pytest

from plesio.cli.function_options import in_options
from plesio.cli.main import invoke
from plesio.core.errors import ConfigError
from plesio.core.inputs import Input
from plesio.studies import STUDIES, Study, find_study

each_study = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)

NUMBERS = ("number", "bandwidth", "size", "duration", "count")
LARGE = 10**9
QUICK: dict[str, dict[str, Any]] = {
    "batch-scaling": {"dimension": 4, "batches": (16, 64, 256), "condition": 2.0, "max_steps": 200},
    "bounded-staleness": {"delays": (0, 1), "condition_number": 2.0, "num_trials": 2, "num_dimensions": 2},
    "checkpointing": {"num_runs": 20, "work_s": 400_000.0},
    "compression": {"dimension": 20, "condition": 5.0, "schemes": ("none", "topk:0.5"), "max_iterations": 2000},
    "consistency": {"ratios": (1.0,), "cvs": (0.1,), "slowdowns": (1.0,), "num_workers": 2, "bounds": (1,)},
    "determinism": {"num_ranks": 4, "num_elements": 100, "training_ranks": 2, "batch": 4, "num_steps": 3},
    "load-balancing": {"num_workers": 4, "num_clusters": 50, "num_steps": 40},
    "local-sgd": {"periods": (1, 2), "num_workers": 2, "num_dimensions": 2, "num_trials": 2, "ratios": (1.0,)},
    "loss-scaling": {"num_steps": 500, "num_gradients": 1000},
    "mixture-of-experts": {"num_experts": 8, "num_devices": 4, "tokens_per_device": 64, "num_draws": 2},
    "overlap": {"num_layers": 6},
    "pipeline": {"num_stages": 2, "num_micro_batches": 4, "num_layers": 4},
    "staleness-weighting": {"max_staleness": 2, "condition_number": 4.0, "num_dimensions": 2, "num_trials": 2},
    "stragglers": {"num_iterations": 50},
    "time-to-train": {"num_runs": 50},
}
"""Smaller than the defaults, so that hundreds of questions are asked in seconds; what is odd is asked all the same."""


def odd_values(one: Input) -> list[Any]:
    """Of a number or a list: 0, 1, below 0, huge, none, the same twice, no number; and the ends of what it may be."""
    if one.kind == "whole number":
        odd: list[Any] = [0, 1, -1, LARGE, 10**400]
        ends = [int(each) for each in (one.within.low, one.within.high) if each in (0, 1, 2)]
    elif one.kind in NUMBERS:
        odd = [0.0, 1.0, -1.0, 1e300, 1e-300, math.nan, -math.inf]
        ends = [each for each in (one.within.low, one.within.high) if abs(each) < LARGE]
    else:
        return [] if not one.many else [()]
    values = [*odd, *(each for each in ends if each not in odd)]
    if not one.many:
        return values
    return [(), *((value,) for value in values), (*one.default, *one.default)]


def faults(study: Study, one: Input, value: Any) -> str:
    """What is wrong with how the study answers; empty if nothing is."""
    try:
        asked = study.ask(**{**QUICK.get(study.name, {}), one.name: value})
    except ConfigError as error:
        said = str(error)
        if "\n" in said or len(said) > 400:
            return f"is refused on more than a line: {said}"
        return "" if names(one, said) else f"is refused without its name: {said}"
    answer = asked.answer
    parts = answer.parts
    if not all(map(math.isfinite, (*parts.values(), answer.total))):
        return f"has no finite answer: {dict(parts)}"
    if math.fsum(parts.values()) != pytest.approx(answer.total, rel=1e-9):
        return f"has parts that do not add up: {dict(parts)}, {answer.total}"
    if not (answer.tables() and answer.charts()):
        return "has nothing to show"
    json.dumps(asked.to_json(), allow_nan=False)
    return "" if not re.search(r"\bnan\b", answer.finding) else f"is answered by {answer.finding}"


def names(one: Input, said: str) -> bool:
    """Whether the parameter is in a message, and its option in what the command line makes of it."""
    on_the_line = in_options(said, {one.name: one.option})
    return bool(
        re.search(rf"(?<!\w){one.name}(?!\w)", said) and re.search(rf"(?<![\w-]){one.option}(?![\w-])", on_the_line)
    )


@each_study
def test_odd_values_are_refused_by_name_or_answered(study: Study):
    found = [
        f"{study.name} {one.name}={str(value)[:60]} {fault}"
        for one in study.inputs()
        for value in odd_values(one)
        if (fault := faults(study, one, value))
    ]
    assert not found, "\n".join(found)
