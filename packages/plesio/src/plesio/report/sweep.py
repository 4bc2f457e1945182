"""Findings of a sweep: best policies, and where bandwidth stops mattering, in a terminal and as a page.

A policy counts as having reached the target at a bandwidth when every seed did; the median of some would flatter it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from plesio.core.charts import LineChart, Table
from plesio.core.results import RunResult
from plesio.core.units import format_seconds, listed
from plesio.report import sweep_charts as charts
from plesio.report.charts import plain_table
from plesio.report.document import Document, StyledTable, pictures, section
from plesio.report.model import Comparison
from plesio.report.page_frame import render_document
from plesio.report.sentences import ratio_text, seeds_text
from plesio.report.summarise import compare_runs
from plesio.report.table import comparison_values

CLOSE = 1.1
"""Times within this factor of each other are told as equal."""
_NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Comparisons of one task by the bandwidth of the network, from the smallest on.

    Attributes:
        network: What the bandwidth was given to.
    """

    comparisons: Mapping[str, Comparison]
    network: str

    @property
    def first(self) -> Comparison:
        """The comparison at the smallest bandwidth; task, metric and target are those of all."""
        return next(iter(self.comparisons.values()))

    @property
    def goal(self) -> str:
        metric, target = self.first.metric, self.first.target
        return metric.name if target is None else f"{metric.name} {metric.text(target)}"


def summarise_sweep(runs: Mapping[str, Sequence[RunResult]], *, network: str) -> Sweep:
    """Summarise runs by bandwidth ("1 Gbit/s"), from the smallest on.

    Raises:
        DataError: The runs of a bandwidth cannot be compared.
    """
    return Sweep(comparisons={name: compare_runs(of_it) for name, of_it in runs.items()}, network=network)


def sweep_values(sweep: Sweep) -> dict[str, Any]:
    """Return the numbers of a sweep as JSON values: the comparison at each bandwidth."""
    comparisons = {bandwidth: comparison_values(one) for bandwidth, one in sweep.comparisons.items()}
    return {"network": sweep.network, "comparisons": comparisons}


def sweep_sentences(sweep: Sweep) -> list[str]:
    """Tell which policy is best at each bandwidth, and from where on bandwidth and bound stop mattering."""
    sentences = [_best(bandwidth, sweep) for bandwidth in sweep.comparisons]
    sentences += filter(
        None, (_where_bandwidth_matters(sweep), _smallest_bounds(sweep), _how_far_seeds_are_apart(sweep))
    )
    runs = [run for comparison in sweep.comparisons.values() for run in comparison.runs]
    if any(run.evaluations and run.time_to_target_s == run.evaluations[0].at_s for run in runs):
        sentences.append(
            "Some runs were there when first evaluated: a harder target or a smaller evaluate_every helps."
        )
    return sentences


def _times_s(comparison: Comparison) -> dict[str, float]:
    """Return the median times of the policies of which every seed reached the target, the shortest first."""
    points = {summary.policy: charts.TIME.point_of(summary) for summary in comparison.policies}
    found = {policy: point.median for policy, point in points.items() if point.median is not None and point.complete}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _best(bandwidth: str, sweep: Sweep) -> str:
    times_s = _times_s(sweep.comparisons[bandwidth])
    if not times_s:
        return f"At {bandwidth} no policy reached {sweep.goal} on every seed."
    (best, *others), best_s = times_s, min(times_s.values())
    left = [summary.policy for summary in sweep.comparisons[bandwidth].policies if summary.policy not in times_s]
    without = f" Not on every seed: {listed(left)}." if left else ""
    close = [policy for policy in others if times_s[policy] <= CLOSE * best_s]
    if not others:
        return f"At {bandwidth} {best} reaches {sweep.goal} in {format_seconds(best_s)}.{without}"
    start = f"At {bandwidth} {best} is first at {sweep.goal}, in {format_seconds(best_s)}"
    if len(close) == len(others):
        return f"{start}, but the choice hardly matters: {listed(close)} within 10 % of it.{without}"
    beside = f" ({listed(close)} within 10 %)" if close else ""
    ratio = ratio_text(times_s[others[-1]] / best_s)
    return f"{start}{beside}: {ratio} as fast as {others[-1]}, the last.{without}"


def _where_bandwidth_matters(sweep: Sweep) -> str | None:
    """Find the bandwidth from which on more of it shortens no policy's time by more than 10 %."""
    times = {bandwidth: _times_s(comparison) for bandwidth, comparison in sweep.comparisons.items()}
    *narrower, widest = times
    last = times[widest]
    if not (narrower and last):
        return None
    for bandwidth in narrower:
        if all(times[bandwidth].get(policy, math.inf) <= CLOSE * last[policy] for policy in last):
            return f"Bandwidth beyond {bandwidth} shortens no policy's time by more than 10 %."
    gains = {policy: times[narrower[-1]].get(policy, math.inf) / last[policy] for policy in last}
    most = max(gains, key=lambda policy: gains[policy])
    gain = "reach the target" if math.isinf(gains[most]) else f"{ratio_text(gains[most])} as fast"
    indifferent = [policy for policy in gains if gains[policy] <= CLOSE]
    others = f"; {listed(indifferent)} no longer gain{'s' if len(indifferent) == 1 else ''}" if indifferent else ""
    return f"Bandwidth matters up to {widest}: the last step, from {narrower[-1]}, still makes {most} {gain}{others}."


