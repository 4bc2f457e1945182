"""Charts of a sweep: time to the target and throughput, over the bound and over the bandwidth.

A filled mark is a median over seeds that all reached the target; a hollow one is of those that did, where some did not;
a hollow triangle stands where no seed did, at the length of the longest run: it would be above.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from plotly.colors import sample_colorscale

from plesio.core.charts import Axis, LineChart, Look, Series
from plesio.core.units import parse_bandwidth
from plesio.policies import SSP, parse_policy
from plesio.policies.grid import is_grid
from plesio.report.charts.colours import NUM_SHAPES, QUIET, looks_of
from plesio.report.model import Comparison, PolicySummary

_SLOW_TO_FAST = ["#c2410c", "#b58a00", "#2f8f83", "#3b6fb6"]
_TRIANGLE = 2
"""The shape of what no seed reached."""
_SHAPES = tuple(shape for shape in range(NUM_SHAPES) if shape != _TRIANGLE)
"""Shapes of lines."""
_LOG_FROM = 4.0  # ratio of largest to smallest value
_DOT_GAP = 0.008  # of the axis, between the dots of two lines
_LABEL_GAP = 0.09  # of the axis; the second of two bandwidths that are closer has no label


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One policy at one bandwidth.

    Attributes:
        by_seed: (seed, value) of the seeds that have one.
        median: Median of them; None if there are none.
        num_runs: Runs that were to have one, unfinished ones included.
        at_least: What the value is above where no run has one; None where nobody knows.
    """

    by_seed: tuple[tuple[int, float], ...]
    median: float | None
    num_runs: int
    at_least: float | None = None

    @property
    def complete(self) -> bool:
        return len(self.by_seed) == self.num_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A quantity that a sweep draws.

    Attributes:
        seeds: Those that have one.
        caption: What it is, where the title leaves that open.
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
    found = comparison.find(policy)
    return None if found is None else quantity.point_of(found)


def bound_policies(comparisons: Mapping[str, Comparison]) -> list[str]:
    """List the specs of the policies that have a bound, from the tightest on; of one bound, by their period."""
    specs = dict.fromkeys(summary.policy for comparison in comparisons.values() for summary in comparison.policies)
    return [
        spec for _, _, spec in sorted((policy.bound, policy.period, spec) for spec, policy in _bounded(specs).items())
    ]


def _bounded(specs: Iterable[str]) -> dict[str, SSP]:
    policies = {spec: parse_policy(spec) for spec in specs if not is_grid(spec)}
    return {spec: policy for spec, policy in policies.items() if isinstance(policy, SSP)}


def bound_chart(comparisons: Mapping[str, Comparison], quantity: Quantity, *, slug: str, title: str) -> LineChart:
    labels = _bound_labels(bound_policies(comparisons))
    colours = dict(zip(comparisons, _from_warm_to_cold(len(comparisons)), strict=True))
    lines = []
    for number, (bandwidth, comparison) in enumerate(comparisons.items()):
        found = {float(place): point_at(comparison, spec, quantity) for place, spec in enumerate(labels)}
        shift = _dot_shift(number) * len(labels)
        lines.append(
            _Line(
                bandwidth,
                Look(colours[bandwidth], _SHAPES[number % len(_SHAPES)]),
                found,
                {x: x + shift for x in found},
            )
        )
    with_periods = any("\np = " in label for label in labels.values())
    periods = " Below a bound is its period p: a worker exchanges every p steps." if with_periods else ""
    axis = Axis(title="bound of ssp (steps)", ticks=dict(enumerate(labels.values())), view=(-0.4, len(labels) - 0.6))
    return _chart(lines, quantity, axis, slug=slug, title=title, more=periods)


def bandwidth_chart(comparisons: Mapping[str, Comparison], quantity: Quantity, *, slug: str, title: str) -> LineChart:
    """Draw a line per policy, over the bandwidths; there are two at least."""
    policies = dict.fromkeys(summary.policy for one in comparisons.values() for summary in one.policies)
    looks = looks_of(policies, quiet=next(iter(comparisons.values())).baseline)
    places = {bandwidth: 8 * parse_bandwidth(bandwidth) for bandwidth in comparisons}
    low, high = min(places.values()), max(places.values())
    lines = []
    for number, policy in enumerate(policies):
        found = {places[bandwidth]: point_at(one, policy, quantity) for bandwidth, one in comparisons.items()}
        shift = (high / low) ** _dot_shift(number)
        look = Look(looks[policy].colour, _SHAPES[number % len(_SHAPES)])
        lines.append(_Line(policy, look, found, {x: x * shift for x in found}))
    margin = (high / low) ** 0.06
    view = (low / margin, high * max(margin, (high / low) ** _dot_shift(len(policies))))
    axis = Axis(title="bandwidth of a host's network interface", log=True, ticks=_ticks(places), view=view)
    return _chart(lines, quantity, axis, slug=slug, title=title)


def _dot_shift(number: int) -> float:
    """Return how far right of its line the dots of the ``number``-th one are, as a share of the axis."""
    return (number + 1.5) * _DOT_GAP


