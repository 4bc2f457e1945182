"""Laws of every theorem that can be evaluated by name."""

import json
import math
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio.core.charts import LineChart
from plesio.core.errors import ConfigError
from plesio_planning.report.bound import write_bound
from plesio_planning.theory import THEOREMS, Theorem, find_theorem
from plesio_planning.theory.pictures import pictures_of

each_theorem = pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.name)


def _defaults(theorem: Theorem) -> dict[str, object]:
    return {one.name: one.default for one in theorem.inputs()}


@each_theorem
def test_the_example_has_a_value_that_is_the_sum_of_parts(theorem: Theorem):
    bound = theorem.evaluate()
    assert bound.value == pytest.approx(math.fsum(bound.parts.values()))
    assert 0 <= bound.value < math.inf
    assert all(condition.holds for condition in bound.conditions)


@each_theorem
def test_it_says_what_it_is_who_showed_it_and_what_its_inputs_mean(theorem: Theorem):
    assert theorem.summary.endswith(".")
    assert theorem.statement
    assert theorem.source
    assert theorem.over in _defaults(theorem)
    options = [one.option for one in theorem.inputs()]
    assert len(set(options)) == len(options)
    assert all(one.help.endswith(".") for one in theorem.inputs())


@pytest.mark.one_in(12)
@each_theorem
def test_its_page_pictures_and_numbers_are_written(theorem: Theorem, tmp_path_factory: pytest.TempPathFactory):
    folder, inputs = tmp_path_factory.mktemp("bound"), _defaults(theorem)
    charts = pictures_of(theorem, inputs)
    page = write_bound(theorem, inputs, theorem.evaluate(), folder)
    assert page.read_text().count("<figure") == len(charts) > 0
    for chart in charts:
        assert (folder / f"{theorem.name}-{chart.slug}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / f"{theorem.name}.json").read_text())["value"] == theorem.evaluate().value


@each_theorem
def test_its_help_has_an_example(capsys: pytest.CaptureFixture[str], theorem: Theorem):
    assert invoke(["bound", theorem.name, "--help"]) == 0
    assert f"  Examples:\n    plesio bound {theorem.name}" in capsys.readouterr().out


def test_the_docs_have_every_theorem():
    docs = (Path(__file__).parents[4] / "docs" / "planning" / "theory.md").read_text()
    assert [theorem.name for theorem in THEOREMS if f"`{theorem.name}`" not in docs] == []


def test_a_curve_has_a_gap_where_a_premise_fails():
    theorem = find_theorem("error-feedback")
    (chart,) = pictures_of(theorem, _defaults(theorem))
    assert isinstance(chart, LineChart)
    for place, value in zip(chart.series[0].x, chart.series[0].y, strict=True):
        assert math.isnan(value) == (place > 1)


def test_an_unknown_bound_or_input_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match='did you mean "local-sgd"'):
        find_theorem("local-sdg")
    with pytest.raises(ConfigError, match='did you mean "period"'):
        find_theorem("local-sgd").evaluate(perod=3)


def test_the_command_says_value_parts_premises_and_source(capsys: pytest.CaptureFixture[str]):
    assert invoke(["bound", "asynchronous-nonconvex", "--max-staleness", "10"]) == 0
    out = capsys.readouterr().out
    for words in ("Mean E‖∇f‖²: 0.212", "staleness", "αL + 2α²L²τ² ≤ 1", "yes", "Source: Lian"):
        assert words in out


def test_the_command_refuses_where_a_premise_fails(capsys: pytest.CaptureFixture[str]):
    assert invoke(["bound", "synchronous-sgd", "--learning-rate", "1"]) == 2
    assert "αL < 1 does not hold (1 against 1); write a --learning-rate below 1" in capsys.readouterr().err


def test_the_list_has_a_line_each(capsys: pytest.CaptureFixture[str]):
    assert invoke(["list", "bounds"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [each.name for each in THEOREMS]
