import io

import pytest

from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError
from plesio_planning.studies import STUDIES
from plesio_planning.studies.exercises import EXERCISES


def test_every_study_has_an_exercise():
    assert list(EXERCISES) == [study.name for study in STUDIES]


def test_a_prediction_is_judged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stdin", io.StringIO("30 %\n"))
    assert invoke(["study", "pipeline", "--micro-batches", "16", "--quiz"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("8 stages run 16 micro-batches (1f1b). Which share of the time do they wait?")
    assert "It is 30.4 %. You said 30.0 %: right, 0.4 points off.\nWith GPipe and 1F1B" in said


def test_without_a_prediction_the_answer_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert invoke(["study", "data-parallel", "--quiz"]) == 0
    assert "\nIt is 67.2 %.\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["many", "-3", "nan"])
def test_what_is_no_prediction_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{text}\n"))
    assert invoke(["study", "data-parallel", "--quiz"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(ConfigError, match="20 ms"):
        EXERCISES["overlap"].read("soon")


def test_a_quiz_has_no_page(capsys: pytest.CaptureFixture[str]):
    assert invoke(["study", "data-parallel", "--quiz", "--out", "never"]) == 2
    assert "--out has no effect with --quiz" in capsys.readouterr().err
