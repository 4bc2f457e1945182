"""The estimate beside what others published: in a terminal, and as a page."""

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.report.charts import plain_table
from plesio.report.document import Document, pictures, section, tables
from plesio.report.page_frame import render_document
from plesio.report.validation import predictions_table, summary_table
from plesio_planning.estimate.validation import Validation
from plesio_planning.estimate.validation_charts import validation_charts, validation_findings, validation_tables
from plesio_planning.report.answer import in_terminal


def render_estimator(validation: Validation) -> RenderableType:
    shown = in_terminal(validation_findings(validation), validation_tables(validation))
    return Group(*shown, Text(), plain_table(summary_table(validation.predictions)))


def render_estimator_page(validation: Validation) -> str:
    """Render the page as one HTML document, with every row."""
    summary, rows = summary_table(validation.predictions), predictions_table(validation.predictions)
    document = Document(
        title="Plesio: estimated and published",
        heading="Estimated and published",
        facts=[
            "Step times and memory that others published, beside the estimate and a constant utilisation. Sources, "
            "and what the numbers do not say, are in docs/planning/estimate.md."
        ],
        sections=[
            section("In words", *validation_findings(validation), slug="in-words"),
            *tables(validation_tables(validation)),
            pictures(validation_charts(validation)),
            section(summary.title, summary, slug="summary"),
            section(rows.title, rows, slug="rows"),
        ],
    )
    return render_document(document)
