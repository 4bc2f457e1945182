"""Gradient statistics, and a monitor that asks for tight consistency while they are out of the ordinary.

Theory. Worker i's gradient in one step is g_i, of a batch of b_i samples drawn alike by all N workers:

    E g_i = G,        tr Var(g_i) = tr Σ / b_i        (Σ: covariance of one sample's gradient)

No worker sees another's gradient. Each sends ‖g_i‖² and a *count sketch* s_i = S g_i of m numbers (Charikar, Chen,
Farach-Colton 2002; Weinberger et al. 2009): every coordinate is added to one of m sums with a random sign. S is the
same on all workers and E S'S = 1, so that E <s_i, s_j> = <g_i, g_j>, with a variance of at most 2 ‖g_i‖² ‖g_j‖² / m.
What is linear in the inner products can therefore be put together from sketches without bias:

    between      = sum over pairs i < j of ‖s_i - s_j‖² / (N (N - 1))     E = mean of tr Var(g_i)
    mean_norm_sq = mean over pairs i < j of <s_i, s_j>                    E = ‖G‖²
    within       = mean over i of ‖s_i(k) - s_i(k+1)‖² / 2                E = mean of tr Var(g_i) + ‖G(k) - G(k+1)‖² / 2

Each is chosen so that the sketch's error is a share of the figure itself: differences for variances, inner products of
different workers for the mean. (‖g_i‖² - mean_norm_sq is unbiased for the variance too, but where gradients hardly
differ it drowns in the sketch's error of a large inner product.) The figures are means over the two sampled steps.

With equal batches, mean_norm_sq is exactly the estimate of ‖G‖² from a small and a big batch of McCandlish et al.
(2018, appendix A.1, with B_small = b and B_big = N b), and b between is theirs of tr Σ. With unequal batches the pairs
give E between = tr Σ mean(1 / b_i), so tr Σ is estimated by between times the *harmonic mean* of the batches, and ‖G‖²
as before. noise_scale is their "simple" one (equation 2.9), a ratio of two unbiased figures and so not unbiased itself.

Where workers draw from different data, or their replicas have drifted apart, ``between`` holds that spread as well: it
is what an average over the workers hides. ``within`` does not, but holds how far the mean gradient moves in one step.

The monitor. A figure is *out of the ordinary* when it exceeds ``trigger`` times its moving average (of the last
``window`` readings) carried on by its trend, and its own noise as well. So a figure that grows or decays by a steady
share does not trip it, nor one that is always erratic. The advice is then ``tight_slack`` for ``hold_reviews`` reviews;
after that, and once the figure is back below ``release`` times its average, the next of 1, 3, 7 ... every
``regrow_reviews``, and no objection beyond ``largest_slack``. An extraordinary figure enters the average cut to the
trigger's value: one outlier moves it little, a new level becomes the ordinary one within a window.
"""

import itertools
import math
import operator
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plesio.core.errors import PolicySpecError
from plesio.policies.adaptive.numbers import require_number
from plesio.policies.adaptive.reading import NO_OBJECTION, Advice, GradientFigures, Reading
from plesio.policies.fields import require_whole

__all__ = ["GradientMonitor", "GradientMonitorConfig", "GradientSample", "gradient_figures"]

