"""Charts of a characterisation: the source's figures with ours, speed-up, factors, and time against accuracy."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Look, Panels, Series
from plesio.core.combination import FACTORS, Combination, Part, level_text
from plesio.core.errors import DataError
from plesio.core.trace import UTILISATION
from plesio.core.units import byte_unit, format_bytes, listed
from plesio.report.characterisation.paper import PAPER, PaperLayout
from plesio.report.characterisation.summary import Characterisation
from plesio.report.charts.colours import ACTIVITY_COLOURS, looks_of
from plesio.report.model import Comparison, PolicySummary
from plesio.report.resource_charts import RunUtilisation, memory_bars, utilisation_of, worker_lines
from plesio.report.sentences import ratio_text, share_text
from plesio.report.spans import read_traces
from plesio.report.summarise import BASELINE

_PANEL_COLUMNS = 2
_ROOM = 1.2
"""Upper end of an axis over the largest value."""

Looks = Mapping[str, Look]


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Resources that the workers of one run used over time.

    Attributes:
        strategy: The paper's name of what was run.
    """

    strategy: str
    title: str
    samples: RunUtilisation


def read_used(found: Characterisation, folders: Mapping[Combination, Path]) -> list[Used]:
    """Read what was used under the strategies of the paper's figures over time, of its model where it was run.

    A trace that cannot be read is left out, and a run that was over before two samples were taken.
    """
    models = found.models()
    model = PAPER.model if PAPER.model in models else models[0]
    used = []
    for strategy in dict.fromkeys(one for figure in PAPER.figures if figure.title for one in figure.strategies):
        for workers in PAPER.workers[1:]:
            summary = found.summary(strategy, model=model, workers=workers)
            comparison = found.measured(model=model, workers=workers)
            if summary is None or comparison is None:
                continue
            folder = next(folders[one] for one, of_it in found.settings.items() if of_it is comparison)
            samples = _first_of(folder, summary.policy)
            if samples is not None and all(len(taken) > 1 for taken in samples.samples.values()):
                used.append(Used(strategy=strategy, title=f"{model}, {strategy}, {workers} workers", samples=samples))
    return used


def _first_of(folder: Path, policy: str) -> RunUtilisation | None:
    """Read the samples of the policy's first run that has some."""
    for run in sorted((folder / "runs").glob("*")):
        with contextlib.suppress(DataError):
            samples = utilisation_of(read_traces(run, kind=UTILISATION))
            if samples is not None and samples.policy == policy:
                return samples
    return None


def paper_charts(found: Characterisation, used: Sequence[Used] = ()) -> dict[str, Chart]:
    """Draw the paper's figures as it has laid them out, by their numbers, where there is something to draw."""
    made: dict[str, Chart | None] = {}
    for layout in PAPER.figures:
        match layout.of:
            case "activity":
                made[layout.number] = _activity_chart(found, layout)
            case "memory":
                made[layout.number] = _memory_chart(found, layout)
            case _:
                made[layout.number] = _chart_over_time(
                    layout, [one for one in used if one.strategy in layout.strategies]
                )
    return {number: chart for number, chart in made.items() if chart is not None}


def _chart_over_time(layout: PaperLayout, used: Sequence[Used]) -> Panels | None:
    if not used:
        return None
    values = [
        value for one in used for worker in one.samples.samples for value in one.samples.values(worker, layout.of)
    ]
    if layout.of == "cpu":
        what, unit, scale = "A line a worker; 100 % is one core.", "% of a core", 100.0
    else:
        unit, size = byte_unit(max(values, default=0.0))
        what = "A line a worker, with interpreter and libraries; what the model takes of it is in Figure 15."
        scale = 1 / size
    most = _ROOM * scale * max((value for value in values if value == value), default=1.0)
    axes = {"x": Axis(title="seconds", from_zero=True), "y": Axis(title=unit, view=(0, most))}
    return Panels(
        slug=f"figures-{layout.number.replace(' to ', '-')}",
        title=layout.title,
        caption=f"{what} {layout.theirs} First seed.",
        charts=[worker_lines(one.samples, title=one.title, fields=(layout.of,), scale=scale, **axes) for one in used],
        columns=_PANEL_COLUMNS,
    )


