"""Curves over seeds: one per run, and the mean that stands for the policy."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of a line, in the order of ``x``."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> "Curve":
        """Sort the points whose y is finite by x: a diverged loss has no place on an axis.

        >>> Curve.of([(2, 0.5), (1, 0.7), (3, float("nan"))])
        Curve(x=(1, 2), y=(0.7, 0.5))
        """
        finite = sorted(point for point in points if math.isfinite(point[1]))
        return cls(x=tuple(x for x, _ in finite), y=tuple(y for _, y in finite))

    def at(self, x: float) -> float:
        """Return the value at ``x``, on the straight line between the neighbouring points."""
        return float(np.interp(x, self.x, self.y))


def mean_by_index(curves: Sequence[Curve]) -> Curve:
    """Average the first points, the second points and so on, in x and in y, as far as every curve goes.

    Runs are evaluated at fixed sample counts, so the k-th evaluations of all seeds belong together although they come
    at different times; nothing is interpolated.

    >>> mean_by_index([Curve(x=(1.0, 2.0), y=(0.5, 0.7)), Curve(x=(3.0,), y=(0.7,))])
    Curve(x=(2.0,), y=(0.6,))
    """
    if not curves:
        return Curve(x=(), y=())
    length = min(len(curve.x) for curve in curves)
    x = np.mean([curve.x[:length] for curve in curves], axis=0)
    y = np.mean([curve.y[:length] for curve in curves], axis=0)
    return Curve(x=tuple(x.tolist()), y=tuple(y.tolist()))


def mean_on_shared_range(curves: Sequence[Curve], *, num_points: int, window: int = 1) -> Curve:
    """Average over the range of x that every curve covers, at ``num_points`` places, smoothed over ``window`` of them.

    Between two points a curve is taken as straight; beyond its ends it is not extended. Near the ends of the range the
    window is cut to the places that exist.

    >>> mean_on_shared_range([Curve(x=(0.0, 2.0), y=(0.0, 2.0)), Curve(x=(1.0, 3.0), y=(3.0, 3.0))], num_points=2)
    Curve(x=(1.0, 2.0), y=(2.0, 2.5))
    """
    filled = [curve for curve in curves if curve.x]
    if not filled:
        return Curve(x=(), y=())
    low, high = max(curve.x[0] for curve in filled), min(curve.x[-1] for curve in filled)
    if low >= high:
        return mean_by_index(filled)
    grid = np.linspace(low, high, num_points)
    mean = np.mean([np.interp(grid, curve.x, curve.y) for curve in filled], axis=0)
    reach = window // 2
    smooth = [float(mean[max(0, place - reach) : place + reach + 1].mean()) for place in range(num_points)]
    return Curve(x=tuple(grid.tolist()), y=tuple(smooth))


def late_range(curves: Sequence[Curve], *, goal: str) -> tuple[float, float]:
    """Return the range of a metric's values without the steep start: from the values a fifth of the way on."""
    late = [curve.at(curve.x[0] + 0.2 * (curve.x[-1] - curve.x[0])) for curve in curves]
    everything = [y for curve in curves for y in curve.y]
    low, high = (min(late), max(everything)) if goal == "max" else (min(everything), max(late))
    margin = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    return low - margin, high + margin
