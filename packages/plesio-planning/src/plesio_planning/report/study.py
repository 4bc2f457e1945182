"""A study's answer in a terminal, as a page, and as files; and the index of many."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.core.charts import Table
from plesio.core.records import to_json
from plesio.core.units import format_percent, format_seconds
from plesio.report.document import Card, Cards, Document, PageSection, pictures, section, tables
from plesio.report.page_frame import render_document
from plesio_planning.report.answer import in_terminal, inputs_section, write_answer
from plesio_planning.studies import Asked, find_study
from plesio_planning.studies.measured import Measured, error_text
from plesio_planning.studies.textbook import Printed, printed_results, value_text


def render_answer(asked: Asked) -> RenderableType:
    printed = printed_results(find_study(asked.study), asked=asked)
    shown = (parts_table(asked), *asked.answer.tables(), *([printed_table(printed)] if printed else []))
    return Group(*in_terminal([asked.answer.finding], shown), *map(Text, cause_texts(printed)))


def printed_table(printed: Sequence[Printed]) -> Table:
    """Make a row for each printed result of the text, ours beside it; a number leads to the cause."""
    rows = [
        (row.what, value_text(row.text, row.unit), value_text(row.here, row.unit), str(number))
        for number, one in enumerate(printed, start=1)
        for row in one.rows
    ]
    title = "The text's results, and ours from its inputs:"
    return Table(title=title, headers=("what", "the text", "here", "cause"), rows=rows)


def cause_texts(printed: Sequence[Printed]) -> list[str]:
    """Write a numbered sentence for each reason why the text's results differ from ours, with their place."""
    return [
        f"{number}. {one.cause} ({one.place if one.by == 'study' else f'{one.place}; here: by {one.by}'})"
        for number, one in enumerate(printed, start=1)
    ]


def parts_table(asked: Asked) -> Table:
    answer = asked.answer
    rows = [*answer.parts.items(), ("total", answer.total)]
    in_seconds = answer.unit == "s"
    return Table(
        title="What it is made of:",
        headers=("part", "time" if in_seconds else answer.unit, "share"),
        rows=[
            (
                name,
                format_seconds(value) if in_seconds else f"{value:,.4g}",
                format_percent(value / answer.total) if answer.total else "–",
            )
            for name, value in rows
        ],
    )


def render_measured(measured: Measured) -> RenderableType:
    return Group(
        Text(),
        *in_terminal([measured.finding], [measured_table(measured)]),
        *map(Text, (measured.setting, *measured.remarks)),
    )


def measured_table(measured: Measured) -> Table:
    rows = [
        (
            ", ".join(f"{name} {value}" for name, value in one.setting.items()),
            one.quantity,
            f"{one.predicted:.4g}",
            f"{one.measured:.4g}",
            error_text(one.error, one.scale),
            error_text(one.baseline_error, one.scale),
        )
        for one in measured.predictions
    ]
    headers = ("where", "what", "modelled", "measured", "error", "baseline's error")
    return Table(title="Modelled and measured:", headers=headers, rows=rows)


def render_study_page(asked: Asked, *, measured: Measured | None = None) -> str:
    study = find_study(asked.study)
    document = Document(
        title=f"Plesio: {asked.study}",
        heading=asked.question,
        facts=[f"Study {study.number}: {asked.study}"],
        sections=[
            section("In words", asked.answer.finding, slug="in-words"),
            pictures(asked.answer.charts()),
            *([] if measured is None else _measured_sections(measured)),
            _printed_section(asked),
            *tables((parts_table(asked), *asked.answer.tables())),
            inputs_section(study.inputs(), asked.inputs),
        ],
    )
    return render_document(document)


def _printed_section(asked: Asked) -> PageSection | None:
    study = find_study(asked.study)
    printed = printed_results(study, asked=asked)
    if not printed:
        return None
    words = "Ours are from the text's inputs, whatever was asked above."
    title = f"Beside the text, exercise {study.exercise}"
    return section(title, words, printed_table(printed), *cause_texts(printed), slug="textbook")


def _measured_sections(measured: Measured) -> list[PageSection | None]:
    words = (f"{measured.finding} {measured.setting}", *measured.remarks)
    return [
        pictures(measured.charts, title="Measured", slug="measured"),
        section("How far the model is off", *words, measured_table(measured), slug="errors"),
    ]


def render_index_page(answers: Sequence[Asked]) -> str:
    """Render the page that leads to the pages of all ``answers``, which `write_study` wrote into its folder."""
    cards = []
    for asked in answers:
        first = asked.answer.charts()[0]
        card = Card(
            title=asked.question,
            href=f"{asked.study}.html",
            picture=f"{asked.study}-{first.slug}.png",
            alt=first.caption,
            caption=asked.answer.finding,
        )
        cards.append(card)
    document = Document(
        title="Plesio: studies",
        heading=f"{len(answers)} studies",
        facts=["Each with its defaults; its page has tables and all pictures."],
        sections=[section("Questions and answers", Cards(cards), slug="studies")],
    )
    return render_document(document)


def write_study(asked: Asked, out: Path, *, measured: Measured | None = None) -> Path:
    """Write the page, the pictures and the numbers into the folder ``out``; returns the page's path.

    Raises:
        DataError: A file cannot be written.
    """
    charts = [*asked.answer.charts(), *(() if measured is None else measured.charts)]
    text, values = render_study_page(asked, measured=measured), study_values(asked, measured=measured)
    return write_answer(out / f"{asked.study}.html", text, charts, values, indent=None)


def study_values(asked: Asked, *, measured: Measured | None) -> dict[str, Any]:
    """Return the numbers as JSON values."""
    printed = {"textbook": to_json(printed_results(find_study(asked.study), asked=asked))}
    return asked.to_json() | printed | ({} if measured is None else {"measured": measured.to_json()})
