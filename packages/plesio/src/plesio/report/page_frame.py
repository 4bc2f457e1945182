"""Renders a `plesio.report.document.Document` as one HTML page, light or dark as the reader's system is.

The page needs nothing else: a part of Plotly's script is in it, packed. Texts are escaped by the template.
"""

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from typing import NoReturn

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from plesio.core.charts import Chart
from plesio.report.charts import draw_figure
from plesio.report.document import Document, Folded, PageBlock, Pictures

_PLOTLY = "plotly-cartesian.min.js.gz"
_LONG_NUMBER = re.compile(r"(?<=[\[,:])-?\d+\.\d{6,}(?:e[-+]?\d+)?(?=[\],}])")
"""A number of a chart's data that is more exact than a picture can be: pages would be a quarter larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A chart in the page's grid; `json` is what Plotly draws."""

    slug: str
    title: str
    caption: str
    wide: bool
    height_px: int
    json: Markup


def render_document(document: Document) -> str:
    has_charts = any(_has_charts(section.blocks) for section in document.sections if section is not None)
    return _environment().get_template("page.html.j2").render(page=document, has_charts=has_charts) + "\n"


def _has_charts(blocks: Sequence[PageBlock]) -> bool:
    return any(
        _has_charts(block.blocks) if isinstance(block, Folded) else isinstance(block, Pictures) for block in blocks
    )


def prose(text: str) -> Markup:
    """Escape a sentence, and keep a number and its percent sign on one line.

    >>> prose("<asp> ended at 98.1 %")
    Markup('&lt;asp&gt; ended at 98.1&nbsp;%')
    """
    return Markup(str(escape(text)).replace(" %", "&nbsp;%"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("plesio.report"), autoescape=True, undefined=StrictUndefined, auto_reload=False
    )
    environment.filters |= {"prose": prose, "breakable": lambda text: escape(text).replace(",", Markup(",<wbr>"))}
    environment.globals |= {
        "figures": _figures,
        "kind_of": lambda block: type(block).__name__,
        "no_branch": _no_branch,
        "plotly": _plotly,
    }
    return environment


def _no_branch(kind: str) -> NoReturn:
    raise AssertionError(f"the macro `show` of page.html.j2 has no branch for a {kind}; add one")


def _plotly() -> str:
    """Return the script that draws lines, bars and heat maps, packed, as letters."""
    return base64.b64encode(files("plesio.report").joinpath("templates", _PLOTLY).read_bytes()).decode()


def _figures(charts: Sequence[Chart]) -> Iterator[_Figure]:
    """Draw the charts: two narrow ones in a row, one with no other beside it over the whole width."""
    has_left = False
    for chart, following in zip_longest(charts, charts[1:]):
        # Plotly looks at the width once, when it draws
        is_alone = not has_left and (following is None or following.wide)
        wide = chart.wide or is_alone
        has_left = not (wide or has_left)
        drawn = draw_figure(chart)
        short = _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.7g}", drawn.to_json())
        data = Markup(short.replace("<", "\\u003c"))  # within a script element, where nothing is escaped
        yield _Figure(
            slug=chart.slug,
            title=chart.title,
            caption=chart.caption,
            wide=wide,
            height_px=drawn.layout.height,
            json=data,
        )
