"""A theorem's answer for given numbers: in a terminal, as a page, and as files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.core.charts import Chart, Table
from plesio.core.records import to_json
from plesio.core.units import format_seconds
from plesio.report.document import Document, pictures, section, tables
from plesio.report.page_frame import render_document
from plesio_planning.report.answer import in_terminal, inputs_section, write_answer
from plesio_planning.theory import Bound, Theorem
from plesio_planning.theory.pictures import pictures_of


def render_bound(theorem: Theorem, bound: Bound) -> RenderableType:
    shown = in_terminal([_finding(bound)], _tables(bound))
    return Group(*shown, Text(), Text(theorem.statement), Text(f"\nSource: {theorem.source}"))


def render_bound_page(theorem: Theorem, inputs: Mapping[str, Any], bound: Bound, *, charts: Sequence[Chart]) -> str:
    """Render the page as one HTML document; ``inputs`` are all of the theorem's."""
    words = (_finding(bound), theorem.statement, f"Source: {theorem.source}")
    document = Document(
        title=f"Plesio: {theorem.name}",
        heading=theorem.summary,
        sections=[
            section("In words", *words, slug="in-words"),
            pictures(charts),
            *tables(_tables(bound)),
            inputs_section(theorem.inputs(), inputs),
        ],
    )
    return render_document(document)


def write_bound(theorem: Theorem, inputs: Mapping[str, Any], bound: Bound, out: Path) -> Path:
    """Write the page, the pictures and the numbers into the folder ``out``; returns the page's path.

    Raises:
        DataError: A file cannot be written.
    """
    charts = pictures_of(theorem, inputs)
    text = render_bound_page(theorem, inputs, bound, charts=charts)
    return write_answer(out / f"{theorem.name}.html", text, charts, bound_values(theorem, inputs, bound))


def bound_values(theorem: Theorem, inputs: Mapping[str, Any], bound: Bound) -> dict[str, Any]:
    """Return the numbers as JSON values."""
    values = {"bound": theorem.name, "inputs": inputs, "value": bound.value, "details": bound.to_json()}
    shown: dict[str, Any] = to_json(values)
    return shown


def _finding(bound: Bound) -> str:
    order = ", up to constants and logarithms" if bound.order else ""
    return f"{bound.quantity[0].upper()}{bound.quantity[1:]}: {bound.format(bound.value)}{order}."


def _tables(bound: Bound) -> list[Table]:
    tables = []
    if len(bound.parts) > 1:
        rows = [(name, bound.format(part), _share(part, bound.value)) for name, part in bound.parts.items()]
        tables.append(Table(title="What it is made of:", headers=("part", "value", "share"), rows=rows))
    if bound.also:
        tables.append(Table(title="What follows:", headers=("what", "value"), rows=[*map(_also, bound.also.items())]))
    if bound.conditions:
        premises = [(one.premise, f"{one.value:.4g}", f"{one.limit:.4g}", "yes") for one in bound.conditions]
        headers = ("premise", "value", "limit", "holds")
        tables.append(Table(title="What it rests on:", headers=headers, rows=premises))
    return tables


def _also(item: tuple[str, float]) -> tuple[str, str]:
    name, value = item
    return (name.removesuffix(" (s)"), format_seconds(value)) if name.endswith(" (s)") else (name, f"{value:.6g}")


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"