_LEAST, _LARGEST = 1e-100, 1e100
"""A figure beyond these is taken for them, so that nothing overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSample:
    """What a worker tells of the gradient of one step.

    Attributes:
        norm_sq: ‖g‖², exact.
        sketch: S g; the same S on all workers and in both steps of a pair.
    """

    norm_sq: float
    sketch: tuple[float, ...]

    @property
    def is_finite(self) -> bool:
        """Whether it is of use: a gradient with NaN or infinity is refused and tells nothing of the others."""
        return math.isfinite(sum(self.sketch, self.norm_sq))  # a sum is finite only if every term is


def gradient_figures(
    samples: Mapping[int, tuple[GradientSample, GradientSample]], *, batch_samples: Sequence[float]
) -> GradientFigures | None:
    """The figures of a review, put together from what the workers sent; None if no worker's are finite.

    With one worker (or one whose gradients are finite) nothing can be said between workers: ``between`` is NaN, and
    ``mean_norm_sq`` and ``noise_scale`` follow from the two steps instead.

    >>> steps = {
    ...     0: (GradientSample(norm_sq=5.0, sketch=(2.0, 1.0)), GradientSample(norm_sq=5.0, sketch=(2.0, -1.0))),
    ...     1: (GradientSample(norm_sq=5.0, sketch=(2.0, -1.0)), GradientSample(norm_sq=5.0, sketch=(2.0, 1.0))),
    ... }
    >>> figures = gradient_figures(steps, batch_samples=[32, 32])
    >>> figures.mean_norm_sq, figures.between, figures.within
    (3.0, 2.0, 2.0)

    Args:
        samples: Of each worker, its gradients in two consecutive steps.
        batch_samples: Samples in a batch of each worker, in ascending order of the workers.
    """
    assert len(batch_samples) == len(samples), f"{len(batch_samples)} batches of {len(samples)} workers"
    assert all(size > 0 for size in batch_samples), f"batches of {batch_samples}"
    batch_of = dict(zip(sorted(samples), batch_samples, strict=True))
    pairs = {worker: pair for worker, pair in samples.items() if pair[0].is_finite and pair[1].is_finite}
    if not pairs:
        return None
    norm_sq = statistics.fmean([sample.norm_sq for pair in pairs.values() for sample in pair])
    within = statistics.fmean([_distance_sq(first.sketch, second.sketch) / 2 for first, second in pairs.values()])
    if len(pairs) > 1:
        between, mean_norm_sq = _over_workers([[pair[step].sketch for pair in pairs.values()] for step in range(2)])
        variance = between
    else:
        [(first, second)] = pairs.values()
        between, mean_norm_sq = math.nan, _inner(first.sketch, second.sketch)
        variance = within
    harmonic_batch = statistics.harmonic_mean([batch_of[worker] for worker in pairs])
    return GradientFigures(
        norm_sq=norm_sq,
        mean_norm_sq=mean_norm_sq,
        within=within,
        between=between,
        noise_scale=variance * harmonic_batch / mean_norm_sq if mean_norm_sq > 0 else math.inf,
    )


def _over_workers(steps: Sequence[Sequence[tuple[float, ...]]]) -> tuple[float, float]:
    """``between`` and ``mean_norm_sq``, from the sketches of each step."""
    variances, products = [], []
    for sketches in steps:
        count = len(sketches)
        mean = [total / count for total in map(math.fsum, zip(*sketches, strict=True))]
        # the sums over pairs, without going through them: of ‖s_i - s_j‖² it is N sum ‖s_i - mean‖²
        variance = math.fsum(_distance_sq(sketch, mean) for sketch in sketches) / (count - 1)
        variances.append(variance)
        products.append(_inner(mean, mean) - variance / count)
    return statistics.fmean(variances), statistics.fmean(products)


def _inner(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))


def _distance_sq(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum([difference * difference for difference in map(operator.sub, first, second)])


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMonitorConfig:
    """When the gradient is out of the ordinary, and for how long consistency is kept tight then.

    Attributes:
        trigger: Times its moving average that a variance must reach.
        norm_trigger: The same for the norm (not squared).
        release: Times its moving average below which a figure is ordinary again: the hysteresis.
        window: Readings with figures in the moving average; nothing is said before half of them are there.
        noise_factor: Standard deviations of its own noise (of its logarithm) that a figure must exceed as well.
        hold_reviews: Reviews for which the slack is 0, at least.
        regrow_reviews: Reviews for which each larger slack is kept after that.
        tight_slack: What is allowed when something is out of the ordinary. Not 0: bursts of variance are common once
            the loss is small, and where the network is slow every strict step costs several.
        largest_slack: The last one before there is no objection.

    Raises:
        PolicySpecError: A value out of its range.
    """

    trigger: float = 2.5
    norm_trigger: float = 2.0
    release: float = 1.5
    window: int = 8
    noise_factor: float = 3.0
    hold_reviews: int = 4
    regrow_reviews: int = 2
    tight_slack: int = 3
    largest_slack: int = 15

    def __post_init__(self) -> None:
        owner = "gradient monitor"
        require_number(owner, "release", self.release, above=0.0)
        require_number(owner, "trigger", self.trigger, above=1.0)
        require_number(owner, "norm_trigger", self.norm_trigger, above=1.0)
        require_number(owner, "noise_factor", self.noise_factor, above=0.0)
        require_whole(owner, "window", self.window, minimum=4)
        require_whole(owner, "hold_reviews", self.hold_reviews, minimum=1)
        require_whole(owner, "regrow_reviews", self.regrow_reviews, minimum=1)
        require_whole(owner, "tight_slack", self.tight_slack, minimum=0)
        require_whole(owner, "largest_slack", self.largest_slack, minimum=max(1, self.tight_slack))
        if self.release > min(self.trigger, self.norm_trigger**2):
            raise PolicySpecError(
                f"{owner}: release is {self.release:g}, above what triggers "
                f"({min(self.trigger, self.norm_trigger**2):g}); write less"
            )


class GradientMonitor:
    """Objects to slack while gradient variance or norm is out of the ordinary; the module's head has the rule.

    >>> monitor = GradientMonitor(GradientMonitorConfig())
    >>> def reading(variance: float) -> Reading:
    ...     figures = GradientFigures(norm_sq=2.0, mean_norm_sq=1.0, within=1.0, between=variance, noise_scale=9.0)
    ...     return Reading(clock=16, num_steps=16, learning_rate=0.1, gradient=figures)
    >>> [monitor.observe(reading(variance)).slack for variance in (1.0, 1.1, 0.9, 1.0, 1.0, 3.1)]
    [inf, inf, inf, inf, inf, 3]
    """

    __slots__ = ("_advice", "_averages", "_config", "_since")

    def __init__(self, config: GradientMonitorConfig) -> None:
        self._config = config
        self._averages = {
            "between": _MovingAverage(config, trigger=config.trigger),
            "within": _MovingAverage(config, trigger=config.trigger),
            "norm_sq": _MovingAverage(config, trigger=config.norm_trigger**2),
        }
        self._advice = NO_OBJECTION
        self._since = 0
        """Reviews since the slack was last changed."""

    def observe(self, reading: Reading) -> Advice:
        """Take the figures of a review, if it has any; say what the gradient allows from now on."""
        self._since += 1
        ratios: dict[str, float] = {}
        tripped: dict[str, float] = {}
        if reading.gradient is not None:
            for name, average in self._averages.items():
                value = getattr(reading.gradient, name)
                if not math.isnan(value):
                    ratios[name], trips = average.take(value)
                    if trips:
                        tripped[name] = ratios[name]
        if tripped:
            self._trip(tripped)
        elif self._advice.slack < math.inf and all(ratio <= self._config.release for ratio in ratios.values()):
            self._relax()
        return self._advice

    def _trip(self, tripped: Mapping[str, float]) -> None:
        name = max(tripped, key=lambda key: tripped[key])
        figure = {"between": "variance between workers", "within": "variance within workers", "norm_sq": "squared norm"}
        reason = f"gradient {figure[name]} is {tripped[name]:.3g} times its average"
        self._advice = Advice(
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
            self._advice = Advice(slack=grown, reason="gradient is ordinary again", inputs={"slack": grown})


class _MovingAverage:
    """Of one figure, with its trend and noise: says by how much a value is above what was to be expected."""

    __slots__ = ("_noise_factor", "_trigger", "_values", "_window")

    def __init__(self, config: GradientMonitorConfig, *, trigger: float) -> None:
        self._trigger = trigger
        self._noise_factor = config.noise_factor
        self._window = config.window
        self._values: deque[float] = deque(maxlen=config.window)

    def take(self, value: float) -> tuple[float, bool]:
        """Value over the moving average (carried on by a rising trend), and whether that is out of the ordinary."""
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
    """By how much the next value of a rising trend is above the average of ``values``; 1 when they do not rise.

    For values that grow by a steady factor: the newer half over the older one is that factor over half a window, and
    the next value is half a window and half a reading away from the middle.
    """
    half = len(values) // 2
    older, newer = statistics.median(values[:half]), statistics.median(values[-half:])
    growth: float = max(1.0, newer / older) ** ((len(values) + 1) / (2 * (len(values) - half)))
    return growth


def _log_noise(values: Sequence[float]) -> float:
    """Standard deviation of log values about their trend, from the median size of their changes.

    A change is the difference of two: its median size is 0.6745 * sqrt(2) standard deviations (normal noise).
    """
    changes = [math.log(after) - math.log(before) for before, after in itertools.pairwise(values)]
    drift = statistics.median(changes)
    return statistics.median(abs(change - drift) for change in changes) / (0.6745 * math.sqrt(2))
