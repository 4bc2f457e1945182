"""A page as data: sections of finished texts, tables and charts, which `plesio.report.page_frame` renders."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from plesio.core.charts import Chart, Table


@dataclass(frozen=True, slots=True)
class TextLine:
    """A title within a section, small print, or code, which is shown as it is."""

    text: str
    role: Literal["heading", "note", "code"]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with their values."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StyledTable:
    """A table; all lines of a cell but the first are small print.

    Attributes:
        colours: A colour for the sign before each row; none without.
        even: Whether columns stand below those of the table above.
    """

    table: Table
    colours: Sequence[str] = ()
    even: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An entry of a list.

    Attributes:
        lead: Words before the text that stand out.
        small: Small print below.
        href: Address that the text leads to; empty for none.
        colour: Colour of a sign before it; empty for none.
    """

    text: str
    lead: str = ""
    small: str = ""
    href: str = ""
    colour: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list; one that is ``ordered`` has numbers."""

    items: Sequence[Item]
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Pictures:
    """Charts in the page's grid."""

    charts: Sequence[Chart]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A picture file that leads to another page."""

    title: str
    href: str
    picture: str
    alt: str
    caption: str


@dataclass(frozen=True, slots=True)
class Cards:
    """Picture files in the page's grid."""

    cards: Sequence[Card]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Blocks below a summary that a reader opens."""

    summary: str
    blocks: Sequence["PageBlock"]
    opened: bool = False


PageBlock = str | TextLine | Facts | Table | StyledTable | Items | Pictures | Cards | Folded
"""A part of a section; a text is a paragraph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSection:
    """A part of a page with a title; ``slug`` is its name in an address."""

    slug: str
    title: str
    blocks: Sequence[PageBlock]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A page.

    Attributes:
        facts: Lines below the heading.
        alerts: (What failed, why) above everything else.
        sections: Sections in their order; None stands for one that there is no data for.
    """

    title: str
    heading: str
    facts: Sequence[str] = ()
    alerts: Sequence[tuple[str, str]] = ()
    sections: Sequence[PageSection | None]


def section(title: str, *blocks: PageBlock | None, slug: str) -> PageSection | None:
    """Make a section of the blocks that there are; None of none."""
    found = [block for block in blocks if block is not None]
    return PageSection(slug=slug, title=title, blocks=found) if found else None


def pictures(
    charts: Iterable[Chart | None], *, title: str = "In pictures", slug: str = "figures"
) -> PageSection | None:
    """Make a section of the charts that there are; None of none."""
    found = [chart for chart in charts if chart is not None]
    return section(title, Pictures(found), slug=slug) if found else None


def tables(found: Iterable[Table]) -> list[PageSection | None]:
    return [section(table.title.removesuffix(":"), table, slug=f"table-{place}") for place, table in enumerate(found)]
