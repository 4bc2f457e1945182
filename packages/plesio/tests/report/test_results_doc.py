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


@pytest.mark.parametrize("kind", SCHEMA, ids=lambda kind: str(kind.__name__))
def test_a_schema_documents_no_field_that_does_not_exist(kind: type):
    told = re.findall(r"^        (\w+): ", (kind.__doc__ or "").partition("Attributes:")[2], flags=re.MULTILINE)
    assert set(told) - {field.name for field in dataclasses.fields(kind)} == set()


def test_the_page_names_the_schema_version():
    assert f'"schema_version": {results.SCHEMA_VERSION}' in PAGE
