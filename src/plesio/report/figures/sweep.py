"""Figures of a sweep: time to the target and throughput, over the bound and over the bandwidth.

A filled mark is a median over seeds that all reached the target; a hollow one is of those that did, where some did not;
a hollow triangle stands where no seed did, at the length of the longest run: it would be above.
"""

import html
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from plesio.core.units import parse_bandwidth
from plesio.policies import SSP, parse_policy
from plesio.report.figures.page_figure import PageFigure
from plesio.report.figures.theme import PolicyStyle, lay_out, policy_styles
from plesio.report.model import Comparison, PolicySummary

__all__ = [
    "THROUGHPUT",
    "TIME",
    "Quantity",
    "SweepPoint",
    "bandwidth_figure",
    "bound_figure",
    "bound_policies",
    "point_at",
]

_GREY = "#7d8590"
_SLOW_TO_FAST = ["#c2410c", "#b58a00", "#2f8f83", "#3b6fb6"]
_MARKERS = ("circle", "square", "diamond", "pentagon", "hexagon", "star")
_LOG_FROM = 4.0  # ratio of largest to smallest value
_TICKS = (1, 2, 5)
_DENSE_TICKS = (1, 1.5, 2, 3, 4, 5, 6, 8)  # where there is less than a decade
_DOT_GAP = 0.008  # of the axis, between the dots of two lines
_LABEL_GAP = 0.09  # of the axis; the second of two bandwidths that are closer has no label


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One policy at one bandwidth.

    Attributes:
        by_seed: (seed, value) of the seeds that have one.
        median: Of them; None if there are none.
        num_runs: Runs that were to have one, unfinished ones included.
        at_least: What the value is above where no run has one; None where nobody knows.
    """

    by_seed: tuple[tuple[int, float], ...]
    median: float | None
    num_runs: int
    at_least: float | None = None

    @property
    def complete(self) -> bool:
        """Whether every seed has a value."""
        return len(self.by_seed) == self.num_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """What is drawn.

    Attributes:
        title: Of the axis.
        unit: Of a value.
        seeds: Those that have one.
        caption: What it is, where the title leaves that open.
        point_of: Finds a policy's point.
    """

    title: str
    unit: str
    seeds: str
    caption: str
    point_of: Callable[[PolicySummary], SweepPoint]


def _time_point(summary: PolicySummary) -> SweepPoint:
    target = summary.to_target
    reached = None if target is None else target.reached
    return SweepPoint(
        by_seed=() if reached is None else reached.by_seed,
        median=None if target is None else target.median_s,
        num_runs=len(summary.seeds) + len(summary.unfinished),
        at_least=None if summary.time_s is None else max(summary.time_s.values),
    )


def _throughput_point(summary: PolicySummary) -> SweepPoint:
    rates = summary.samples_per_s
    return SweepPoint(
        by_seed=() if rates is None else rates.by_seed,
        median=None if rates is None else statistics.median(rates.values),
        num_runs=len(summary.seeds) + len(summary.unfinished),
    )


TIME = Quantity(title="time to target (s)", unit="s", seeds="seeds that reached it", caption="", point_of=_time_point)
THROUGHPUT = Quantity(
    title="samples per second",
    unit="samples/s",
    seeds="seeds that finished",
    caption="Samples of all workers per second of virtual time.",
    point_of=_throughput_point,
)


def point_at(comparison: Comparison, policy: str, quantity: Quantity) -> SweepPoint | None:
    """The policy's point in this comparison; None if it was not run there."""
    return next((quantity.point_of(summary) for summary in comparison.policies if summary.policy == policy), None)


def bound_policies(comparisons: Mapping[str, Comparison]) -> list[str]:
    """Specs of the policies that have a bound, from the tightest on; of one bound, by their period."""
    specs = dict.fromkeys(summary.policy for comparison in comparisons.values() for summary in comparison.policies)
    bounded = [(policy.bound, policy.period, spec) for spec in specs if isinstance(policy := parse_policy(spec), SSP)]
    return [spec for _, _, spec in sorted(bounded)]


