"""The colours of all figures, on pages and in picture files."""

from collections.abc import Sequence

from plesio.core.exhibits import Series

__all__ = ["AMOUNTS", "COLOURS", "QUIET", "ink_on", "series_colours"]

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
"""Okabe and Ito's (2008), which people with any common colour blindness tell apart; the seventh is the first again."""

QUIET = "#7d8590"
"""What others are seen against: a baseline, a mark, a grid."""

AMOUNTS = ("#011959", "#103f60", "#1c5a62", "#3c6d56", "#687b3e", "#9d892b", "#d29343", "#f8a17b", "#fdb7bc", "#faccfa")
"""*batlow*, from little to much, which anybody orders the same way (Crameri, Shephard & Heron 2020)."""

_LIGHT_FROM = 0.55
"""From here on the colours of `AMOUNTS` are lighter than a middle grey."""


def series_colours(series: Sequence[Series]) -> list[str]:
    """A colour for each series, the same for those of a group.

    >>> model, run = (Series(name=name, group="ring", x=(), y=()) for name in ("modelled", "measured"))
    >>> series_colours([model, Series(name="tree", x=(), y=()), run])
    ['#0072b2', '#e69f00', '#0072b2']
    """
    groups = [one.group or one.name for one in series]
    order = list(dict.fromkeys(groups))
    return [COLOURS[order.index(group) % len(COLOURS)] for group in groups]


def ink_on(share: float) -> str:
    """The colour of a text on `AMOUNTS` at this share of the way from little to much.

    >>> ink_on(0.1), ink_on(0.9)
    ('white', 'black')
    """
    return "white" if share < _LIGHT_FROM else "black"