def _bound_labels(specs: Sequence[str]) -> dict[str, str]:
    """Label each bound, and below it the period where periods differ; with all of the spec where that is not enough."""
    found = _bounded(specs)
    if len({policy.period for policy in found.values()}) > 1:
        labels = {spec: f"{policy.bound}\np = {policy.period}" for spec, policy in found.items()}
    else:
        labels = {spec: str(policy.bound) for spec, policy in found.items()}
    if len(set(labels.values())) == len(specs):
        return labels
    return {spec: spec.removeprefix("ssp:").replace(",", ",\n") for spec in specs}


def _from_warm_to_cold(number: int) -> list[str]:
    """Return so many colours: an order, and no policy's."""
    places = [place / max(1, number - 1) for place in range(number)]
    parts = sample_colorscale(_SLOW_TO_FAST, places, colortype="tuple")
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in parts]


def _ticks(places: Mapping[str, float]) -> dict[float, str]:
    """Return labels on two lines at the bandwidths, without those that would overlap the one before."""
    gap = _LABEL_GAP * math.log10(max(places.values()) / min(places.values()))
    ticks: dict[float, str] = {}
    for bandwidth, place in places.items():
        if not ticks or math.log10(place / next(reversed(ticks))) >= gap:
            ticks[place] = bandwidth.replace(" ", "\n")
    return ticks


@dataclass(frozen=True, slots=True)
class _Line:
    """Points of a policy or of a bandwidth.

    Attributes:
        points: What was found, by places on the axis; None where nothing was.
        dots_at: Where the dots of a point's seeds are: beside it, and beside those of other lines.
    """

    name: str
    look: Look
    points: Mapping[float, SweepPoint | None]
    dots_at: Mapping[float, float]

    @property
    def found(self) -> dict[float, SweepPoint]:
        return {x: point for x, point in self.points.items() if point is not None}

    def series(self, unit: str) -> Iterator[Series]:
        """Yield the line, its seeds, and its points by how many seeds they are of, the filled ones with a legend."""
        found, series = self.found, partial(Series, name=self.name, look=self.look)
        dots = [(self.dots_at[x], value, seed) for x, point in found.items() for seed, value in point.by_seed]
        if len(dots) > len(found):
            hints = [f"seed {seed}: {value:.4g} {unit}" for _, value, seed in dots]
            x, y = [x for x, _, _ in dots], [value for _, value, _ in dots]
            yield series(x=x, y=y, style="points", weight="thin", hints=hints)
        medians = {x: math.nan if point.median is None else point.median for x, point in found.items()}
        yield series(x=list(medians), y=list(medians.values()))
        never = {x: at_least for x, point in found.items() if (at_least := point.at_least) and point.median is None}
        hints = [f"not reached in {at_least:.4g} {unit}" for at_least in never.values()]
        triangle = Look(self.look.colour, _TRIANGLE)
        yield series(x=list(never), y=list(never.values()), style="points", hollow=True, hints=hints, look=triangle)
        for hollow in (True, False):
            of_it = {x: point for x, point in found.items() if point.by_seed and point.complete != hollow}
            y = [medians[x] for x in of_it]
            hints = [
                f"{medians[x]:.4g} {unit} (median, {len(point.by_seed)} of {point.num_runs} seeds)"
                for x, point in of_it.items()
            ]
            yield series(x=list(of_it), y=y, style="points", hollow=hollow, hints=hints)


def _chart(
    lines: Sequence[_Line], quantity: Quantity, axis: Axis, *, slug: str, title: str, more: str = ""
) -> LineChart:
    """Draw all lines, a legend, and a caption on the meaning of the marks, those that there are."""
    points = [point for line in lines for point in line.found.values()]
    incomplete = [point for point in points if point.by_seed and not point.complete]
    never = [point for point in points if not point.by_seed and point.at_least]
    caption = [quantity.caption] if quantity.caption else []
    if max((len(point.by_seed) for point in points), default=0) > 1:
        caption.append(f"Line: median over the {quantity.seeds}. Small dots, beside it: these seeds.")
    if incomplete:
        caption.append("A hollow mark: some seed is not among them.")
    if never:
        caption.append("A hollow triangle: no seed reached it, and the runs were that long.")
    # hollow marks have no name of their own, so the legend explains them once
    signs = [
        Series(name=name, x=(), y=(), style="points", hollow=True, look=Look(QUIET, shape))
        for name, shape, shown in (("not every seed", 0, incomplete), ("no seed", _TRIANGLE, never))
        if shown
    ]
    values = [value for point in points for _, value in point.by_seed]
    values += [point.at_least for point in never if point.at_least]
    # a linear axis would squeeze the fast ones together
    over_decades = bool(values) and 0 < _LOG_FROM * min(values) <= max(values)
    return LineChart(
        slug=slug,
        title=title,
        caption=" ".join(caption) + more,
        wide=True,
        x=axis,
        y=Axis(title=quantity.title, log=over_decades, from_zero=True),
        series=[*(one for line in lines for one in line.series(quantity.unit)), *signs],
    )
