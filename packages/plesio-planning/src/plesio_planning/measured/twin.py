"""Real twins of models: one way to announce what is measured, to repeat it, and to put it beside what the model says.

A twin measures with `Twin`, which keeps every prediction and how far repeats spread, and draws with `beside`: models
are lines, and what was measured is points.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from plesio.core.charts import Axis, Chart, LineChart, Series
from plesio.core.predictions import Prediction, Scale
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.cost.fit import AlphaBeta
from plesio.testbed.namespaces import why_no_namespaces
from plesio_planning.measured.ranks import Ranks, Times, all_reduce_times, fitted_links
from plesio_planning.studies.measured import Measured

Line = tuple[Sequence[float], Sequence[float], Sequence[float]]
"""Places along the axis, what is modelled there, and what was measured."""


class Twin:
    """One measurement: the predictions that it has made so far, and the spread of its repeats.

    Args:
        say: Is told what is being measured.

    >>> twin = Twin(print)
    >>> twin.median([1.0, 2.0, 3.0])
    2.0
    >>> twin.predict("step (s)", {"workers": 2}, predicted=1.5, measured=2.0, baseline=1.0)
    >>> twin.off(), twin.spread
    (25.0, 50.0)
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.predictions: list[Prediction] = []
        self._spreads: list[float] = []

    def median(self, times_s: Sequence[float]) -> float:
        """Take the median of repeats, and keep their standard deviation over it."""
        median_s = statistics.median(times_s)
        if len(times_s) > 1:
            self._spreads.append(statistics.stdev(times_s) / median_s)
        return median_s

    @property
    def spread(self) -> float:
        """Spread of repeats in percent, the median of all."""
        return 100 * statistics.median(self._spreads) if self._spreads else 0.0

    def predict(
        self,
        quantity: str,
        setting: Mapping[str, object],
        *,
        predicted: float,
        measured: float,
        baseline: float,
        scale: Scale = "relative",
    ) -> None:
        """Keep one quantity, as modelled, as measured, and as the simplest model has it."""
        self.predictions.append(
            Prediction(
                setting={name: str(value) for name, value in setting.items()},
                quantity=quantity,
                scale=scale,
                predicted=predicted,
                measured=measured,
                baseline=baseline,
            )
        )

    def rows(self, quantity: str, **setting: str) -> list[Prediction]:
        """Return the predictions of a quantity in this setting, whatever else theirs has."""
        return [one for one in self.predictions if one.quantity == quantity and setting.items() <= one.setting.items()]

    def off(self, quantity: str | None = None, **setting: str) -> float:
        """Return the median error of a quantity, or of all, in percent or in percentage points."""
        return median_off(self.predictions if quantity is None else self.rows(quantity, **setting))

    def bandwidth(self, bytes_per_s: float) -> float | None:
        """Return the bandwidth that links can be set to: None where this machine has no hosts for us."""
        return bytes_per_s if why_no_namespaces() is None else None

    def links(
        self,
        ranks: Ranks,
        sizes_bytes: Sequence[int],
        *,
        num_ranks: int,
        repeats: int,
        saying: str = "an all-reduce of",
        function: Callable[..., Times] = all_reduce_times,
        **arguments: Any,
    ) -> AlphaBeta:
        """Fit latency and bandwidth of links to all-reduces over them, of three sizes or more."""

        def times_s(size: int) -> list[float]:
            self.say(f"{saying} {format_bytes(size)}")
            return ranks.times_s(function, num_bytes=size, repeats=repeats, **arguments)

        return fitted_links(sizes_bytes, times_s, num_ranks=num_ranks)

    def measured(
        self, study: str, *, finding: str, setting: str, charts: Sequence[Chart], rivals: str = ""
    ) -> Measured:
        """Return all of it; the arguments are those of `Measured`."""
        return Measured(
            study=study,
            finding=finding,
            setting=setting,
            predictions=tuple(self.predictions),
            charts=tuple(charts),
            rivals=rivals,
        )


def median_off(predictions: Iterable[Prediction], *, baseline: bool = False) -> float:
    """Return the median error of predictions, or of their baselines, in percent or in percentage points."""
    return statistics.median(
        abs(one.baseline_error if baseline else one.error) * (1 if one.scale == "points" else 100)
        for one in predictions
    )


def where_text(bytes_per_s: float | None) -> str:
    """Return the sentence's part that says which links ranks have.

    >>> where_text(25e6), where_text(None)
    ('links of 25 MB/s', "this machine's loopback")
    """
    return "this machine's loopback" if bytes_per_s is None else f"links of {format_bandwidth(bytes_per_s)}"


def fit_text(links: AlphaBeta) -> str:
    """Return the latency and the bandwidth that were fitted, as settings have them."""
    return f"{format_seconds(links.latency_s)}, {format_bandwidth(links.bytes_per_s)}"


def lines_of(
    predictions: Iterable[Prediction],
    *,
    along: str,
    by: str = "",
    called: str = "{}",
    place: Callable[[str], float] = int,
    times: float = 1.0,
) -> dict[str, Line]:
    """Cut predictions of one quantity into lines along a setting, one for each value of the setting ``by``.

    ``called`` is a line's name, with brackets for that value; ``place`` reads a place along the axis;
    ``times`` is the factor of what is drawn: 1e3 for milliseconds.
    """
    lines: dict[str, list[Prediction]] = {}
    for one in predictions:
        lines.setdefault(called.format(one.setting[by]) if by else "", []).append(one)
    return {
        name: (
            [place(one.setting[along]) for one in each],
            [times * one.predicted for one in each],
            [times * one.measured for one in each],
        )
        for name, each in lines.items()
    }


def beside(
    lines: Mapping[str, Line],
    *,
    title: str,
    caption: str,
    x: Axis,
    y: Axis,
    slug: str = "measured",
    more: Sequence[Series] = (),
    marks: Mapping[str, float] | None = None,
) -> LineChart:
    """Draw what was measured as points beside what is modelled as lines; the only line needs no name."""
    series = []
    for group, (places, modelled, found) in lines.items():
        prefix = f"{group}, " if group else ""
        series.append(Series(name=f"{prefix}modelled", group=group, x=places, y=modelled))
        series.append(Series(name=f"{prefix}measured", group=group, x=places, y=found, style="points"))
    return LineChart(slug=slug, title=title, caption=caption, x=x, y=y, series=[*series, *more], marks=marks or {})
