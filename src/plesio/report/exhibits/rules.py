"""What pages and picture files both do so that labels neither touch nor leave their chart."""

import math
from collections.abc import Sequence

from plesio.core.exhibits import LineChart

__all__ = ["goes_right", "thinned"]


def goes_right(chart: LineChart, x: float) -> bool:
    """Whether the label of a point at ``x`` is on its right, where there is more room: it is in the left half.

    >>> from plesio.core.exhibits import Axis, Series
    >>> size, line = Axis(title="size (MB)", log=True), Series(name="a", x=[1, 100], y=[1, 2])
    >>> chart = LineChart(slug="sizes", title="", caption="", x=size, y=size, series=[line])
    >>> goes_right(chart, 2), goes_right(chart, 50)
    (True, False)
    """
    place = math.log if chart.x.log else float
    places = [place(each) for series in chart.series for each in series.x]
    return place(x) <= (min(places) + max(places)) / 2


def thinned(labels: Sequence[str], *, most: int) -> dict[int, str]:
    """At most so many of the labels, as far apart from each other, by their place.

    >>> thinned(["1", "2", "5", "10", "20"], most=3)
    {0: '1', 2: '5', 4: '20'}
    """
    step = math.ceil(len(labels) / most)
    return {place: label for place, label in enumerate(labels) if place % step == 0}
