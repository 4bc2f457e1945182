"""How figures look: one colour per policy in all of them, quiet axes, text that follows the page's light or dark mode.

Policies have the colours of `plesio.report.colours`, and the baseline is grey, for it is what the others are seen
against. When the colours run out they come again with another marker and dash.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from plesio.report.colours import COLOURS, QUIET

__all__ = ["ACTIVITY_COLOURS", "LINK_COLOURS", "PolicyStyle", "axis_label", "lay_out", "policy_styles", "with_alpha"]

_MARKERS = ("circle", "diamond", "square", "triangle-up")
_LONG_LABEL = 18
_DASHES = ("solid", "dash", "dot", "dashdot")

ACTIVITY_COLOURS = {"compute": "#86a8c4", "communicate": "#3f6384", "wait": "#d1604d"}
"""Waiting is what a policy is chosen against, so it is the one that stands out."""

LINK_COLOURS = ("#3f6384", "#86a8c4", "#c9b458", "#9a7fb0")
"""By order of appearance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStyle:
    """How a policy is drawn, in every figure."""

    colour: str
    marker: str
    dash: str


def policy_styles(policies: Sequence[str], *, baseline: str) -> dict[str, PolicyStyle]:
    """A style for each policy, all different for up to 24 policies besides the baseline."""
    styles = {baseline: PolicyStyle(colour=QUIET, marker="circle", dash="solid")}
    for place, policy in enumerate(policy for policy in policies if policy != baseline):
        turn = place // len(COLOURS) % len(_MARKERS)
        colour = COLOURS[place % len(COLOURS)]
        styles[policy] = PolicyStyle(colour=colour, marker=_MARKERS[turn], dash=_DASHES[turn])
    return styles


def axis_label(policy: str) -> str:
    """A policy as a label beside an axis: escaped, a long one on two lines.

    >>> axis_label("ssp:4"), axis_label("local_sgd:8,delay=4,exchange=store")
    ('ssp:4', 'local_sgd:8,delay=4,<br>exchange=store')
    """
    commas = [place + 1 for place, letter in enumerate(policy) if letter == ","]
    if len(policy) <= _LONG_LABEL or not commas:
        return html.escape(policy)
    middle = min(commas, key=lambda place: abs(place - len(policy) / 2))
    return f"{html.escape(policy[:middle])}<br>{html.escape(policy[middle:])}"


def with_alpha(colour: str, alpha: float) -> str:
    """A ``#rrggbb`` colour made see-through.

    >>> with_alpha("#0072b2", 0.3)
    'rgba(0,114,178,0.3)'
    """
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def lay_out(figure: go.Figure, *, height_px: int, legend_gap_px: int | None = None, **layout: Any) -> go.Figure:
    """Give a figure the common look: no background, thin grid.

    With a ``legend_gap_px`` there is a legend that far above the plot, in as many rows as the width needs.
    """
    figure.update_layout(
        template="none",
        height=height_px,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif", "size": 13},
        margin={"l": 8, "r": 16, "t": 8, "b": 8},
        showlegend=legend_gap_px is not None,
        legend={
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "xanchor": "left",
            "y": 1 + (legend_gap_px or 0) / height_px,
            "yanchor": "bottom",
        },
        hoverlabel={"font": {"size": 13}},
        **layout,
    )
    axis = {
        "showline": False,
        "zeroline": False,
        "gridcolor": "rgba(128,136,148,0.25)",
        "automargin": True,
        "title_font_size": 13,
    }
    figure.update_xaxes(**axis, ticks="", title_standoff=10, tickangle=0)
    figure.update_yaxes(**axis, ticks="", title_standoff=10, ticklabelstandoff=6)
    return figure
