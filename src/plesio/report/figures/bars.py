"""Figures of amounts: bytes by link class, where each worker's time went, how stale the updates were."""

import html
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plesio.core.units import format_bytes
from plesio.report.figures import findings
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import ACTIVITY_COLOURS, LINK_COLOURS, PolicyStyle, axis_label, lay_out
from plesio.report.model import Comparison

__all__ = ["bytes_figure", "panels", "staleness_figure", "worker_times_figure"]

_ROW_PX = 34
_PANEL_TITLE_PX = 30
_STALENESS_PANEL_PX = 70
_WORKER_PX = 20
_MANY_WORKERS_PX = 9
_MANY_WORKERS = 12
_BYTE_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def bytes_figure(comparison: Comparison) -> PageFigure | None:
    """What each policy put on the wire; None where nothing was."""
    drawn = [summary for summary in comparison.policies if summary.bytes_sent is not None]
    most = max((sum(summary.bytes_by_link.values()) for summary in drawn), default=0)
    if most <= 0:
        return None
    unit, scale = next((unit, scale) for unit, scale in _BYTE_UNITS if most >= scale)
    names = [axis_label(summary.policy) for summary in drawn]
    figure = go.Figure()
    for place, link in enumerate(dict.fromkeys(link for summary in drawn for link in summary.bytes_by_link)):
        figure.add_trace(
            go.Bar(
                x=[summary.bytes_by_link.get(link, 0) / scale for summary in drawn],
                y=names,
                orientation="h",
                name=html.escape(link),
                marker={"color": LINK_COLOURS[place % len(LINK_COLOURS)]},
                hovertemplate=f"%{{x:.4g}} {unit}<extra>{html.escape(link)}, %{{y}}</extra>",
            )
        )
    totals = [sum(summary.bytes_by_link.values()) for summary in drawn]
    figure.add_trace(
        go.Scatter(
            x=[total / scale for total in totals],
            y=names,
            mode="text",
            text=[f" {format_bytes(total)}" for total in totals],
            textposition="middle right",
            cliponaxis=False,
            showlegend=False,
            hoverinfo="skip",
        )
    )
    lay_out(figure, height_px=100 + _ROW_PX * len(drawn), legend_gap_px=6, barmode="stack", bargap=0.35)
    figure.update_xaxes(title_text=f"bytes sent per run ({unit})", range=[0, 1.4 * most / scale])
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return PageFigure(
        slug="bytes",
        title=findings.bytes_finding(comparison),
        caption="Payload and framing on the wire, all workers and servers, mean over seeds, by link class.",
        figure=figure,
    )


def worker_times_figure(comparison: Comparison) -> PageFigure | None:
    """Compute, communicate and wait of each worker under each policy; None where no worker was measured."""
    drawn = [summary for summary in comparison.policies if summary.workers]
    if not drawn:
        return None
    most_workers = max(len(summary.workers) for summary in drawn)
    row_px = _WORKER_PX if most_workers <= _MANY_WORKERS else _MANY_WORKERS_PX
    figure, height_px = panels([summary.policy for summary in drawn], panel_px=row_px * most_workers)
    for row, summary in enumerate(drawn, start=1):
        for activity, colour in ACTIVITY_COLOURS.items():
            figure.add_trace(
                go.Bar(
                    x=[getattr(times, f"{activity}_s") for times in summary.workers],
                    y=[str(times.worker) for times in summary.workers],
                    orientation="h",
                    name=activity,
                    legendgroup=activity,
                    showlegend=row == 1,
                    marker={"color": colour},
                    hovertemplate=f"worker %{{y}}: %{{x:.2f}} s<extra>{activity}</extra>",
                ),
                row=row,
                col=1,
            )
    lay_out(figure, height_px=height_px + 90, legend_gap_px=_PANEL_TITLE_PX, barmode="stack", bargap=0.2)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    figure.update_xaxes(title_text="seconds per run", row=len(drawn), col=1)
    return PageFigure(
        slug="worker-times",
        title=findings.wait_finding(comparison),
        caption="A bar a worker, named by its number; mean over seeds. Evaluation is off the training clock.",
        figure=figure,
        wide=True,
    )


def staleness_figure(comparison: Comparison, *, styles: Mapping[str, PolicyStyle]) -> PageFigure | None:
    """The staleness histogram of each policy; None where no update was applied."""
    drawn = [summary for summary in comparison.policies if summary.staleness.counts]
    if not drawn:
        return None
    figure, height_px = panels([summary.policy for summary in drawn], panel_px=_STALENESS_PANEL_PX)
    for row, summary in enumerate(drawn, start=1):
        counts = summary.staleness.counts
        total = sum(counts)
        figure.add_trace(
            go.Bar(
                x=list(range(len(counts))),
                y=[100 * number / total for number in counts],
                marker={"color": styles[summary.policy].colour},
                hovertemplate=f"τ = %{{x}}: %{{y:.1f}} % of updates<extra>{html.escape(summary.policy)}</extra>",
            ),
            row=row,
            col=1,
        )
        figure.add_annotation(
            text=f"mean {summary.staleness.mean:.1f}, max {summary.staleness.max}",
            x=1,
            xref="x domain",
            xanchor="right",
            y=1,
            yref="y domain",
            yanchor="top",
            showarrow=False,
            font={"size": 13},
            row=row,
            col=1,
        )
    lay_out(figure, height_px=height_px + 70, bargap=0.15)
    figure.update_layout(margin_t=_PANEL_TITLE_PX)
    widest = max(summary.staleness.max for summary in drawn)
    figure.update_xaxes(range=[-0.6, max(widest, 4) + 0.6], showgrid=False)
    figure.update_xaxes(title_text="staleness τ (versions)", row=len(drawn), col=1)
    figure.update_yaxes(nticks=3, rangemode="tozero", ticksuffix=" %")
    return PageFigure(
        slug="staleness",
        title=findings.staleness_finding(comparison),
        caption="Share of the applied updates by staleness, all seeds together. Each panel has its own vertical scale.",
        figure=figure,
        wide=True,
    )


def panels(policies: Sequence[str], *, panel_px: int) -> tuple[go.Figure, int]:
    """Panels one under another on one horizontal axis, each under its policy's name; and their height in pixels."""
    height_px = len(policies) * (panel_px + _PANEL_TITLE_PX)
    spacing = _PANEL_TITLE_PX / height_px if len(policies) > 1 else 0.0
    titles = [f"<b>{html.escape(policy)}</b>" for policy in policies]
    figure = make_subplots(
        rows=len(policies), cols=1, shared_xaxes=True, vertical_spacing=spacing, subplot_titles=titles
    )
    figure.update_annotations(x=0, xanchor="left", font={"size": 13})
    return figure, height_px
