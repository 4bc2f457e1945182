"""Every input of a study changes its answer in every mode, or is refused there."""

from collections.abc import Iterator
from typing import Any

import pytest

from asked import QUICK
from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.inputs import Input
from plesio_planning.studies import STUDIES, Study, find_study
from plesio_planning.studies.study import Asked

SMALLER: dict[str, dict[str, Any]] = {
    **QUICK,
    "collectives": {"other_ranks": (16,)},
    "loss-scaling": {"num_steps": 2000, "num_elements": 30, "initial_scale": 2.0**28, "growth_interval": 50},
    "pipeline": {"pp": 2, "num_micro_batches": 4},
}
"""Smaller than the defaults, for time alone, and large enough for every input to have an effect."""
LIMITS = {"max_steps"}
"""Inputs whose only effect is to give up on runs that do not end."""
ELSEWHERE = {("load-balancing", "largest_move"): "shares of four workers in forty steps need not move by more than one"}
"""Inputs for which these settings are too small, and the reason."""
FAST = {
    "collectives",
    "compression",
    "data-parallel",
    "determinism",
    "goodput",
    "hierarchical",
    "overlap",
    "parameter-server",
    "tensor-parallel",
    "time-to-train",
}


def modes(study: Study) -> Iterator[dict[str, Any]]:
    """The defaults; every choice; every quantity that may be left out."""
    yield {}
    for one in study.inputs():
        if one.choices:
            yield from ({one.name: (each,) if one.many else each} for each in one.choices if each != one.default)
        elif one.optional and one.kind in ("duration", "bandwidth"):
            yield {one.name: 7200.0 if one.kind == "duration" else 1e11}


def others(one: Input, value: Any) -> list[Any]:
    """Other values of an input than this one."""
    if one.choices:
        return [(each,) if one.many else each for each in one.choices if each != value]
    if one.many:
        return [(*value, others_of_one(one, value[-1])[0])] if value else [(0.5, 0.5)]
    return others_of_one(one, value)


def others_of_one(one: Input, value: Any) -> list[Any]:
    if one.kind == "whole number":
        if value is None:
            return [1, 2, 512]
        return [2 * value + 1, 2 * value, 4 * value, value - 1, value // 4]
    if value is None:
        return [1e9 if one.kind == "bandwidth" else 3600.0]
    return [1.7 * value, 0.4 * value, 1e3 * value, 1e-3 * value] if value else [0.1, 0.5, 1.0]


def shown(asked: Asked, leaving_out: tuple[Any, ...]) -> list[Any]:
    """All values and cells of the answer, without those that only repeat an input."""
    values = asked.to_json()
    cells = [row for table in asked.answer.tables() for row in table.rows]
    return [
        each
        for each in leaves([*(values[each] for each in ("total", "parts", "values")), cells])
        if each not in leaving_out
    ]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    for each in value:
        yield from leaves(each)


def unchecked(study: Study, inputs: dict[str, Any]) -> Asked:
    """The answer to inputs of which one is refused, as it is said to have no effect."""
    answer = study.function.__wrapped__(**inputs)  # type: ignore[attr-defined]
    return Asked(study=study.name, question=study.question, inputs=inputs, answer=answer)


def changes(study: Study, one: Input, inputs: dict[str, Any]) -> bool:
    """Return True if another value changes the answer, or if it is reported to have no effect and has none."""
    before = inputs.get(one.name, one.default)
    for value in others(one, before):
        other = {**inputs, one.name: value}
        try:
            after = study.ask(**other)
        except ConfigError as error:
            if not isinstance(error, ArgumentError) or "has no effect" not in str(error):
                continue
            refused = error.parameters[0]
            if refused == one.name:
                first, second = (unchecked(study, each) for each in ({**inputs, one.name: before}, other))
                return shown(first, (before, value)) == shown(second, (before, value))
            after = study.ask(**{name: each for name, each in other.items() if name != refused})
        if shown(after, (before, value)) != shown(study.ask(**inputs), (before, value)):
            return True
    return False


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "study",
    [each if each.name in FAST else pytest.param(each, marks=pytest.mark.slow) for each in STUDIES],
    ids=lambda each: each.name,
)
def test_every_input_has_an_effect_or_is_refused(study: Study):
    without = []
    for mode in modes(study):
        inputs = {**SMALLER.get(study.name, {}), **mode}
        try:
            study.ask(**inputs)
        except ConfigError:
            continue  # this mode needs more than a choice, such as a file
        for one in study.inputs():
            asked = one.kind != "text" or one.choices
            if asked and one.name not in {*mode, *LIMITS} and (study.name, one.name) not in ELSEWHERE:
                without += [] if changes(study, one, inputs) else [(mode, one.name)]
    assert without == []


@pytest.mark.parametrize(
    ("name", "inputs", "said"),
    [
        ("data-parallel", {"seed": 1}, "seed has no effect with a cv of 0; leave it out, or write more than 0 for cv"),
        (
            "collectives",
            {"algorithms": ("ring", "tree"), "local_latency_s": 1e-6},
            "local_latency_s has no effect without hierarchical among the algorithms; leave it out, or add "
            "hierarchical to them",
        ),
        ("stragglers", {"shape": 2.0}, "shape has no effect with a distribution of lognormal; leave it out"),
        ("determinism", {"first": "a.npz", "second": "b.npz", "seed": 1}, "seed has no effect with first"),
    ],
)
def test_what_has_no_effect_is_refused_in_a_line(name: str, inputs: dict[str, Any], said: str):
    with pytest.raises(ConfigError) as refused:
        find_study(name).ask(**inputs)
    assert said in str(refused.value)


def test_what_decides_is_checked_first():
    with pytest.raises(ConfigError, match='distribution is "gama"'):
        find_study("stragglers").ask(shape=2.0, distribution="gama")
