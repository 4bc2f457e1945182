"""Adaptive bound: slack grows while training is stable, is cut when it is not, and avoids slack that failed before.

States. The slack is a rung of the ladder 0, 1, 3, 7, ... 2^k - 1, at most ``largest_slack`` (D rungs above 0). A second
rung, the *ceiling*, is the highest one that may be tried now.

    grow    one rung, up to the ceiling, after ``patience`` stable reviews on this rung
    probe   the ceiling rises by one rung when ``b 2^(c-1)`` reviews have passed since the last cut or probe
    cut     at a sign of instability, at the earliest ``patience`` reviews after the last cut: the rung that failed is
            barred (the ceiling is one below it) and the slack drops by two rungs; c counts the cuts, b is ``back_off``

Changes are thus additive in rungs and multiplicative in steps, with a search for the largest rung that holds, as in
congestion control (Jacobson 1988; exponential back-off as in Ethernet, Metcalfe & Boggs 1976). The doubling per cut
ends the oscillation that additive increase with multiplicative decrease alone would keep up forever.

Number of changes, whatever the signals are: a cut lowers the ceiling by at least one rung, so among any D + 1 cuts in
succession there is a probe, which waited at least b 2^(c - D - 1) reviews after the first of them. Hence in n reviews

    cuts     c <= D + 1 + log2(max(1, n / b))
    changes    <= D + 3 c          (a cut drops two rungs at most, and a rung must be lost before it is gained again)

which is O(log n). In between, a rung lasts at least ``patience`` reviews.

Signs of instability (any one):

- the loss is above its recent level by more than ``noise_factor`` times its own noise and by ``loss_rise``;
- the median of its last three values is as much above the lowest level in ``window`` reviews (a creeping rise, which
  the level follows);
- the validation metric is below its recent level likewise;
- the gradient's norm has jumped by ``norm_jump``;
- a gradient was not finite.

A review without any of these figures counts for nothing: the slack does not change.

The slack begins at ``first_slack``. From 0 it would take ``patience`` reviews a rung to reach the slack that slow
networks need, and every step until then would wait for them; if ``first_slack`` is too much, the first cut corrects it.
"""

import math
from dataclasses import dataclass

from plesio.policies.adaptive.config.bound import BoundTunerConfig
from plesio.policies.adaptive.config.numbers import RECENT
from plesio.policies.adaptive.readings.reading import ComponentAdvice, Reading
from plesio.policies.adaptive.training.level import Excess, RecentLevel

__all__ = ["BoundTuner", "most_changes", "num_rungs"]

_RUNGS_CUT = 2


def num_rungs(config: BoundTunerConfig) -> int:
    """Return D, the rungs of the ladder above 0."""
    return _rung(config.largest_slack)


def most_changes(config: BoundTunerConfig, *, num_reviews: int) -> int:
    """Return the most changes of the slack in so many reviews; the module's head has the formula."""
    cuts = num_rungs(config) + 1 + math.log2(max(1.0, num_reviews / config.back_off))
    return num_rungs(config) + (1 + _RUNGS_CUT) * math.floor(cuts)


def _rung(slack: int) -> int:
    return (slack + 1).bit_length() - 1


class BoundTuner:
    """Finds the slack that training bears by trying; the module's head has the rule.

    >>> tuner = BoundTuner(BoundTunerConfig(first_slack=0, largest_slack=15, patience=2))
    >>> def slack(loss: float) -> float:
    ...     return tuner.observe(Reading(clock=16, num_steps=16, learning_rate=0.1, loss=loss)).slack
    >>> [slack(1.0 + 0.01 * (review % 2)) for review in range(10)]
    [0, 1, 1, 3, 3, 7, 7, 15, 15, 15]
    >>> slack(2.0)
    3
    """

    def __init__(self, config: BoundTunerConfig) -> None:
        self._config = config
        self._signs = _Signs(config)
        self._rung = min(_rung(config.first_slack), num_rungs(config))
        self._ceiling = num_rungs(config)
        self._num_cuts = 0
        self._stable = 0
        """Stable reviews on this rung."""
        self._since_cut = config.patience
        self._since_ceiling = 0
        """Reviews since the ceiling was last moved."""
        slack = 2**self._rung - 1
        self._advice = ComponentAdvice(slack=slack, reason=f"the slack starts at {slack}")

    def observe(self, reading: Reading) -> ComponentAdvice:
        self._since_cut += 1
        self._since_ceiling += 1
        sign = self._signs.look(reading)
        if self._num_cuts and self._ceiling < num_rungs(self._config) and self._since_ceiling >= self._wait:
            self._ceiling += 1
            self._since_ceiling = 0
        if sign is not None and sign.unstable:
            self._stable = 0
            if self._rung and self._since_cut >= self._config.patience:
                self._cut(sign)
        elif sign is not None:
            self._stable += 1
            if self._rung < self._ceiling and self._stable >= self._config.patience:
                self._move(self._rung + 1, reason=f"{self._stable} stable reviews", inputs=sign.inputs)
        return self._advice

    @property
    def _wait(self) -> int:
        return self._config.back_off << (self._num_cuts - 1)

    def _cut(self, sign: "_Sign") -> None:
        self._num_cuts += 1
        self._ceiling = self._rung - 1
        self._since_cut = self._since_ceiling = 0
        self._move(max(0, self._rung - _RUNGS_CUT), reason=sign.reason, inputs=sign.inputs)

    def _move(self, rung: int, *, reason: str, inputs: dict[str, float]) -> None:
        self._rung = rung
        self._stable = 0
        inputs = {**inputs, "ceiling": 2**self._ceiling - 1, "cuts": self._num_cuts}
        self._advice = ComponentAdvice(slack=2**rung - 1, reason=reason, inputs=inputs)