def bound_figure(comparisons: Mapping[str, Comparison], quantity: Quantity, *, slug: str, title: str) -> PageFigure:
    """A line per bandwidth, over the bounds."""
    labels = _bound_labels(bound_policies(comparisons))
    drawing = _Drawing(quantity)
    styles = _bandwidth_styles(list(comparisons))
    for number, (bandwidth, comparison) in enumerate(comparisons.items()):
        found = {float(place): point_at(comparison, spec, quantity) for place, spec in enumerate(labels)}
        shift = _dot_shift(number) * len(labels)
        drawing.add_line(bandwidth, style=styles[bandwidth], points=found, dots_at={x: x + shift for x in found})
    figure = drawing.finish()
    figure.update_xaxes(title_text="bound of ssp (steps)", range=[-0.4, len(labels) - 0.6])
    figure.update_xaxes(tickvals=list(range(len(labels))), ticktext=list(labels.values()))
    with_periods = any("<br>p = " in label for label in labels.values())
    periods = " Below a bound is its period p: a worker exchanges every p steps." if with_periods else ""
    return PageFigure(slug=slug, title=title, caption=drawing.caption() + periods, figure=figure, wide=True)


def bandwidth_figure(comparisons: Mapping[str, Comparison], quantity: Quantity, *, slug: str, title: str) -> PageFigure:
    """A line per policy, over the bandwidths; there are two at least."""
    policies = dict.fromkeys(summary.policy for one in comparisons.values() for summary in one.policies)
    styles = policy_styles(list(policies), baseline=next(iter(comparisons.values())).baseline)
    drawing = _Drawing(quantity)
    places = {bandwidth: 8 * parse_bandwidth(bandwidth) for bandwidth in comparisons}
    low, high = math.log10(min(places.values())), math.log10(max(places.values()))
    for number, policy in enumerate(policies):
        found = {places[bandwidth]: point_at(one, policy, quantity) for bandwidth, one in comparisons.items()}
        shift = 10 ** (_dot_shift(number) * (high - low))
        drawing.add_line(policy, style=styles[policy], points=found, dots_at={x: x * shift for x in found})
    figure = drawing.finish()
    ticks = _ticks(places)
    margin, for_dots = 0.06 * (high - low), _dot_shift(len(policies)) * (high - low)
    figure.update_xaxes(title_text="bandwidth of a host's network interface")
    figure.update_xaxes(type="log", range=[low - margin, high + max(margin, for_dots)])
    figure.update_xaxes(tickvals=list(ticks), ticktext=list(ticks.values()))
    return PageFigure(slug=slug, title=title, caption=drawing.caption(), figure=figure, wide=True)


def _dot_shift(number: int) -> float:
    """How far to the right of its line the dots of the ``number``-th one are, as a share of the axis."""
    return (number + 1.5) * _DOT_GAP


def _bound_labels(specs: Sequence[str]) -> dict[str, str]:
    """The bound, and below it the period where periods differ; all of the spec where that is not enough."""
    found = {spec: policy for spec in specs if isinstance(policy := parse_policy(spec), SSP)}
    if len({policy.period for policy in found.values()}) > 1:
        labels = {spec: f"{policy.bound}<br>p = {policy.period}" for spec, policy in found.items()}
    else:
        labels = {spec: str(policy.bound) for spec, policy in found.items()}
    if len(set(labels.values())) == len(specs):
        return labels
    return {spec: html.escape(spec.removeprefix("ssp:")).replace(",", ",<br>") for spec in specs}


def _bandwidth_styles(bandwidths: Sequence[str]) -> dict[str, PolicyStyle]:
    """From warm for the narrowest to cold for the widest: an order, and no policy's colours."""
    places = [place / max(1, len(bandwidths) - 1) for place in range(len(bandwidths))]
    colours = sample_colorscale(_SLOW_TO_FAST, places)
    return {
        bandwidth: PolicyStyle(colour=colours[place], marker=_MARKERS[place % len(_MARKERS)], dash="solid")
        for place, bandwidth in enumerate(bandwidths)
    }


def _ticks(places: Mapping[str, float]) -> dict[float, str]:
    """Labels on two lines at the bandwidths, without those that would overlap the one before."""
    gap = _LABEL_GAP * math.log10(max(places.values()) / min(places.values()))
    ticks: dict[float, str] = {}
    for bandwidth, place in places.items():
        if not ticks or math.log10(place / next(reversed(ticks))) >= gap:
            ticks[place] = bandwidth.replace(" ", "<br>")
    return ticks