def _settings_of(found: Characterisation, strategies: Sequence[str]) -> Iterator[tuple[str, str, PolicySummary]]:
    """Yield (row, strategy, summary) with 2 workers or more, model by model, where all of these strategies were run."""
    for model in found.models():
        for workers in PAPER.workers[1:]:
            summaries = [found.summary(strategy, model=model, workers=workers) for strategy in strategies]
            for strategy, summary in zip(strategies, summaries, strict=True):
                if summary is not None and None not in summaries:
                    yield f"{model} ×{workers} {PAPER.strategies[strategy].short}", strategy, summary


def _activity_chart(found: Characterisation, layout: PaperLayout) -> BarChart | None:
    rows: list[str] = []
    ends: list[str] = []
    parts: dict[str, list[float]] = {name: [] for name in ACTIVITY_COLOURS}
    by_strategy: dict[str, list[float]] = {}
    for row, strategy, summary in _settings_of(found, layout.strategies):
        wait, communicate = summary.wait_share, summary.communicate_share
        # a run without times would shift the means
        if wait is None or communicate is None:
            continue
        rows.append(row)
        ends.append(share_text(1 - wait - communicate) if summary.cpu is None else f"{summary.cpu:.2f} cores")
        shares = {"compute": 1 - wait - communicate, "communicate": communicate, "wait": wait}
        for name, share in shares.items():
            parts[name].append(100 * share)
        by_strategy.setdefault(strategy, []).append(shares["compute"])
    if not rows:
        return None
    means = [f"{share_text(sum(shares) / len(shares))} under {name}" for name, shares in by_strategy.items()]
    return BarChart(
        slug=f"figure-{layout.number}",
        title=f"Share of the time that workers compute: {listed(means)}",
        caption="Where workers' time goes, and the processor cores that a worker's process used, mean over workers and "
        f"seeds; steps that are paced compute for less than they last. {layout.theirs}",
        wide=True,
        axis=Axis(title="% of the workers' time", view=(0, 100)),
        rows=rows,
        parts=parts,
        colours=ACTIVITY_COLOURS,
        ends=ends,
    )


def _memory_chart(found: Characterisation, layout: PaperLayout) -> BarChart | None:
    drawn = [(row, strategy, one) for row, strategy, one in _settings_of(found, layout.strategies) if one.memory]
    if not drawn:
        return None
    by_strategy: dict[str, list[float]] = {}
    for _, strategy, one in drawn:
        by_strategy.setdefault(strategy, []).append(one.state_bytes or 0.0)
    means = {name: sum(values) / len(values) for name, values in by_strategy.items()}
    first, *others = means
    ratios = [f"{name} holds {ratio_text(means[name] / means[first])} of {first}" for name in others if means[first]]
    return memory_bars(
        {row: one.memory for row, _, one in drawn},
        slug=f"figure-{layout.number}",
        title=f"Of parameters, gradients and optimizer state a worker under {listed(ratios)}"
        if ratios
        else "What a worker's memory holds",
        caption="A worker's peak without what was there before training, mean over workers and seeds; what stands at a "
        f"bar's end is parameters, gradients and optimizer state. {layout.theirs}",
        without="before",
        ends=[format_bytes(one.state_bytes or 0.0) for _, _, one in drawn],
    )