@dataclass(frozen=True, slots=True)
class _Sign:
    unstable: bool
    reason: str
    inputs: dict[str, float]


class _Signs:
    """Judges a review: unstable (with the reason), stable, or without figures."""

    def __init__(self, config: BoundTunerConfig) -> None:
        self._config = config
        self._loss = RecentLevel(window=config.window, recent=RECENT, known_after=RECENT + 2)
        self._metric = RecentLevel(window=config.window, recent=RECENT, known_after=RECENT + 2)
        self._norm_sq = RecentLevel(window=config.window, recent=RECENT, known_after=RECENT + 2)

    def look(self, reading: Reading) -> _Sign | None:
        """Return the first sign of instability, else of stability; None if the review has no figures."""
        found = [self._refused(reading), self._of_loss(reading), self._of_metric(reading), self._of_norm(reading)]
        told = [sign for sign in found if sign is not None]
        return next((sign for sign in told if sign.unstable), told[0] if told else None)

    def _refused(self, reading: Reading) -> _Sign | None:
        if not reading.num_refused:
            return None
        inputs = {"num_refused": float(reading.num_refused)}
        return _Sign(True, f"{reading.num_refused} gradients were not finite", inputs)

    def _of_loss(self, reading: Reading) -> _Sign | None:
        loss = reading.loss
        if math.isnan(loss):
            return None
        if math.isinf(loss):
            return _Sign(True, "the loss is infinite", {"loss": loss})
        sign = self._above(self._loss, loss, share=self._config.loss_rise, what="the loss")
        if not sign.unstable and self._loss.is_known:
            sign = self._judge(self._loss.creep(loss), share=self._config.loss_rise, what="the loss has crept up: it")
        self._loss.add(loss)
        return sign

    def _of_metric(self, reading: Reading) -> _Sign | None:
        if reading.metric is None or math.isnan(reading.metric):
            return None
        if math.isinf(reading.metric):
            return _Sign(True, "the validation metric is infinite", {"metric": reading.metric})
        sign = self._above(self._metric, -reading.metric, share=self._config.metric_fall, what="validation error")
        self._metric.add(-reading.metric)
        return sign

    def _of_norm(self, reading: Reading) -> _Sign | None:
        if reading.gradient is None or math.isnan(reading.gradient.norm_sq):
            return None
        norm_sq = reading.gradient.norm_sq
        if math.isinf(norm_sq):
            return _Sign(True, "the gradient's norm is infinite", {"norm_sq": norm_sq})
        sign = self._above(self._norm_sq, norm_sq, share=self._config.norm_jump**2 - 1.0, what="the squared norm")
        self._norm_sq.add(norm_sq)
        return sign

    def _above(self, level: RecentLevel, value: float, *, share: float, what: str) -> _Sign:
        if not level.is_known:
            return _Sign(False, "", {})
        return self._judge(level.excess(value), share=share, what=what)

    def _judge(self, excess: Excess, *, share: float, what: str) -> _Sign:
        return _Sign(
            excess.noises > self._config.noise_factor and excess.share > share,
            f"{what} is {excess.value:.4g}, {excess.noises:.3g} times its noise above {excess.level:.4g}",
            {"value": excess.value, "level": excess.level, "noises": excess.noises},
        )
