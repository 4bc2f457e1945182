"""What all pages have in common: one document that needs nothing else, light or dark as the reader's system is.

Plotly's script is in a page once, or beside the pages of a folder that has many; nothing is fetched from anywhere.
Texts are escaped here; parts, headers and contents are HTML already.
"""

import html
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from string import Template
from typing import Literal

import plotly.io
from plotly.offline import get_plotlyjs

from plesio.core.charts import Chart
from plesio.core.files import write_whole
from plesio.report.charts import draw_figure
from plesio.report.markup import prose
from plesio.report.page_style import STYLE

__all__ = ["SCRIPT_FILE", "page_of", "section", "section_of_charts", "table", "write_script"]

SCRIPT_FILE = "plotly.min.js"
"""Name of Plotly's script beside the pages that share it."""
_BESIDE = f"""<script src="{SCRIPT_FILE}" onerror="window.addEventListener('load', () => document
.querySelector('header').insertAdjacentHTML('beforeend',
'<p>The pictures need the file {SCRIPT_FILE} beside this page.</p>'))"></script>"""

_CONFIG = {"displaylogo": False, "displayModeBar": False, "responsive": True}

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title</title>
<style>$style</style>
$script
</head>
<body>
<header>
$header
</header>
<main>
$main
</main>
</body>
</html>
""")


def page_of(
    parts: Iterable[str], *, title: str, header: str, script: Literal["inside", "beside", "none"] = "inside"
) -> str:
    """The whole document, of its parts one below the other.

    Args:
        parts: Sections, and what stands between them; empty ones are left out.
        title: That of the browser's window.
        header: The heading and the facts below it.
        script: Where Plotly's script is: in the page, or beside it, where `write_script` puts it. Without charts there
            is none.
    """
    return _PAGE.substitute(
        title=html.escape(title),
        style=STYLE,
        script=_script(script),
        header=header,
        main="\n".join(filter(None, parts)),
    )


def _script(where: Literal["inside", "beside", "none"]) -> str:
    if where == "inside":
        return f"<script>{get_plotlyjs()}</script>"
    return _BESIDE if where == "beside" else ""


def write_script(folder: Path) -> None:
    """Put Plotly's script beside the pages of a folder, if it is not there.

    Raises:
        DataError: The file cannot be written.
    """
    path, script = folder / SCRIPT_FILE, get_plotlyjs()
    if not path.exists() or path.read_text(encoding="utf-8") != script:
        write_whole(path, script)


def section(content: str, *, slug: str, title: str) -> str:
    """A part of the page with a title and an anchor."""
    return f'<section id="{slug}"><h2>{prose(title)}</h2>\n{content}\n</section>'


def section_of_charts(charts: Iterable[Chart], *, title: str, slug: str = "figures") -> str:
    """The charts in the page's grid: two narrow ones in a row, one with no other beside it over the whole width."""
    pictures = "\n".join(_figure(chart, wide=wide) for chart, wide in _spread(list(charts)))
    return section(f'<div class="figures">\n{pictures}\n</div>', slug=slug, title=title)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, even: bool = False) -> str:
    """A table, to be scrolled sideways where it does not fit; ``even`` columns stand below those of the table above."""
    head = "".join(f"<th scope=col>{prose(header)}</th>" for header in headers)
    body = "".join("<tr>" + "".join(f"<td>{prose(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = ' class="even"' if even else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _spread(charts: Sequence[Chart]) -> Iterator[tuple[Chart, bool]]:
    """Each chart, and whether it takes the whole width: before plotly draws, which looks at the width once."""
    has_left = False
    for chart, following in zip_longest(charts, charts[1:]):
        is_alone = not has_left and (following is None or following.wide)
        yield chart, chart.wide or is_alone
        has_left = not (chart.wide or is_alone or has_left)


def _figure(chart: Chart, *, wide: bool) -> str:
    picture = plotly.io.to_html(
        draw_figure(chart), config=_CONFIG, include_plotlyjs=False, full_html=False, div_id=f"plot-{chart.slug}"
    )
    title = f"<h3>{prose(chart.title)}</h3>" if chart.title else ""
    return (
        f'<figure id="{chart.slug}" class="{"wide" if wide else "narrow"}">'
        f"{title}{picture}<figcaption>{prose(chart.caption)}</figcaption></figure>"
    )
