"""A monitor that asks for little slack while gradient statistics are out of the ordinary.

`plesio.policies.adaptive.readings.gradient_figures` defines the statistics.

A figure is *out of the ordinary* when it exceeds ``trigger`` times its moving average (of the last ``window`` readings,
extrapolated by their trend), and its own noise as well. A figure that grows or decays by a steady share does not trip
the monitor, nor does one that is always erratic.

The advice is then ``tight_slack`` for ``hold_reviews`` reviews. After that, while every figure was below ``release``
times its average when it was last seen, the slack becomes the next of 1, 3, 7 ... every ``regrow_reviews``, and there
is no objection beyond ``largest_slack``. An extraordinary figure enters the average cut to the trigger's value: one
outlier moves it little, and a new level becomes the ordinary one within a window.
"""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence

from plesio.policies.adaptive.config.gradient import GradientMonitorConfig
from plesio.policies.adaptive.readings.reading import NO_OBJECTION, ComponentAdvice, Reading

__all__ = ["GradientMonitor"]

_LEAST, _LARGEST = 1e-100, 1e100
"""Smallest and largest value of a figure; values beyond are clamped, so that nothing overflows."""


class GradientMonitor:
    """Objects to slack while gradient variance or norm is out of the ordinary; the module's head has the rule.

    >>> from plesio.policies.adaptive.readings.reading import GradientFigures
    >>> monitor = GradientMonitor(GradientMonitorConfig())
    >>> def reading(variance: float) -> Reading:
    ...     figures = GradientFigures(norm_sq=2.0, mean_norm_sq=1.0, within=1.0, between=variance, noise_scale=9.0)
    ...     return Reading(clock=16, num_steps=16, learning_rate=0.1, gradient=figures)
    >>> [monitor.observe(reading(variance)).slack for variance in (1.0, 1.1, 0.9, 1.0, 1.0, 3.1)]
    [inf, inf, inf, inf, inf, 3]
    """

    def __init__(self, config: GradientMonitorConfig) -> None:
        self._config = config
        self._averages = {
            "between": _MovingAverage(config, trigger=config.trigger),
            "within": _MovingAverage(config, trigger=config.trigger),
            "norm_sq": _MovingAverage(config, trigger=config.norm_trigger**2),
        }
        self._advice = NO_OBJECTION
        self._ratios: dict[str, float] = {}
        """Last value over its average, by figure."""
        self._since = 0
        """Reviews since the slack was last changed."""

    def observe(self, reading: Reading) -> ComponentAdvice:
        self._since += 1
        tripped: dict[str, float] = {}
        if reading.gradient is not None:
            for name, average in self._averages.items():
                value = getattr(reading.gradient, name)
                if not math.isnan(value):
                    self._ratios[name], trips = average.take(value)
                    if trips:
                        tripped[name] = self._ratios[name]
        if tripped:
            self._trip(tripped)
        elif self._advice.slack < math.inf and all(ratio <= self._config.release for ratio in self._ratios.values()):
            self._relax()
        return self._advice

    def _trip(self, tripped: Mapping[str, float]) -> None:
        name = max(tripped, key=lambda key: tripped[key])
        figure = {"between": "variance between workers", "within": "variance within workers", "norm_sq": "squared norm"}
        reason = f"gradient {figure[name]} is {tripped[name]:.3g} times its average"
        self._advice = ComponentAdvice(
            slack=self._config.tight_slack,
            reason=reason,
            inputs={f"{key}_ratio": value for key, value in tripped.items()},
        )
        self._since = 0

    def _relax(self) -> None:
        config = self._config
        slack = int(self._advice.slack)
        if self._since < (config.hold_reviews if slack == config.tight_slack else config.regrow_reviews):
            return
        self._since = 0
        grown = 2 * slack + 1
        if grown > config.largest_slack:
            self._advice = NO_OBJECTION
        else:
            self._advice = ComponentAdvice(slack=grown, reason="gradient is ordinary again")


class _MovingAverage:
    """Moving average of one figure, with its trend and noise."""

    def __init__(self, config: GradientMonitorConfig, *, trigger: float) -> None:
        self._trigger = trigger
        self._noise_factor = config.noise_factor
        self._window = config.window
        self._values: deque[float] = deque(maxlen=config.window)

    def take(self, value: float) -> tuple[float, bool]:
        """Return value over the moving average (extrapolated if it rises), and True if that is out of the ordinary."""
        past = list(self._values)
        if len(past) < self._window // 2:
            if 0 < value < math.inf:
                self._values.append(min(max(value, _LEAST), _LARGEST))
            return 1.0, value == math.inf
        average = statistics.fmean(past) * _growth(past)
        threshold = max(self._trigger, math.exp(min(self._noise_factor * _log_noise(past), 700.0)))
        ratio = value / average
        self._values.append(min(max(value, _LEAST), self._trigger * average, _LARGEST))
        return ratio, ratio > threshold


def _growth(values: Sequence[float]) -> float:
    """Return the next value of a rising trend over the average of ``values``; 1 if they do not rise.

    Values are assumed to grow by a steady factor: the newer half over the older one is that factor over half a window,
    and the next value is half a window and half a reading away from the middle.
    """
    half = len(values) // 2
    older, newer = statistics.median(values[:half]), statistics.median(values[-half:])
    growth: float = max(1.0, newer / older) ** ((len(values) + 1) / (2 * (len(values) - half)))
    return growth


def _log_noise(values: Sequence[float]) -> float:
    """Return the standard deviation of log values about their trend, from the median size of their changes.

    A change is the difference of two: its median size is 0.6745 * sqrt(2) standard deviations (normal noise).
    """
    changes = [math.log(after) - math.log(before) for before, after in itertools.pairwise(values)]
    drift = statistics.median(changes)
    return statistics.median(abs(change - drift) for change in changes) / (0.6745 * math.sqrt(2))