def speed_up_chart(found: Characterisation) -> Panels | None:
    """Draw the speed-up over the number of workers, a panel a model and a line a policy."""
    looks = _looks(found)
    panels = []
    for model in found.models():
        alone = found.measured(model=model, workers=1)
        many = {
            number: comparison
            for number in sorted({combination.workers for combination in found.settings})
            if (comparison := found.measured(model=model, workers=number)) is not None
        }
        if alone is None or len(many) < 2:
            continue
        base = {one.policy: one.samples_per_s.mean for one in alone.policies if one.samples_per_s is not None}
        series = [Series(name="ideal", x=list(many), y=list(many), style="dashed", look=Look("#9aa1a9"))]
        for policy, rate in base.items():
            points = [
                (number, one.samples_per_s.mean / rate)
                for number, comparison in many.items()
                if (one := comparison.find(policy)) is not None and one.samples_per_s is not None
            ]
            series.append(Series(name=policy, x=[x for x, _ in points], y=[y for _, y in points], look=looks[policy]))
        axis = Axis(title="workers", ticks={number: str(number) for number in many})
        panels.append(LineChart(title=model, x=axis, y=Axis(title="speed-up", from_zero=True), series=series))
    if not panels:
        return None
    return Panels(
        slug="speed-up",
        title="Speed-up over one worker under the same policy",
        caption="Ratio of mean samples per second; the dashed line is as many times as there are workers.",
        charts=panels,
        columns=_PANEL_COLUMNS,
    )


def accuracy_chart(found: Characterisation) -> Panels | None:
    """Draw the metric over training time with the most workers, a panel a model and a line a policy."""
    looks = _looks(found)
    panels = []
    for comparison, title in _with_most_workers(found):
        metric = comparison.metric
        series = [
            Series(
                name=one.policy,
                x=one.metric_mean.x,
                y=[metric.scale * value for value in one.metric_mean.y],
                look=looks[one.policy],
            )
            for one in comparison.policies
            if one.metric_mean.x
        ]
        if series:
            axis = Axis(title="training time (s)", from_zero=True)
            panels.append(LineChart(title=title, x=axis, y=Axis(title=metric.axis_title), series=series))
    if not panels:
        return None
    return Panels(
        slug="metric-time",
        title=f"{panels[0].y.title.capitalize()} over time",
        caption="Mean over seeds of the k-th evaluations, in both directions.",
        charts=panels,
        columns=_PANEL_COLUMNS,
    )


def _with_most_workers(found: Characterisation) -> Iterator[tuple[Comparison, str]]:
    """Yield each model's comparison with the most workers, nothing else varied, and its title."""
    for model in found.models():
        for number in sorted({one.workers for one in found.settings}, reverse=True):
            comparison = found.measured(model=model, workers=number)
            if comparison is not None:
                yield comparison, f"{model}, {number} workers"
                break


