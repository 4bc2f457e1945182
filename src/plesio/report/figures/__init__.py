"""The figures of a report: each answers one question, and its title is the answer."""

from collections.abc import Sequence

from plesio.report.figures.bars import bytes_figure, staleness_figure, worker_times_figure
from plesio.report.figures.dots import final_metric_figure, target_times_figure, times_figure
from plesio.report.figures.gantt import gantt_figure
from plesio.report.figures.lines import loss_figure, progress_figure
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import policy_styles
from plesio.report.model import Comparison
from plesio.report.timelines import Timeline

__all__ = ["PageFigure", "make_figures"]


def make_figures(comparison: Comparison, *, timelines: Sequence[Timeline] = ()) -> list[PageFigure]:
    """The figures that this comparison has data for, in the order of the page."""
    styles = policy_styles([summary.policy for summary in comparison.policies], baseline=comparison.baseline)
    made = (
        times_figure(comparison, styles=styles),
        final_metric_figure(comparison, styles=styles),
        target_times_figure(comparison, styles=styles),
        bytes_figure(comparison),
        progress_figure(comparison, styles=styles),
        loss_figure(comparison, styles=styles),
        worker_times_figure(comparison),
        gantt_figure(timelines),
        staleness_figure(comparison, styles=styles),
    )
    return [figure for figure in made if figure is not None]
