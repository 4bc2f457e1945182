"""Pictures of theorems: a bound over one of its inputs, and the map of what converges."""

import math
from collections.abc import Mapping
from typing import Any

from plesio.core.charts import Axis, BarChart, Chart, HeatMap, LineChart, Series
from plesio.core.errors import ConfigError
from plesio.core.units import format_seconds
from plesio_planning.theory.bound import Bound
from plesio_planning.theory.catalogue import Theorem
from plesio_planning.theory.communication import best_num_workers
from plesio_planning.theory.stability import constant_staleness, spectral_radius, stability_limit

_POINTS = 41
_SPAN = 100.0
"""An axis goes from the asked value over this to the asked value times this."""
_STALENESSES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_INVISIBLE = 1e-6
_WELL_WITHIN = 1 - 1e-9
"""Share of a limit: what is nearer takes forever."""
_STEPS = tuple(10 ** (place / 4) for place in range(-12, 3))


def pictures_of(theorem: Theorem, inputs: Mapping[str, Any]) -> list[Chart]:
    """Charts for ``inputs``, all of which are given."""
    if theorem.function is constant_staleness:
        step = inputs["learning_rate"] * inputs["curvature"]
        asked = (inputs["staleness"], step)
        return [_stability_limits(inputs["momentum"], asked), _decay_map(inputs["momentum"])]
    if theorem.function is best_num_workers:
        return [_iteration_by_workers(theorem.evaluate(**inputs))]
    if isinstance(inputs[theorem.over], tuple):
        return [_parts(theorem, theorem.evaluate(**inputs))]
    return [_curve(theorem, inputs)]


def _curve(theorem: Theorem, inputs: Mapping[str, Any]) -> LineChart:
    """Draw the value and its parts over the theorem's main input; where a premise fails is a gap."""
    asked, at = theorem.evaluate(**inputs), inputs[theorem.over]
    places = [at * _SPAN ** (2 * number / (_POINTS - 1) - 1) for number in range(_POINTS)]
    places = sorted({max(round(place), 1) for place in places}) if isinstance(at, int) else places
    bounds = [_evaluate(theorem, {**inputs, theorem.over: place}) for place in places]
    series = [Series(name="sum", x=places, y=[math.nan if bound is None else bound.value for bound in bounds])]
    if len(asked.parts) > 1:
        series += [
            Series(name=name, x=places, y=[_visible(bound, name) for bound in bounds], style="dashed")
            for name in asked.parts
        ]
    label = theorem.over.removeprefix("num_").replace("_", " ")
    unit = f" ({asked.unit})" if asked.unit else ""
    largest = max(asked.parts, key=lambda name: asked.parts[name])
    decides = 0.51 * asked.value < asked.parts[largest] < asked.value
    return LineChart(
        slug="curve",
        title=f"{asked.quantity}: {asked.format(asked.value)}{f', most of it {largest}' if decides else ''}",
        caption=f"{theorem.summary.removesuffix('.')}, by {label}; the mark is what was asked.",
        x=Axis(title=label, log=True),
        y=Axis(title=asked.quantity + unit, log=True),
        series=series,
        marks={"asked": float(at)},
    )


def _visible(bound: Bound | None, part: str) -> float:
    """Return a part, unless it is so small beside the sum that drawing it would hide all else."""
    if bound is None or bound.parts[part] <= _INVISIBLE * bound.value:
        return math.nan
    return bound.parts[part]


def _evaluate(theorem: Theorem, inputs: Mapping[str, Any]) -> Bound | None:
    try:
        return theorem.evaluate(**inputs)
    except ConfigError:
        return None


def _parts(theorem: Theorem, bound: Bound) -> BarChart:
    return BarChart(
        slug="parts",
        title=f"{bound.quantity}: {bound.format(bound.value)}",
        caption=f"{theorem.summary.removesuffix('.')}.",
        axis=Axis(title=f"{bound.quantity} ({bound.unit})"),
        rows=list(bound.parts),
        parts={bound.quantity: list(bound.parts.values())},
    )


def _iteration_by_workers(best: Bound) -> LineChart:
    """Seconds of an iteration from the best number of workers, where the parts are known, to others."""
    at = best.also["workers"]
    places = [at * _SPAN ** (2 * number / (_POINTS - 1) - 1) for number in range(_POINTS)]
    lines = {
        "compute": [best.parts["compute"] * at / place for place in places],
        "latency": [best.parts["latency"] * place / at for place in places],
        "bytes": [best.parts["bytes"]] * _POINTS,
    }
    series = [Series(name="sum", x=places, y=[math.fsum(parts) for parts in zip(*lines.values(), strict=True)])]
    return LineChart(
        slug="curve",
        title=f"{at:.0f} workers have the shortest iteration: {format_seconds(best.value)}",
        caption="Seconds of an iteration by the number of workers.",
        x=Axis(title="workers", log=True),
        y=Axis(title="iteration (s)", log=True),
        series=[*series, *(Series(name=name, x=places, y=y, style="dashed") for name, y in lines.items())],
        marks={"best": at},
    )


def _stability_limits(momentum: float, asked: tuple[int, float]) -> LineChart:
    stalenesses = range(max(64, 2 * asked[0]) + 1)
    betas = sorted({0.0, 0.5, 0.9, momentum})
    series = [
        Series(
            name="no momentum" if beta == 0 else f"momentum {beta:g}",
            x=list(stalenesses),
            y=[stability_limit(staleness=staleness, momentum=beta) for staleness in stalenesses],
            style="line" if beta == momentum else "dashed",
        )
        for beta in betas
    ]
    series.append(Series(name="asked", x=[asked[0]], y=[asked[1]], style="points"))
    limit = stability_limit(staleness=asked[0], momentum=momentum)
    verdict = "converges" if asked[1] < limit else "does not converge"
    return LineChart(
        slug="limits",
        title=f"αλ = {asked[1]:.3g} with a staleness of {asked[0]} {verdict}: the limit is {limit:.3g}",
        caption="Largest learning rate times curvature with which late gradients converge; below a line is stable.",
        x=Axis(title="staleness (steps)"),
        y=Axis(title="αλ", log=True),
        series=series,
    )


def _decay_map(momentum: float) -> HeatMap:
    """Map the steps until the error has shrunk tenfold, in the long run."""
    limits = {staleness: stability_limit(staleness=staleness, momentum=momentum) for staleness in _STALENESSES}

    def tenfold(step: float, staleness: int) -> float:
        if step > limits[staleness] * _WELL_WITHIN:
            return math.nan
        radius = spectral_radius(step=step, staleness=staleness, momentum=momentum)
        return max(math.log(0.1) / math.log(radius), 1.0) if radius > 0 else 1.0

    values = [[tenfold(step, staleness) for staleness in _STALENESSES] for step in reversed(_STEPS)]
    texts = [["" if math.isnan(value) else f"{value:.0f}" for value in row] for row in values]
    return HeatMap(
        slug="map",
        title=f"Steps until the error has shrunk tenfold, with momentum {momentum:g}; an empty cell diverges",
        caption="By staleness and αλ, from the largest root of the companion polynomial.",
        x=Axis(title="staleness (steps)"),
        y=Axis(title="αλ"),
        columns=[str(staleness) for staleness in _STALENESSES],
        rows=[f"{step:.2g}" for step in reversed(_STEPS)],
        values=[[math.log10(value) for value in row] for row in values],
        scale=Axis(title="log10 of steps"),
        texts=texts,
    )
