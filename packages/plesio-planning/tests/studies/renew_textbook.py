"""Write the text's printed results for each study, beside what its inputs give now, into the studies' pages.

Run it where a model has changed, and look at what changed with it, in the package's folder:
``python tests/studies/renew_textbook.py``.
"""

import re
from pathlib import Path

from plesio_planning.studies import STUDIES, Study
from plesio_planning.studies.textbook import printed_results, value_text

PAGES = Path(__file__).parents[4] / "docs" / "planning" / "studies"
HEADING = "## Where the text differs\n\n"


def table_of(study: Study) -> str:
    """The table as Markdown, below a line that says what it is."""
    lines = [
        f"What the solution of exercise {study.exercise} prints (and, where it says so, the pages in depth behind it), "
        "beside what its inputs give:",
        "",
        "| | the text | here | because |",
        "| --- | --- | --- | --- |",
    ]
    for one in printed_results(study):
        cause = one.cause + (" (In depth.)" if one.place == "in depth" else "")
        cause += "" if one.by == "study" else " (Here: its own formula.)"
        for place, row in enumerate(one.rows):
            values = f"{value_text(row.text, row.unit)} | {value_text(row.here, row.unit)}"
            lines.append(f"| {row.what} | {values} | {'' if place else f'{cause} '}|")
    return "\n".join(lines)


def renew(study: Study) -> None:
    """Put the table below the heading, in place of the one that is there."""
    page = PAGES / f"{study.name}.md"
    before, _, after = page.read_text(encoding="utf-8").partition(HEADING)
    rest = re.sub(r"\AWhat the solution of .*?\n\n(\|.*\n)+\n?", "", after)
    page.write_text(f"{before}{HEADING}{table_of(study)}\n\n{rest.strip()}\n", encoding="utf-8")


if __name__ == "__main__":
    for each in STUDIES:
        if each.exercise is not None:
            renew(each)
