"""Measured times made a Hockney model: a straight line through (size, seconds), and its latency and bandwidth.

Sizes range over decades and a timer's errors grow with what it times, so the line makes the *relative* errors small:
the squares of ``(y - a - b x) / y`` are summed, that is weights ``1/y²``, with y as it was measured. Neither latency
nor seconds per byte can be negative. If the best line has a negative one, that one is 0 and the other is fitted
again. This is the non-negative least-squares solution (Lawson & Hanson 1974, chapter 23), as x and y are not negative.

Confidence intervals are those of the line without that constraint (Student's t, n-2 degrees of freedom), cut off at 0
and, where a 0 moved the other coefficient out of its interval, widened up to it. So they hold the true value as often
as they say also when it is 0, if errors are independent and of the same relative size at all points. They cover only
the scatter around the line: not that times are no line, which `LineFit.residuals` show.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plesio.core.errors import ConfigError, DataError
from plesio.core.extras import require
from plesio.cost.link import Link

_CONFIDENCE = 0.95
_FEWEST = 3
"""Two sizes have a line through them whatever the law is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFit:
    """``y = intercept + slope x``, neither of them negative.

    Attributes:
        intercept: Intercept in units of y: seconds, for times.
        slope: Slope in units of y over units of x: seconds per byte, for times by sizes.
        intercept_ci95: Ends of the 95 % confidence interval, 0 or more.
        residuals: ``measured / predicted - 1`` of each point, in the order given.
    """

    intercept: float
    slope: float
    intercept_ci95: tuple[float, float]
    slope_ci95: tuple[float, float]
    residuals: tuple[float, ...]
    num_points: int

    def at(self, x: float) -> float:
        """Return the line's prediction at ``x``."""
        return self.intercept + self.slope * x

    def __post_init__(self) -> None:
        if self.num_points != len(self.residuals):
            raise DataError(f"not a fitted line: {len(self.residuals)} residuals, not {self.num_points}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlphaBeta:
    """The links of a ring, in the Hockney model (`plesio.cost.hockney`).

    Attributes:
        latency_s: α, seconds a step of the ring.
        bytes_per_s: B, bytes per second in a step of the ring: the bus bandwidth of large messages.
        latency_ci95_s: Ends of the 95 % confidence interval of α.
        bytes_per_s_ci95: Likewise of B; the upper end is infinite if the times may not depend on the size at all.
    """

    latency_s: float
    bytes_per_s: float
    latency_ci95_s: tuple[float, float]
    bytes_per_s_ci95: tuple[float, float]

    @property
    def link(self) -> Link:
        """One of these links."""
        return Link(latency_s=self.latency_s, bytes_per_s=self.bytes_per_s)


def fit_line(x: Sequence[float], y: Sequence[float]) -> LineFit:
    """Fit the line with non-negative coefficients and the least squares of relative errors.

    >>> fit = fit_line([1e3, 1e6, 1e9], [20e-6, 30e-6, 10.1e-3])
    >>> f"{fit.intercept * 1e6:.1f} µs, {1 / fit.slope / 1e9:.0f} GB/s, {fit.residuals[-1]:+.2%}"
    '20.0 µs, 99 GB/s, +0.05%'

    Raises:
        ConfigError: Fewer than three different sizes, a measurement that is not positive, or a size that is negative.
    """
    _check(x, y)
    weights = [1 / value**2 for value in y]
    total = math.fsum(weights)
    middle_x, middle_y = _mean(x, weights), _mean(y, weights)
    spread = math.fsum(weight * (one - middle_x) ** 2 for weight, one in zip(weights, x, strict=True))
    moments = (w * (one - middle_x) * (value - middle_y) for w, one, value in zip(weights, x, y, strict=True))
    free_slope = math.fsum(moments) / spread
    free_intercept = middle_y - free_slope * middle_x

    # neither may be negative: one that is becomes 0, and the other is fitted again
    intercept, slope = free_intercept, free_slope
    if slope < 0:
        intercept, slope = middle_y, 0.0
    elif intercept < 0:
        squares = _mean([one * one for one in x], weights)
        intercept, slope = 0.0, _mean([one * value for one, value in zip(x, y, strict=True)], weights) / squares
    predicted = [intercept + slope * one for one in x]
    if not min(predicted) > 0:
        raise ConfigError(f"no line fits these {len(x)} points: it would be 0 at {min(x):g}; measure larger sizes only")

    # intervals are those of the free line, which the constraint does not bias
    errors = [(value - free_intercept - free_slope * one) / value for one, value in zip(x, y, strict=True)]
    scatter = math.sqrt(math.fsum(error * error for error in errors) / (len(x) - 2)) * _t_quantile(len(x) - 2)
    intercept_half = scatter * math.sqrt(1 / total + middle_x**2 / spread)
    slope_half = scatter / math.sqrt(spread)
    return LineFit(
        intercept=intercept,
        slope=slope,
        intercept_ci95=_around(intercept, free_intercept - intercept_half, free_intercept + intercept_half),
        slope_ci95=_around(slope, free_slope - slope_half, free_slope + slope_half),
        residuals=tuple(value / guess - 1 for value, guess in zip(y, predicted, strict=True)),
        num_points=len(x),
    )


def alpha_beta_of_all_reduce(fit: LineFit, *, num_ranks: int) -> AlphaBeta:
    """Return the latency and bandwidth with which a ring all-reduce takes these times by bytes of the whole tensor.

    ``a + b S = 2(n-1) α + 2(n-1)/n S/B`` (`plesio.cost.all_reduce.ring_all_reduce_s`), so ``α = a / (2(n-1))`` and
    ``B = 2(n-1) / (n b)``. With another algorithm than a ring, B is still the bus bandwidth of large messages, and α is
    only the latency that a ring would need to be as slow.

    >>> fit = fit_line([1e3, 1e6, 1e9], [78.6e-6 + 1.75 * size / 227e9 for size in (1e3, 1e6, 1e9)])  # 8 x A100
    >>> links = alpha_beta_of_all_reduce(fit, num_ranks=8)
    >>> f"{links.latency_s * 1e6:.2f} µs a step, {links.bytes_per_s / 1e9:.0f} GB/s"
    '5.61 µs a step, 227 GB/s'

    Raises:
        ConfigError: Fewer than two ranks, or times that do not rise with the size.
    """
    if num_ranks < 2:
        raise ConfigError(f"an all-reduce of {num_ranks} ranks sends nothing; write the times of 2 or more")
    if not fit.slope > 0:
        raise ConfigError("times that do not rise with the size have no bandwidth; measure larger messages")
    steps = 2 * (num_ranks - 1)

    def bandwidth(slope: float) -> float:
        return steps / num_ranks / slope if slope > 0 else math.inf

    return AlphaBeta(
        latency_s=fit.intercept / steps,
        bytes_per_s=bandwidth(fit.slope),
        latency_ci95_s=(fit.intercept_ci95[0] / steps, fit.intercept_ci95[1] / steps),
        bytes_per_s_ci95=(bandwidth(fit.slope_ci95[1]), bandwidth(fit.slope_ci95[0])),
    )


def _check(x: Sequence[float], y: Sequence[float]) -> None:
    if len(x) != len(y):
        raise ConfigError(f"{len(x)} sizes and {len(y)} measurements; write one of each a point")
    for one in x:
        if not 0 <= one < math.inf:
            raise ConfigError(f"a size of {one}; write 0 or more")
    for one, value in zip(x, y, strict=True):
        if not 0 < value < math.inf:
            raise ConfigError(f"a measurement of {value} at {one:g}; write more than 0")
    if len(set(x)) < _FEWEST:
        raise ConfigError(f"a line needs {_FEWEST} different sizes or more; these {len(x)} points have {len(set(x))}")


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(w * value for w, value in zip(weights, values, strict=True)) / math.fsum(weights)


def _around(value: float, low: float, high: float) -> tuple[float, float]:
    return max(0.0, min(low, value)), max(high, value)


def _t_quantile(degrees: int) -> float:
    require("sim", "Fitting")
    from scipy import stats  # half a second, which those who fit nothing need not wait

    return float(stats.t.ppf((1 + _CONFIDENCE) / 2, degrees))
