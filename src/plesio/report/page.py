"""The report as one page: self-contained, readable offline, light or dark as the reader's system is.

Plotly's script is in the page once; nothing is fetched from anywhere. Every text that came from a file is escaped.
"""

import html
from collections.abc import Sequence
from string import Template

import plotly.io
from plotly.offline import get_plotlyjs

from plesio.report import page_details as details
from plesio.report import page_overview as overview
from plesio.report.figures import PageFigure, make_figures
from plesio.report.markup import prose
from plesio.report.model import Comparison
from plesio.report.page_details import TraceLink
from plesio.report.page_style import STYLE
from plesio.report.timelines import Timeline

__all__ = ["render_page"]

_CONFIG = {"displaylogo": False, "displayModeBar": False, "responsive": True}

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>$style</style>
<script>$plotly</script>
</head>
<body>
<header>
$heading
</header>
<main>
$alerts
<section id="comparison"><h2>The comparison</h2>
$table
</section>
<section id="in-words"><h2>In words</h2>
$sentences
</section>
<section id="figures"><h2>In pictures</h2>
<div class="figures">
$figures
</div>
</section>
<section id="details"><h2>The runs</h2>
$details
</section>
</main>
</body>
</html>
""")


def render_page(comparison: Comparison, *, traces: Sequence[TraceLink] = (), timelines: Sequence[Timeline] = ()) -> str:
    """The page as one HTML document, with links to the runs' ``traces`` and a picture of ``timelines``."""
    return _PAGE.substitute(
        title=html.escape(f"Plesio: {comparison.task}"),
        style=STYLE,
        plotly=get_plotlyjs(),
        heading=overview.heading(comparison),
        alerts=overview.alerts(comparison),
        table=overview.comparison_table(comparison),
        sentences=overview.sentence_list(comparison),
        figures="\n".join(_figure(figure) for figure in make_figures(comparison, timelines=timelines)),
        details="\n".join(
            [
                details.run_table(comparison),
                details.decision_list(comparison),
                details.trace_list(traces),
                details.environment_list(comparison),
            ]
        ),
    )


def _figure(figure: PageFigure) -> str:
    picture = plotly.io.to_html(
        figure.figure, config=_CONFIG, include_plotlyjs=False, full_html=False, div_id=f"plot-{figure.slug}"
    )
    return (
        f'<figure id="{figure.slug}" class="{"wide" if figure.wide else "narrow"}">'
        f"<h3>{prose(figure.title)}</h3>{picture}<figcaption>{prose(figure.caption)}</figcaption></figure>"
    )