class _Drawing:
    """A figure that lines of points are added to, and in the end what all of them need: axis, legend, caption."""

    def __init__(self, quantity: Quantity) -> None:
        self._figure = go.Figure()
        self._quantity = quantity
        self._points: list[SweepPoint] = []

    def add_line(
        self,
        name: str,
        *,
        style: PolicyStyle,
        points: Mapping[float, SweepPoint | None],
        dots_at: Mapping[float, float],
    ) -> None:
        """Add a line.

        Args:
            name: In the legend.
            style: How it looks.
            points: By their places on the axis; None where there is none.
            dots_at: Where the dots of a point's seeds are: beside it, and beside those of other lines.
        """
        name, unit = html.escape(name), self._quantity.unit
        there = {x: point for x, point in points.items() if point is not None}
        self._points += there.values()
        dots = [(dots_at[x], value, seed) for x, point in there.items() for seed, value in point.by_seed]
        never = {x: point.at_least for x, point in there.items() if point.median is None and point.at_least}
        if len(dots) > len(there):
            self._figure.add_scatter(
                x=[x for x, _, _ in dots],
                y=[value for _, value, _ in dots],
                customdata=[seed for _, _, seed in dots],
                mode="markers",
                marker={"size": 5, "color": style.colour, "opacity": 0.7},
                hovertemplate=f"seed %{{customdata}}: %{{y:.4g}} {unit}<extra>{name}</extra>",
                legendgroup=name,
                showlegend=False,
            )
        # a legend shows the first mark of a line, which may be a hollow one
        self._figure.add_scatter(
            x=[None],
            y=[None],
            mode="lines+markers",
            name=name,
            legendgroup=name,
            line={"color": style.colour, "width": 2.5, "dash": style.dash},
            marker={"size": 10, "symbol": style.marker},
        )
        self._figure.add_scatter(
            x=list(there),
            y=[point.median for point in there.values()],
            customdata=[f"{len(point.by_seed)} of {point.num_runs} seeds" for point in there.values()],
            mode="lines+markers",
            name=name,
            legendgroup=name,
            line={"color": style.colour, "width": 2.5, "dash": style.dash},
            marker={
                "size": 10,
                "symbol": [style.marker if point.complete else f"{style.marker}-open" for point in there.values()],
                "line": {"width": [0 if point.complete else 2 for point in there.values()], "color": style.colour},
            },
            hovertemplate=f"%{{y:.4g}} {unit} (median, %{{customdata}})<extra>{name}</extra>",
            showlegend=False,
        )
        if never:
            self._figure.add_scatter(
                x=list(never),
                y=list(never.values()),
                mode="markers",
                marker={"size": 11, "symbol": "triangle-up-open", "color": style.colour, "line": {"width": 2}},
                hovertemplate=f"not reached in %{{y:.4g}} {unit}<extra>{name}</extra>",
                legendgroup=name,
                showlegend=False,
            )

    def caption(self) -> str:
        """What the marks mean, those that there are."""
        parts = [self._quantity.caption] if self._quantity.caption else []
        if max((len(point.by_seed) for point in self._points), default=0) > 1:
            parts.append(f"Line: median over the {self._quantity.seeds}. Small dots, beside it: these seeds.")
        if self._incomplete:
            parts.append("A hollow mark: some seed is not among them.")
        if self._empty:
            parts.append("A hollow triangle: no seed reached it, and the runs were that long.")
        return " ".join(parts)

    @property
    def _incomplete(self) -> list[SweepPoint]:
        return [point for point in self._points if point.by_seed and not point.complete]

    @property
    def _empty(self) -> list[SweepPoint]:
        return [point for point in self._points if not point.by_seed and point.at_least]

    def finish(self) -> go.Figure:
        """The figure."""
        for name, symbol, shown in (
            ("not every seed", "circle-open", self._incomplete),
            ("no seed", "triangle-up-open", self._empty),
        ):
            if shown:
                marker = {"symbol": symbol, "size": 10, "color": _GREY, "line": {"width": 2}}
                self._figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker)
        lay_out(self._figure, height_px=440, legend_gap_px=10)
        self._figure.update_yaxes(title_text=self._quantity.title, rangemode="tozero")
        values = [value for point in self._points for _, value in point.by_seed]
        values += [point.at_least for point in self._empty if point.at_least]
        if values and 0 < _LOG_FROM * min(values) <= max(values):
            tens = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
            digits = _TICKS if max(values) >= 10 * min(values) else _DENSE_TICKS
            ticks = [digit * 10.0**ten for ten in tens for digit in digits]
            self._figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:,.10g}" for tick in ticks])
        return self._figure
