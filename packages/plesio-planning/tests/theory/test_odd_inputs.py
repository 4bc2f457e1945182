"""Odd values of every input of every theorem: one clear line that names an input, or a bound that holds together."""

import json
import math
from typing import Any

import pytest

from plesio.cli.commands import invoke
from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.inputs import Input
from plesio.core.records import to_json
from plesio_planning.theory import THEOREMS, Theorem, find_theorem
from plesio_planning.theory.pictures import pictures_of


def odd_values(one: Input) -> list[Any]:
    if one.kind == "whole number":
        odd: list[Any] = [0, 1, -1, 10**9, 10**400]
    elif one.kind in ("text", "switch"):
        odd = ["nonsense"]
    else:
        odd = [0.0, 1.0, -1.0, 1e9, 1e300, 1e-300, math.nan, math.inf]
    return odd if not one.many else [(), *((value,) for value in odd), (*one.default, *one.default)]


def faults(theorem: Theorem, one: Input, value: Any) -> str:
    """Describe the faults of the theorem's bound; empty if there are none."""
    inputs = {each.name: each.default for each in theorem.inputs()} | {one.name: value}
    try:
        bound = theorem.evaluate(**inputs)
    except ConfigError as error:
        said = str(error)
        parameters = error.parameters if isinstance(error, ArgumentError) else ()
        a_remedy = "does not hold" in said and not {each.name for each in theorem.inputs()}.isdisjoint(parameters)
        clear = "\n" not in said and len(said) < 300 and ("write" in said or "did you mean" in said or "known:" in said)
        return "" if clear and (one.name in parameters or a_remedy) else f"is refused by: {said}"
    if not 0 <= bound.value < math.inf or math.fsum(bound.parts.values()) != pytest.approx(bound.value):
        return f"has no finite sum: {dict(bound.parts)}"
    if not pictures_of(theorem, inputs):
        return "has no picture"
    json.dumps(to_json(bound), allow_nan=False)
    return "" if not any(math.isnan(each) for each in bound.also.values()) else f"has {dict(bound.also)}"


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.name)
def test_odd_values_are_refused_by_name_or_bounded(theorem: Theorem):
    found = [
        f"{theorem.name} {one.name}={str(value)[:40]} {fault}"
        for one in theorem.inputs()
        for value in odd_values(one)
        if (fault := faults(theorem, one, value))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["local-sgd", "--period", "0"], "--period is 0; write 1 or more"),
        (["synchronous-sgd", "--learning-rate", "1"], "write a --learning-rate below 1"),
        (["synchronous-sgd", "--smoothness", "0"], "--smoothness is 0; write more than 0"),
        (["synchronous-sgd", "--gradient-variance", "-1"], "--gradient-variance is -1; write 0 or more"),
        (["grid", "--mixing", "rign"], 'did you mean "ring"'),
        (["grid", "--groups", "0"], "--groups is 0; write 1 to 256"),
        (["grid", "--stages", "0"], "--stages is 0; write 1 or more"),
        (["grid", "--every", "0"], "--every is 0; write 1 or more"),
        (["grid", "--delay", "-1"], "--delay is -1; write 0 or more"),
        (["asynchronous-rate", "--step-times", ""], "--step-times has 0 values; write 1 or more"),
        (["constant-staleness", "--staleness", "1000000000"], "--staleness is 1,000,000,000; write at most 500"),
        (["speedup", "--compute", "inf"], "inf"),
    ],
)
def test_the_command_line_is_told_of_its_options(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str):
    assert invoke(["bound", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_number_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="momentum is nan; write a finite number"):
        find_theorem("constant-staleness").evaluate(momentum=math.nan)
