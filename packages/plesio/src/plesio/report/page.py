"""The report of a comparison as one page. Every text that came from a file is escaped."""

from collections.abc import Sequence

from plesio.report import page_details as details
from plesio.report import page_overview as overview
from plesio.report.comparison_charts import comparison_charts
from plesio.report.grid_stages import RunStages, grid_charts, grid_tables
from plesio.report.markup import prose
from plesio.report.model import Comparison
from plesio.report.operation import Operation
from plesio.report.page_details import TraceLink
from plesio.report.page_frame import page_of, section, section_of_charts, table
from plesio.report.resource_charts import resource_charts
from plesio.report.timelines import Window
from plesio.report.utilisation import RunUtilisation

__all__ = ["render_page"]


def render_page(
    comparison: Comparison,
    *,
    traces: Sequence[TraceLink] = (),
    windows: Sequence[Window] = (),
    utilisations: Sequence[RunUtilisation] = (),
    operations: Sequence[Operation] = (),
    stages: Sequence[RunStages] = (),
) -> str:
    """The page as one HTML document, with links to the runs' ``traces`` and pictures of what was read from them."""
    charts = [*comparison_charts(comparison, windows=windows), *resource_charts(comparison, utilisations)]
    runs = [
        details.run_table(comparison),
        details.decision_list(comparison),
        details.trace_list(traces),
        details.environment_list(comparison),
    ]
    return page_of(
        [
            overview.alerts(comparison),
            section(overview.comparison_table(comparison), slug="comparison", title="The comparison"),
            section(overview.sentence_list(comparison), slug="in-words", title="In words"),
            overview.advice_section(comparison, operations),
            section_of_charts(charts, title="In pictures"),
            _stages_of_grids(stages),
            section("\n".join(runs), slug="details", title="The runs"),
        ],
        title=f"Plesio: {comparison.task}",
        header=overview.heading(comparison),
    )


def _stages_of_grids(runs: Sequence[RunStages]) -> str:
    if not runs:
        return ""
    tables = "\n".join(
        f"<h3>{prose(one.title)}</h3>{table(one.headers, one.rows, even=True)}" for one in grid_tables(runs)
    )
    pictures = section_of_charts(grid_charts(runs), title="Stages of the grids", slug="stages")
    return pictures + section(tables, slug="stages-kept", title="What stages kept")
