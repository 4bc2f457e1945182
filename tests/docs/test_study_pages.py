"""Options that the pages of studies name are there."""

import functools
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plesio.cli.commands import app
from plesio_planning.measured import has_measurement
from plesio_planning.studies import STUDIES, Study

PAGES = Path(__file__).parents[2] / "docs" / "planning" / "studies"
COMMAND = re.compile(r"\bplesio ((?:[a-z][a-z-]* )+)([^`\n]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
MEASURED = re.compile(r"^\| ([a-z][a-z-]+) \|(.*)$", flags=re.MULTILINE)


@functools.cache
def options_of(words: str) -> set[str]:
    """The options that a command's help lists: ``options_of("study pipeline")``."""
    told = CliRunner().invoke(app, [*words.split(), "--help"])
    assert told.exit_code == 0, told.output
    return set(re.findall(r"^  (--[a-z][a-z-]*)", told.output, flags=re.MULTILINE))


def unknown(text: str, words: str) -> set[str]:
    """Options in the text that the command does not have."""
    return set(OPTION.findall(text)) - options_of(words)


@pytest.mark.parametrize("study", STUDIES, ids=lambda each: each.name)
def test_a_page_names_options_that_there_are(study: Study):
    text = (PAGES / f"{study.name}.md").read_text(encoding="utf-8")
    commands = COMMAND.findall(text)
    assert f"study {study.name}" in {words.strip() for words, _ in commands}
    for words, rest in commands:
        assert unknown(rest, words.strip()) == set(), words
    assert unknown(COMMAND.sub("", text), f"study {study.name}") == set()


def test_the_table_of_measurements_names_options_that_there_are():
    rows = dict(MEASURED.findall((PAGES / "README.md").read_text(encoding="utf-8").partition("## Measurements")[2]))
    del rows["study"]
    assert set(rows) == {study.name for study in STUDIES if has_measurement(study.name)}
    for name, row in rows.items():
        assert unknown(row, f"study {name}") == set(), name