def pareto_chart(found: Characterisation) -> Panels | None:
    """Draw time against the final metric with the most workers, a panel a model; the front is joined."""
    looks = _looks(found)
    panels = []
    fronts: list[str] = []
    for comparison, title in _with_most_workers(found):
        panel = _pareto_panel(comparison, looks, title=title)
        if panel is not None:
            panels.append(panel[0])
            fronts += panel[1]
    if not panels:
        return None
    always = [policy for policy in dict.fromkeys(fronts) if fronts.count(policy) == len(panels)]
    title = (
        f"On the Pareto front of every model: {listed(always)}"
        if always
        else "No policy is on every model's Pareto front"
    )
    return Panels(
        slug="pareto",
        title=title,
        caption="A mark a policy, means over seeds. The line joins those that no other beats in both time and metric; "
        "means alone decide, so who is on it may be chance where marks are close.",
        charts=panels,
        columns=_PANEL_COLUMNS,
    )


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Name the points, (cost, gain), with no other that costs no more and gains no less, from the cheapest on.

    >>> pareto_front({"slow": (3.0, 0.9), "fast": (1.0, 0.8), "bad": (2.0, 0.7), "best": (3.0, 0.95)})
    ['fast', 'best']
    """
    front: list[str] = []
    most = float("-inf")
    for name, (_, gain) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if gain > most:
            front.append(name)
            most = gain
    return front


def _pareto_panel(comparison: Comparison, looks: Looks, *, title: str) -> tuple[LineChart, list[str]] | None:
    metric = comparison.metric
    sign = 1 if metric.goal == "max" else -1
    points = {
        one.policy: (one.time_s.mean, metric.scale * one.final_metric.mean)
        for one in comparison.policies
        if one.time_s is not None and one.final_metric is not None
    }
    if len(points) < 2:
        return None
    front = pareto_front({policy: (time_s, sign * value) for policy, (time_s, value) in points.items()})
    line = Series(
        name="Pareto front",
        x=[points[policy][0] for policy in front],
        y=[points[policy][1] for policy in front],
        style="dashed",
        look=Look("#9aa1a9"),
    )
    marks = [
        Series(name=policy, x=[time_s], y=[value], style="points", look=looks[policy], hollow=policy not in front)
        for policy, (time_s, value) in points.items()
    ]
    chart = LineChart(
        title=title, x=Axis(title="training time (s)"), y=Axis(title=metric.axis_title), series=[line, *marks]
    )
    return chart, front


def factor_charts(found: Characterisation) -> list[Panels]:
    """Draw, for each part and each factor that it varies beside model and workers, the effect on speed and metric."""
    made = []
    for part in found.parts:
        for factor in FACTORS[2:]:
            if factor in part.levels:
                made.append(_factor_chart(found, part, factor))
    return made


def _factor_chart(found: Characterisation, part: Part, factor: str) -> Panels:
    """Draw the levels along the axis; what else the part crosses is held at its first level."""
    chosen = {level: found.settings[combination] for level, combination in part.along(factor).items()}
    looks = _looks(found)
    metric = next(iter(chosen.values())).metric
    # levels are names as often as numbers, so they stand at equal distances
    ticks = {float(place): level for place, level in enumerate(chosen)}

    def panel(title: str, unit: str, value_of: Callable[[PolicySummary], float | None]) -> LineChart:
        series = []
        for policy in part.policies:
            found = [comparison.find(policy) for comparison in chosen.values()]
            y = [math.nan if one is None or (value := value_of(one)) is None else value for one in found]
            series.append(Series(name=policy, x=list(ticks), y=y, look=looks[policy]))
        axis = Axis(title=factor, ticks=ticks, view=(-0.3, len(ticks) - 0.7))
        return LineChart(title=title, x=axis, y=Axis(title=unit), series=series)

    first = part.combinations[0]
    others = [f"{name} {level_text(name, levels[0])}" for name, levels in part.levels.items() if name != factor]
    base = ", ".join(others) or f"{first.model}, {first.workers} workers"
    return Panels(
        slug=f"part-{part.name}-{factor}".replace(" ", "-"),
        title=_factor_finding(part, factor, chosen),
        caption=f"Part {part.name} ({first.world} world, {base}); means over seeds.",
        charts=[
            panel("Throughput", "samples/s", lambda one: None if one.samples_per_s is None else one.samples_per_s.mean),
            panel(
                "Final metric",
                metric.axis_title,
                lambda one: None if one.final_metric is None else metric.scale * one.final_metric.mean,
            ),
        ],
        columns=2,
    )


def _factor_finding(part: Part, factor: str, chosen: Mapping[str, Comparison]) -> str:
    """Tell which policy's throughput depends most on the factor, and which one's least."""
    changes: dict[str, float] = {}
    for policy in part.policies:
        rates = [
            one.samples_per_s.mean
            for comparison in chosen.values()
            if (one := comparison.find(policy)) is not None and one.samples_per_s is not None
        ]
        if len(rates) > 1 and min(rates) > 0:
            changes[policy] = max(rates) / min(rates)
    if len(changes) < 2:
        return f"What {factor} does"
    most, least = max(changes, key=changes.__getitem__), min(changes, key=changes.__getitem__)
    return (
        f"Over {factor}, throughput varies by {ratio_text(changes[most])} under {most}, "
        f"by {ratio_text(changes[least])} under {least}"
    )


def _looks(found: Characterisation) -> Looks:
    policies = [one.policy for comparison in found.settings.values() for one in comparison.policies]
    return looks_of(policies, quiet=BASELINE if BASELINE in policies else None)
