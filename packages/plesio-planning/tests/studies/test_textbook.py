"""Results that the text prints, beside what its inputs give."""

import json
import math
from pathlib import Path

import pytest

from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError
from plesio_planning.studies import STUDIES, Study, find_study
from plesio_planning.studies.textbook import printed_results, value_text

EXERCISED = [study for study in STUDIES if study.exercise is not None]
LONG = ("local-sgd", "mixture-of-experts", "staleness-weighting")
"""Studies whose results take more than half a second."""


@pytest.mark.parametrize(
    "study",
    [pytest.param(one, marks=[pytest.mark.slow] * (one.name in LONG)) for one in EXERCISED],
    ids=lambda study: study.name,
)
def test_every_study_has_results_of_its_solution_with_the_cause(study: Study):
    results = printed_results(study)
    assert any(one.place == "solution" for one in results)
    for one in results:
        assert one.rows
        assert one.cause.endswith(".")
        for row in one.rows:
            assert isinstance(row.here, str) or row.here >= 0
            if isinstance(row.text, float) and isinstance(row.here, float) and math.isfinite(row.text):
                alike = math.isclose(row.text, row.here, rel_tol=0.01)
                assert alike == one.cause.startswith("The same"), row


@pytest.mark.parametrize("study", EXERCISED, ids=lambda study: study.name)
def test_its_page_has_the_number_of_the_exercise_by_which_the_command_finds_it(study: Study):
    page = Path(__file__).parents[4] / "docs" / "planning" / "studies" / f"{study.name}.md"
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# Study {study.exercise.removeprefix('C.')}: ")
    assert f"    plesio study {study.name}\n" in text


@pytest.mark.parametrize(
    ("name", "what", "here"),
    [
        ("data-parallel", "iteration", 185.9),
        ("data-parallel", "ring and tree cross, 50 GB/s", 17.63),
        ("stragglers", "efficiency, CV 0.1", 100 / 1.320),
        ("bounded-staleness", "iterations, τ = 20", 12152),
        ("collectives", "ring, 100 MB", 9.08),
        ("pipeline", "bubble, m = 4", 63.6),
        ("compression", "iterations, top 1 %", 8660),
        ("parameter-server", "server over ring", 16.06),
        ("batch-scaling", "accuracy, B = 32,768", 62.5),
        ("tensor-parallel", "sent by a device in a step", 33.8),
        ("hierarchical", "two levels, one NIC a node", 56.9),
    ],
)
def test_ours_are_the_reference_values(name: str, what: str, here: float):
    (row,) = (row for one in printed_results(find_study(name)) for row in one.rows if row.what == what)
    assert row.here == pytest.approx(here, rel=2e-3)


def test_they_are_told_with_the_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert invoke(["study", "C.4", "--ranks", "8", "--other-ranks", "16", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for words in ("The text's results", "ring and tree cross", "125.4 MB", "17.63 MB", "1. Its own table"):
        assert words in out
    page = (tmp_path / "collectives.html").read_text()
    assert "Beside the text, exercise C.4" in page
    assert "125.4 MB" in page
    first = json.loads((tmp_path / "collectives.json").read_text())["textbook"][0]["rows"][0]
    assert (first["what"], first["text"]) == ("ring and tree cross", 125.4)


@pytest.mark.parametrize("name", ["4", "C.4", "c.4", "collectives"])
def test_a_study_goes_by_number_and_exercise(capsys: pytest.CaptureFixture[str], name: str):
    assert find_study(name).name == "collectives"
    assert invoke(["study", name, "--help"]) == 0
    assert "plesio study collectives" in capsys.readouterr().out


@pytest.mark.parametrize("name", [str(len(STUDIES) + 1), "C.0", f"C.{len(EXERCISED) + 1}", "C4", "A.4", "None", ""])
def test_other_numbers_are_no_study(name: str):
    with pytest.raises(ConfigError, match="there is no study"):
        find_study(name)


def test_a_study_without_an_exercise_has_none_of_them(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    goodput = find_study("goodput")
    assert find_study(str(goodput.number)) is goodput
    assert (goodput.exercise, printed_results(goodput)) == (None, ())
    assert invoke(["study", "goodput", "--simulated-failures", "100", "--out", str(tmp_path)]) == 0
    assert "The text" not in capsys.readouterr().out
    assert "Beside the text" not in (tmp_path / "goodput.html").read_text()


def test_a_value_that_diverges_says_so():
    assert value_text(math.inf, "iterations") == "diverges"