def _how_far_seeds_are_apart(sweep: Sweep) -> str | None:
    if len(sweep.first.seeds) == 1:
        return "One seed: small differences may be chance."
    spreads = {}
    for bandwidth, comparison in sweep.comparisons.items():
        for summary in comparison.policies:
            times_s = [time_s for _, time_s in charts.TIME.point_of(summary).by_seed if time_s > 0]
            if times_s:
                spreads[f"{summary.policy} at {bandwidth}"] = max(times_s) / min(times_s)
    most = max(spreads, key=lambda where: spreads[where], default=None)
    if most is None or spreads[most] <= CLOSE:
        return None
    apart = ratio_text(spreads[most])
    return f"The times of a policy's seeds are up to {apart} apart ({most}): smaller differences may be chance."


def _highest_throughput(sweep: Sweep) -> str | None:
    leaders: dict[str, list[str]] = {}
    for bandwidth, comparison in sweep.comparisons.items():
        points = {summary.policy: charts.THROUGHPUT.point_of(summary) for summary in comparison.policies}
        rates = {policy: point.median for policy, point in points.items() if point.median is not None}
        first = [policy for policy, rate in rates.items() if rate * CLOSE >= max(rates.values())]
        if len(rates) > 1:
            leaders.setdefault("all alike" if len(first) == len(rates) else listed(first), []).append(bandwidth)
    clauses = [f"{who} at {listed(where)}" for who, where in leaders.items()]
    return f"Most samples per second, within 10 %: {'; '.join(clauses)}." if clauses else None


def _smallest_bounds(sweep: Sweep) -> str | None:
    enough: dict[str, list[str]] = {}
    for bandwidth, comparison in sweep.comparisons.items():
        times_s = _times_s(comparison)
        found = [policy for policy in charts.bound_policies(sweep.comparisons) if policy in times_s]
        if len(found) > 1:
            best_s = min(times_s[policy] for policy in found)
            least = next(policy for policy in found if times_s[policy] <= CLOSE * best_s)
            enough.setdefault(least, []).append(bandwidth)
    clauses = [f"{policy} at {listed(where)}" for policy, where in enough.items()]
    return f"The smallest bound within 10 % of the best one: {'; '.join(clauses)}." if clauses else None


def _tables(sweep: Sweep) -> dict[str, Table]:
    """Make the tables by their names in the page: a row is a policy, with a cell for each bandwidth."""
    there = sweep.comparisons.values()
    policies = dict.fromkeys(summary.policy for comparison in there for summary in comparison.policies)
    found = {}
    for slug, title, quantity in (
        ("times", f"Median time to {sweep.goal} (seeds that reached it)", charts.TIME),
        ("rates", "Median samples per second", charts.THROUGHPUT),
    ):
        points = {policy: [charts.point_at(one, policy, quantity) for one in there] for policy in policies}
        rows = [[policy, *(_cell(point, quantity) for point in of_it)] for policy, of_it in points.items()]
        found[slug] = Table(title=title, headers=("policy", *sweep.comparisons), rows=rows)
    return found


def _cell(point: charts.SweepPoint | None, quantity: charts.Quantity) -> str:
    if point is None:
        return _NONE
    if quantity is charts.THROUGHPUT:
        return _NONE if point.median is None else f"{point.median:,.0f}"
    time = "never" if point.median is None else _time_text(point.median)
    return f"{time} ({len(point.by_seed)} of {point.num_runs})"


def _time_text(time_s: float) -> str:
    """Write a time as one of a column's: with as many digits as the others, usually."""
    return f"{time_s:.2f} s" if 1 <= time_s < 60 else format_seconds(time_s)


def _troubles(sweep: Sweep) -> list[str]:
    return [line for where, comparison in sweep.comparisons.items() for line in comparison.unfinished(f" at {where}")]


def render_sweep(sweep: Sweep) -> RenderableType:
    parts: list[RenderableType] = []
    for one in _tables(sweep).values():
        parts += [Text(f"{one.title}:"), plain_table(one), Text()]
    parts += [Text(line) for line in (*sweep_sentences(sweep), f"The network: {sweep.network}.", *_troubles(sweep))]
    return Group(*parts)


def sweep_charts_of(sweep: Sweep) -> list[LineChart]:
    """Draw the charts that there are bounds and bandwidths enough for."""
    swept, goal = sweep.comparisons, sweep.goal
    made, over_bandwidth, over_bound = [], len(swept) > 1, len(charts.bound_policies(swept)) > 1
    if over_bound:
        title = _smallest_bounds(sweep) or f"Time to {goal} over the bound"
        made.append(charts.bound_chart(swept, charts.TIME, slug="time-bound", title=title))
    if over_bandwidth:
        title = _where_bandwidth_matters(sweep) or f"Time to {goal} over the bandwidth"
        made.append(charts.bandwidth_chart(swept, charts.TIME, slug="time-bandwidth", title=title))
    if over_bandwidth or over_bound:
        draw = charts.bandwidth_chart if over_bandwidth else charts.bound_chart
        title = _highest_throughput(sweep) or f"Throughput over the {'bandwidth' if over_bandwidth else 'bound'}"
        made.append(draw(swept, charts.THROUGHPUT, slug="throughput", title=title))
    return made


def render_sweep_page(sweep: Sweep) -> str:
    first = sweep.first
    facts = f"{first.num_workers} workers in the {first.world} world · {seeds_text(len(first.seeds))} · {sweep.network}"
    document = Document(
        title="Plesio: bound and bandwidth",
        heading=f"{first.task}: bound, bandwidth and the time to {sweep.goal}",
        facts=[facts],
        alerts=[("", line) for line in _troubles(sweep)],
        sections=[
            section("In words", *sweep_sentences(sweep), slug="in-words"),
            pictures(sweep_charts_of(sweep)),
            *(section(one.title, StyledTable(table=one, even=True), slug=slug) for slug, one in _tables(sweep).items()),
        ],
    )
    return render_document(document)
