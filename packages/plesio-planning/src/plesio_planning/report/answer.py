"""The parts of all answers: texts and tables in a terminal, and a page with its pictures and numbers as files."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from plesio.core.charts import Chart, Table
from plesio.core.files import write_whole
from plesio.core.inputs import Input
from plesio.report.charts import draw_picture, terminal_table
from plesio.report.document import PageSection, section


def in_terminal(words: Iterable[str], tables: Iterable[Table]) -> list[RenderableType]:
    """Render sentences, and below them tables with a line before each."""
    return [*map(Text, words), *(part for table in tables for part in (Text(), terminal_table(table)))]


def inputs_section(inputs: Iterable[Input], values: Mapping[str, Any]) -> PageSection | None:
    rows = [(one.option, one.format(values[one.name]), one.help) for one in inputs]
    table = Table(title="What it was asked with", headers=("input", "value", "meaning"), rows=rows)
    return section(table.title, table, slug="inputs")


def write_answer(
    page: Path, text: str, charts: Iterable[Chart], values: dict[str, Any], *, indent: int | None = 1
) -> Path:
    """Write a page, and beside it each picture and the numbers, whose files begin with its name; return its path.

    Raises:
        DataError: A file cannot be written.
    """
    write_whole(page, text)
    for chart in charts:
        write_whole(page.with_name(f"{page.stem}-{chart.slug}.png"), draw_picture(chart))
    write_whole(page.with_suffix(".json"), json.dumps(values, indent=indent) + "\n")
    return page
