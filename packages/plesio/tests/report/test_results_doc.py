import dataclasses
import re
from pathlib import Path

import pytest

from plesio.core import results

PAGE = (Path(__file__).parents[4] / "docs" / "results.md").read_text(encoding="utf-8")
SCHEMA = [
    results.RunResult,
    results.WorkerTimes,
    results.MemorySplit,
    results.Utilisation,
    results.Level,
    results.Staleness,
    results.Evaluation,
    results.LossPoint,
    results.Environment,
]


def documented() -> list[str]:
    """The first cell of every table row: the fields, as the page names them."""
    return re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("kind", SCHEMA, ids=lambda kind: str(kind.__name__))
def test_every_field_of_the_schema_is_documented(kind: type):
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields - set(documented()) == set()


def test_the_page_documents_no_field_that_does_not_exist():
    fields = {field.name for kind in SCHEMA for field in dataclasses.fields(kind)}
    assert set(documented()) - fields == set()


def test_the_page_names_the_schema_version():
    assert f'"schema_version": {results.SCHEMA_VERSION}' in PAGE
