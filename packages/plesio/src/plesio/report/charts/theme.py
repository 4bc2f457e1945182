"""How charts look on a page: no background, thin grid, text that follows the page's light or dark mode."""

from typing import Any

import plotly.graph_objects as go


def with_alpha(colour: str, alpha: float) -> str:
    """Make a ``#rrggbb`` colour see-through.

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
