"""What each worker did, moment by moment: a panel a policy, a row a worker."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from plesio.report.figures.bars import panels
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import ACTIVITY_COLOURS, lay_out
from plesio.report.timelines import MOST_WORKERS, Timeline

__all__ = ["gantt_figure"]

_PANEL_TITLE_PX = 30
_ROW_PX = 20


def gantt_figure(timelines: Sequence[Timeline]) -> PageFigure | None:
    """A few steps of each policy's first run, all to one scale; None without traces."""
    if not timelines:
        return None
    rows = max(len({span.worker for span in timeline.spans}) for timeline in timelines)
    figure, height_px = panels([timeline.policy for timeline in timelines], panel_px=max(2, rows) * _ROW_PX)
    length_ms = 1e3 * max(timeline.ends_s - timeline.begins_s for timeline in timelines)
    in_legend: set[str] = set()
    for row, timeline in enumerate(timelines, start=1):
        for activity, bars in _bars(timeline).items():
            if not bars:
                continue
            figure.add_trace(
                go.Bar(
                    base=[begin_ms for _, begin_ms, _, _ in bars],
                    x=[duration_ms for _, _, duration_ms, _ in bars],
                    y=[str(worker) for worker, _, _, _ in bars],
                    customdata=[clock for _, _, _, clock in bars],
                    orientation="h",
                    name=activity,
                    legendgroup=activity,
                    showlegend=activity not in in_legend,
                    marker={"color": ACTIVITY_COLOURS[activity], "line": {"width": 0.5, "color": "white"}},
                    hovertemplate=f"worker %{{y}}, step %{{customdata}}: %{{x:.3g}} ms<extra>{activity}</extra>",
                ),
                row=row,
                col=1,
            )
            in_legend.add(activity)
    lay_out(figure, height_px=height_px + 90, legend_gap_px=_PANEL_TITLE_PX, barmode="overlay", bargap=0.2)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_xaxes(range=[0, length_ms])
    figure.update_xaxes(title_text="milliseconds from the window's beginning", row=len(timelines), col=1)
    most = max(timeline.num_workers for timeline in timelines)
    only = f" Of {most} workers the first are shown, and the slowest." if most > MOST_WORKERS else ""
    return PageFigure(
        slug="gantt",
        title="A few steps from the middle of each policy's first run",
        caption=f"A row a worker, named by its number. The traces below have all steps.{only}",
        figure=figure,
        wide=True,
    )


def _bars(timeline: Timeline) -> Mapping[str, list[tuple[int, float, float, int]]]:
    """For each activity (worker, beginning and duration in milliseconds, clock), cut to the window."""
    bars: dict[str, list[tuple[int, float, float, int]]] = {activity: [] for activity in ACTIVITY_COLOURS}
    for span in timeline.spans:
        begin_s = max(span.at_s, timeline.begins_s)
        duration_s = min(span.at_s + span.duration_s, timeline.ends_s) - begin_s
        if duration_s > 0 and span.kind in bars:
            bars[span.kind].append((span.worker, 1e3 * (begin_s - timeline.begins_s), 1e3 * duration_s, span.clock))
    return bars
