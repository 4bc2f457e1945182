"""The estimate beside what others published: in a terminal, and as a page."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from plesio.report.charts import terminal_table
from plesio.report.markup import prose
from plesio.report.page_frame import page_of, section, section_of_charts, table
from plesio.report.validation import SUMMARY_HEADERS, plain_table, prediction_rows, row_headers, summary_rows
from plesio_planning.estimate.validation import Validation
from plesio_planning.estimate.validation_charts import validation_charts, validation_findings, validation_tables

__all__ = ["render_estimator", "render_estimator_page"]


def render_estimator(validation: Validation) -> RenderableType:
    """What the cross-validations found, their groups, and the summary of all rows."""
    rows: list[RenderableType] = [Text(finding) for finding in validation_findings(validation)]
    for one in validation_tables(validation):
        rows += [Text(), terminal_table(one)]
    summary = plain_table(SUMMARY_HEADERS, summary_rows(validation.predictions), num_texts=1)
    return Group(*rows, Padding(summary, (1, 0, 0, 0)))


def render_estimator_page(validation: Validation) -> str:
    """The page as one HTML document, with every row."""
    predictions = validation.predictions
    words = "".join(f"<p>{prose(finding)}</p>" for finding in validation_findings(validation))
    return page_of(
        [
            section(words, slug="in-words", title="In words"),
            *(
                section(table(one.headers, one.rows), slug=f"table-{place}", title=one.title.removesuffix(":"))
                for place, one in enumerate(validation_tables(validation))
            ),
            section_of_charts(validation_charts(validation), title="In pictures"),
            section(table(SUMMARY_HEADERS, summary_rows(predictions)), slug="summary", title="Errors by quantity"),
            section(table(row_headers(predictions), prediction_rows(predictions)), slug="rows", title="Row by row"),
        ],
        title="Plesio: estimated and published",
        header="<h1>Estimated and published</h1>\n<p>Step times and memory that others published, beside the estimate "
        "and a constant utilisation. Sources, and what the numbers do not say, are in docs/planning/estimate.md.</p>",
    )
