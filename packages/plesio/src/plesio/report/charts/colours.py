"""The colours of all charts, on pages and in picture files."""

from collections.abc import Iterable, Sequence

from plesio.core.charts import Look, Series

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
"""Okabe and Ito's (2008), which people with any common colour blindness tell apart; the seventh is the first again."""

QUIET = "#7d8590"
"""The colour that others are seen against: a baseline, a mark, a grid."""

AMOUNTS = ("#011959", "#103f60", "#1c5a62", "#3c6d56", "#687b3e", "#9d892b", "#d29343", "#f8a17b", "#fdb7bc", "#faccfa")
"""*batlow*, from little to much, which anybody orders the same way (Crameri, Shephard & Heron 2020)."""

ACTIVITY_COLOURS = {"compute": "#86a8c4", "communicate": "#3f6384", "wait": "#d1604d"}
"""Waiting is what a policy is chosen against, so it is the one that stands out."""

NUM_SHAPES = 7
"""Shapes of markers: one more than there are colours, so that a colour that comes again has another shape."""

MARK_INK = "#656d76"
"""The colour of words in a chart that are no data: 5 to 1 against white, 3.6 to 1 against a page's dark ground."""

_AS_FAR_FROM_BOTH = 0.179
"""The luminance that black and white have the same contrast with (WCAG 2)."""


def looks_of(names: Iterable[str], *, quiet: str | None = None) -> dict[str, Look]:
    """Choose a look for each name, all different for up to 42; ``quiet`` is grey, as the others' background.

    >>> looks_of(["bsp", "asp", "ssp:4"], quiet="bsp")["ssp:4"]
    Look(colour='#e69f00', shape=1)
    """
    looks = {} if quiet is None else {quiet: Look(QUIET)}
    for place, name in enumerate(name for name in dict.fromkeys(names) if name != quiet):
        looks[name] = Look(COLOURS[place % len(COLOURS)], place % NUM_SHAPES)
    return looks


def series_looks(series: Sequence[Series]) -> list[Look]:
    """Choose the look of each series: its own, or the next one that is free, shared by a group or by one name.

    >>> model, run = (Series(name=name, group="ring", x=(), y=()) for name in ("modelled", "measured"))
    >>> [look.shape for look in series_looks([model, Series(name="tree", x=(), y=()), run])]
    [0, 1, 0]
    """
    free = looks_of(one.group or one.name for one in series if one.look is None)
    return [one.look or free[one.group or one.name] for one in series]


def amount_colour(share: float) -> str:
    """Return the colour of `AMOUNTS` nearest to this share of the way from little to much."""
    return AMOUNTS[round(share * (len(AMOUNTS) - 1))] if share == share else "#ffffff"


def ink_on(colour: str) -> str:
    """Choose black or white, whichever is easier to read on a ``#rrggbb`` colour.

    >>> ink_on("#0072b2"), ink_on("#e69f00")
    ('white', 'black')
    """
    linear = [_linear(int(colour[place : place + 2], 16) / 255) for place in (1, 3, 5)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if luminance < _AS_FAR_FROM_BOTH else "black"


def _linear(value: float) -> float:
    """Convert an sRGB value from 0 to 1 to an amount of light."""
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)
