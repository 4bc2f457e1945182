"""Laws of every study."""

import dataclasses
import inspect
import json
import math
from collections.abc import Callable

import pytest

from asked import QUICK, asked_once, asked_quickly
from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError
from plesio_planning.report.study import write_study
from plesio_planning.studies import STUDIES, Asked, Study, find_study
from plesio_planning.studies.exercises import EXERCISES

each_study = pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)


@each_study
@pytest.mark.parametrize("ask", [asked_quickly, pytest.param(asked_once, marks=pytest.mark.slow)])
def test_parts_add_up_to_the_total(study: Study, ask: Callable[[Study], Asked]):
    answer = ask(study).answer
    assert answer.parts
    assert math.fsum(answer.parts.values()) == pytest.approx(answer.total, rel=1e-9)
    assert math.isfinite(answer.total)


@each_study
def test_the_answer_is_frozen_shown_and_said(study: Study):
    answer = asked_quickly(study).answer
    assert answer.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert answer.finding.endswith(".")
    assert answer.tables()
    charts = answer.charts()
    assert charts
    assert len({chart.slug for chart in charts}) == len(charts)
    assert all(chart.title and chart.caption.endswith(".") for chart in charts)


@each_study
def test_the_same_question_has_the_same_answer(study: Study):
    again = study.ask(**QUICK.get(study.name, {}))
    assert json.dumps(asked_quickly(study).to_json()) == json.dumps(again.to_json())


@each_study
def test_inputs_explain_themselves_and_read_what_they_print(study: Study):
    options = [one.option for one in study.inputs()]
    assert len(set(options)) == len(options)
    for one in study.inputs():
        assert one.help.endswith("."), one.name
        if one.default is not None and one.kind != "switch":
            again = one.parse(one.format(one.default))
            assert again == (pytest.approx(one.default, rel=5e-3) if one.kind != "text" else one.default), one.name


@each_study
def test_numbers_that_are_none_and_seeds_that_are_none_are_refused(study: Study):
    for one in study.inputs():
        if one.kind == "number":
            value = (math.nan,) if one.many else math.nan
            with pytest.raises(ConfigError, match=f"{one.name} is nan; write a finite number"):
                study.ask(**{one.name: value})
        if one.name == "seed":
            with pytest.raises(ConfigError, match="seed is -1; write 0 or more"):
                study.ask(seed=-1)


@each_study
def test_the_exercise_asks_with_the_inputs_and_has_an_answer(study: Study):
    asked, exercise = asked_quickly(study), EXERCISES[study.name]
    assert "{" not in exercise.ask(asked)
    assert exercise.ask(asked).endswith("?")
    value = exercise.value(asked.answer)
    assert math.isfinite(value)
    assert ": right" in exercise.judge(value, asked)
    assert ": far off" in exercise.judge(10 * value + 10, asked)
    assert exercise.judge(None, asked).startswith("It is ")


@each_study
def test_every_field_is_described(study: Study):
    """A number without a meaning and a unit is of no use in a JSON file."""
    answer = type(asked_quickly(study).answer)
    described = inspect.getdoc(answer) or ""
    for field in dataclasses.fields(answer):  # type: ignore[arg-type]
        assert f"    {field.name}: " in described, field.name


@pytest.mark.one_in(len(STUDIES))
@each_study
def test_files_are_written(study: Study, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("study")
    asked = asked_quickly(study)
    page = write_study(asked, folder)
    assert page.stat().st_size < 1e6
    assert page.read_text().count("<figure") == len(asked.answer.charts())
    for chart in asked.answer.charts():
        assert (folder / f"{study.name}-{chart.slug}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / f"{study.name}.json").read_text())["study"] == study.name


@each_study
def test_help_has_an_example(capsys: pytest.CaptureFixture[str], study: Study):
    assert invoke(["study", study.name, "--help"]) == 0
    assert f"  Examples:\n    plesio study {study.name}" in capsys.readouterr().out


def test_numbers_are_those_of_the_catalogue():
    assert [study.number for study in STUDIES] == list(range(1, len(STUDIES) + 1))


def test_an_unknown_study_or_input_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match='did you mean "stragglers"'):
        find_study("straglers")
    with pytest.raises(ConfigError, match='did you mean "num_workers"'):
        find_study("data-parallel").ask(num_worker=3)
