"""A measurement's inputs among its study's, and its sentences about the others and about its errors."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio.core.predictions import Prediction
from plesio_planning.measured import has_measurement, measure_study, measured_inputs
from plesio_planning.studies import STUDIES, find_study
from plesio_planning.studies.measured import Measured, Scope

NAMES = [study.name for study in STUDIES if has_measurement(study.name)]


def module_of(study: str) -> ModuleType:
    return import_module(f"plesio_planning.measured.{study.replace('-', '_')}")


def test_what_one_machine_cannot_do_is_refused():
    assert {study.name for study in STUDIES} - set(NAMES) == {"goodput"}
    with pytest.raises(ConfigError, match="the study goodput has no measurement on one machine"):
        measure_study("goodput", on_step=lambda what: None)


@pytest.mark.parametrize("study", NAMES)
def test_every_study_has_a_measurement_with_inputs_of_its_own(study: str):
    module, known = module_of(study), {one.name: one for one in find_study(study).inputs()}
    own = {one.name: one for one in measured_inputs(study)}
    assert own.keys() <= known.keys()
    assert set(module.FOUND) <= known.keys()
    assert not own.keys() & set(module.FOUND)
    for name, one in own.items():
        assert one.kind == known[name].kind
        assert one.many == known[name].many
        assert set(one.choices) <= set(known[name].choices)
        assert one.help
        one.check(one.default)


def stand_in(monkeypatch: pytest.MonkeyPatch, study: str) -> dict[str, Any]:
    """Has the study's measurement say what it was called with instead."""
    called: dict[str, Any] = {}
    module = module_of(study)
    real = module.measure

    def measure(on_step: Callable[[str], None], /, **inputs: Any) -> Measured:
        called.update(inputs)
        return Measured(study=study, finding="So.", setting="So.", predictions=(), charts=())

    monkeypatch.setattr(measure, "__signature__", __import__("inspect").signature(real), raising=False)
    measure.__doc__, measure.__annotations__ = real.__doc__, real.__annotations__
    monkeypatch.setattr(module, "measure", measure)
    return called


def test_inputs_are_taken_found_or_left_out_and_said_so(monkeypatch: pytest.MonkeyPatch):
    called = stand_in(monkeypatch, "stragglers")
    inputs = {"num_workers": 4, "cv": 0.3, "compute_s": 5.0, "exchange_s": 0.01, "content_cv": 0.5}
    measured = measure_study("stragglers", inputs=inputs, on_step=lambda what: None)
    assert called["num_workers"] == 4
    assert called["cv"] == 0.3
    assert called["compute_s"] == 0.02, "five seconds are too long"
    scope = measured.scope
    assert scope.taken["--workers"] == "4"
    assert scope.taken["--compute"] == "20 ms"
    assert scope.found == ("--exchange",)
    assert scope.left_out["--compute"] == "asked for: 5 s; write 0.01 to 0.2 to have it measured"
    assert scope.left_out["--content-cv"] == "asked for: 0.5"
    assert scope.left_out["--exchange"] == "asked for: 10 ms"
    assert scope.left_out["--shape"] == ""
    told = " ".join(measured.remarks)
    assert "Measured with --workers 4" in told
    assert "Measured instead of given: --exchange." in told
    assert "--content-cv (asked for: 0.5)" in told


def test_an_input_that_no_study_has_is_refused():
    with pytest.raises(ConfigError, match='no input "nodes"'):
        measure_study("stragglers", inputs={"nodes": 4}, on_step=lambda what: None)
    with pytest.raises(ConfigError, match="no study"):
        measure_study("straglers", on_step=lambda what: None)


def prediction(where: str, way: str, *, predicted: float, measured: float) -> Prediction:
    return Prediction(
        setting={"way": way, "message": where},
        quantity="time (s)",
        scale="relative",
        predicted=predicted,
        measured=measured,
        baseline=1.0,
    )


def test_the_worst_error_and_a_wrong_choice_are_named():
    measured = Measured(
        study="collectives",
        finding="So.",
        setting="So.",
        predictions=(
            prediction("1 kB", "ring", predicted=2.0, measured=2.0),
            prediction("1 kB", "tree", predicted=1.0, measured=3.0),
            prediction("1 MB", "ring", predicted=4.0, measured=4.0),
            prediction("1 MB", "tree", predicted=5.0, measured=5.0),
            prediction("2 MB", "ring", predicted=8.0, measured=8.1),
            prediction("2 MB", "tree", predicted=9.0, measured=8.0),
            prediction("4 MB", "ring", predicted=8.0, measured=8.0),
        ),
        charts=(),
        rivals="way",
    )
    (worst,) = measured.worst
    assert worst.setting == {"way": "tree", "message": "1 kB"}
    small, large, tie = measured.choices
    assert (small.modelled, small.measured, small.cost) == ("tree", "ring", 0.5)
    assert small.wrong
    assert large.cost == 0
    assert not tie.wrong, "one in a hundred is no difference"
    assert measured.remarks == (
        "Furthest off: time (s) -66.7 % (way tree, message 1 kB).",
        "The model chooses the best way in 2 of 3 cases; it takes tree where ring is best (message 1 kB), which costs "
        "50 %.",
    )
    assert measured.to_json()["remarks"] == list(measured.remarks)


def test_a_measurement_without_rivals_has_no_choices():
    measured = Measured(study="overlap", finding="So.", setting="So.", predictions=(), charts=(), scope=Scope())
    assert measured.choices == measured.worst == measured.remarks == ()


def test_the_page_has_the_inputs_of_each_measurement():
    page = (Path(__file__).parents[4] / "docs" / "planning" / "studies" / "README.md").read_text(encoding="utf-8")
    for study in map(find_study, NAMES):
        module, options = module_of(study.name), {one.name: one.option for one in study.inputs()}
        taken = " ".join(f"`{options[one.name]}`" for one in measured_inputs(study.name))
        found = " ".join(f"`{options[name]}`" for name in module.FOUND) or "–"
        assert f"| {taken} | {found} |\n" in page, study.name
