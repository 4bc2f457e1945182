"""Phases of training, found while it goes on: critical, stable, final; and less slack in those that are sensitive.

What the phases mean. A *cycle* is a stretch of training in which the learning rate rises at most at the beginning: it
begins with the run and whenever the rate rises by a tenth over its lowest value (a warm-up, a warm restart). A cycle's
*budget* is the sum of its learning rates, a bound on how far it can move the parameters when gradients are bounded.

    critical   the rate rises (warm-up); or has jumped up, and a twentieth of a cycle's budget is not yet spent since;
               or training starts (or is set back, as by other data), and the loss has most of its fall before it
    final      less than a twentieth of the cycle's budget is left to spend: the rate is annealed, or few steps are left
    stable     all else

The learning rate speaks first: who writes a warm-up has marked the first phase, and its end ends it, whatever the loss
does. The loss decides only where the schedule is silent. ``final`` stands above a loss that falls, below a rate that
rises. The step of a step decay is no phase of its own: a smaller rate makes workers' replicas differ less, not more, so
nothing asks for strictness that was not needed before; it leads to ``final`` if it is deep enough, else nowhere.

Where to be strict. Early: warm-up exists since large steps from an untrained model do lasting harm (Goyal et al. 2017),
deficits of the first epochs cannot be made good (Achille et al. 2019; Golatkar et al. 2019), and communicating exactly first
and rarely later keeps accuracy (post-local SGD, Lin et al. 2020; Sync-Switch, Li et al. 2021; Accordion, Agarwal et al.
2021, which takes the step of a step decay for critical too). Late: local steps raise the noise floor in which SGD ends,
so the period should shrink with the loss (AdaComm, Wang & Joshi 2019). So ``direction`` is a parameter.

How they are found, from one `Reading` at a time:

- *Rate*. A cycle begins when the rate exceeds ``rise`` times its lowest since the last peak. It rises for as long as it
  grows by at least half of what it grew before, in steps (one a review or, where a schedule moves once an epoch, one in
  several). If it had only one review to rise in, it has jumped.
- *Budget*. What is left is not known, and is estimated by the smaller of: a straight line down to zero, continued from
  the last three reviews if the rate fell in each; and the present rate for the steps that progress says are left. A
  rate below ``final_share`` of its peak is final in any case. Only a new cycle ends ``final``.
- *Start*. The figure is the loss, else the squared norm of the mean gradient, else the metric. Half of the steps since
  the start ago it stood at m, now (mean of the last quarter) at r, at its highest at h. The fall is over when
  m - r < ``settled`` (h - r). In steps that is free of scale: an exponential fall is caught at the same point whatever its
  time constant. A fall of less than ``least_fall`` of h, or of less than ``straightness`` of the way that the figure went up
  and down, is none: the model was trained already. A gradient that is mostly noise says so at the first reading.
- *Setback*. Two losses in a row, or one that is twice as far off, exceed their level by ``setback`` of it and by
  ``setback_noise`` times their usual deviation: a start.

A change needs evidence that grows with the noise, a start returns to ``critical`` once at most, and a setback can follow only
on four ordinary readings: so noise does not make the phase flap.
"""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from plesio.policies.adaptive.numbers import require_number
from plesio.policies.adaptive.reading import Advice, Reading
from plesio.policies.fields import require_one_of, require_whole

__all__ = ["Direction", "Phase", "PhaseConfig", "PhaseDetector"]

Phase = Literal["critical", "stable", "final"]
Direction = Literal["first", "last", "both"]

_STRICT: Mapping[Direction, frozenset[Phase]] = {
    "first": frozenset({"critical"}),
    "last": frozenset({"final"}),
    "both": frozenset({"critical", "final"}),
}
_KEEPS_RISING = 0.5
"""Share of its growth before that a rate must grow by to be rising still."""
_USUAL_READINGS = 4
"""Ordinary readings before one can be a setback."""
RECENT, WIDTH = 0.35, 0.2
SLOW, AHEAD = 0.99, 0.5
_MOST_VALUES = 128
"""Kept of a start: beyond, each two become their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseConfig:
    """Which phases are strict, and where they begin and end; the module's head has the rules.

    Attributes:
        direction: Strict phases: ``first`` the critical one, ``last`` the final one, or ``both``.
        slack: What strict phases allow; the others allow anything.
        rise: Times its lowest value that the learning rate must reach for a new cycle.
        jump_budget: Share of the last cycle's budget after whose spending a jump is over.
        final_share: Share of its peak at which the learning rate is final.
        final_budget: Share of the cycle's budget that is left when the final phase begins.
        settled: Share of its whole fall that the loss makes in the later half of a start when the start is over.
        least_fall: Share of its highest value that is a fall.
        straightness: A fall over the way up and down, below which it is noise.
        signal_share: ‖E g‖² / ‖g‖² in the first reading, below which the model was trained already.
        start_steps: A start that has shown nothing by then is over.
        setback: Share of its level that the loss must rise by.
        setback_noise: Times its usual deviation that the loss must rise by as well.

    Raises:
        PolicySpecError: A value out of its range.
    """

    direction: Direction = "first"
    slack: int = 0
    rise: float = 1.1
    jump_budget: float = 0.05
    final_share: float = 0.12
    final_budget: float = 0.05
    settled_loss: float = 0.35
    settled_gradient: float = 0.5
    noise_share: float = 0.1
    least_fall: float = 0.15
    straightness: float = 0.5
    start_steps: int = 128
    setback: float = 0.3
    setback_noise: float = 6.0

    def __post_init__(self) -> None:
        owner = "phase"
        require_one_of(owner, "direction", self.direction, known=get_args(Direction))
        require_whole(owner, "slack", self.slack, minimum=0)
        require_number(owner, "rise", self.rise, above=1.0)
        for share in ("jump_budget", "final_share", "final_budget", "settled_loss", "settled_gradient", "least_fall", "straightness"):
            require_number(owner, share, getattr(self, share), above=0.0, below=1.0)
        require_whole(owner, "start_steps", self.start_steps, minimum=1)
        require_number(owner, "setback", self.setback, above=0.0)
        require_number(owner, "setback_noise", self.setback_noise, above=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    phase: Phase
    reason: str
    inputs: Mapping[str, float]


class PhaseDetector:
    """Follows the phase of one run, from its readings alone.

    >>> detector = PhaseDetector(PhaseConfig())
    >>> for review, rate in enumerate([0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.02], start=1):
    ...     advice = detector.observe(Reading(clock=16 * review, num_steps=16, learning_rate=rate))
    ...     print(detector.phase, advice.slack, advice.reason)
    critical 0 training has just begun
    critical 0 training has just begun
    critical 0 training has just begun
    critical 0 training has just begun
    stable inf the learning rate has stopped rising
    stable inf the learning rate has stopped rising
    final inf the learning rate is down to 5 % of its peak
    """

    __slots__ = ("_config", "_level", "_rate", "_start", "_verdict")

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._rate = _Rate(config)
        self._level = _Level(config)
        self._start: _Start | None = _Start(config)
        """The one that is not over."""
        self._verdict = _Verdict(phase="critical", reason="training has just begun", inputs={})
        """The one that changed the phase last."""

    @property
    def phase(self) -> Phase:
        """That of the steps to come."""
        return self._verdict.phase

    def observe(self, reading: Reading) -> Advice:
        """Take a review's reading; say what the phase allows from now on, and what made it this phase."""
        config = self._config
        self._rate.observe(reading, is_critical=self.phase == "critical")
        verdict = self._by_rate() or self._by_figures(reading)
        if verdict is not None and verdict.phase != self.phase:
            self._verdict = verdict
        slack = config.slack if self.phase in _STRICT[config.direction] else math.inf
        return Advice(slack=slack, reason=self._verdict.reason, inputs=self._verdict.inputs)

    def _by_rate(self) -> _Verdict | None:
        """What the learning rate says; None if nothing."""
        verdict = self._rate.verdict()
        if verdict is not None:
            self._start = None
            self._level.forget()
        elif self.phase == "final":
            return self._verdict
        return verdict

    def _by_figures(self, reading: Reading) -> _Verdict | None:
        """What loss, gradient and metric say where the learning rate is silent; None if nothing new."""
        if self._start is None:
            setback = self._level.observe(reading)
            if setback is None:
                return _Verdict(phase="stable", reason="the learning rate has stopped rising", inputs={})
            self._start = _Start(self._config)
            for outlier in self._level.outliers:
                self._start.observe(outlier)
            self._level.forget()
            return setback
        verdict = self._start.observe(reading)
        if self._start.is_over:
            self._start = None
        return verdict


class _Rate:
    """The learning rate's cycles: whether it rises, has just jumped, or is nearly spent."""

    __slots__ = (
        "_budget", "_config", "_falls", "_first_progress", "_gap", "_jump_budget", "_last", "_left", "_lowest", "_num_flat",
        "_num_rises", "_num_steps", "_peak", "_rise", "_rising", "_since_rise",
    )  # fmt: skip

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._last = self._lowest = math.nan
        self._peak = 0.0
        self._budget = 0.0
        """Sum of the learning rates of the cycle so far."""
        self._jump_budget = 0.0
        """What of it belongs to a jump."""
        self._rising = False
        self._rise = 0.0
        """By how much it grew when it did so last, a step."""
        self._num_rises = self._num_flat = self._since_rise = 0
        """Reviews: in which it rose, since it did so last, and before that."""
        self._gap = 1
        self._falls: list[float] = []
        """Of the last three reviews, a step."""
        self._num_steps = 0
        self._first_progress: tuple[int, float] | None = None
        self._left = 1.0

    def observe(self, reading: Reading, *, is_critical: bool) -> None:
        """Take the next rate; one that is no number is as if there had been no reading."""
        rate, num_steps = reading.learning_rate, max(1, reading.num_steps)
        self._num_steps += num_steps
        if not math.isfinite(rate) or rate < 0:
            return
        if math.isnan(self._last):
            self._last = self._lowest = rate
        else:
            self._since_rise += 1
        growth = (rate - self._last) / num_steps
        if self._rising:
            self._follow(growth)
        elif rate > self._config.rise * self._lowest:
            self._begin_cycle(growth, gap=self._since_rise if is_critical else 1)
        self._lowest = rate if self._rising else min(self._lowest, rate)
        self._peak = max(self._peak, rate)
        self._budget += rate * num_steps
        self._falls = [] if self._rising else [*self._falls[-2:], -growth]
        self._last = rate
        self._left = self._budget_left(reading)

    def _begin_cycle(self, growth: float, *, gap: int) -> None:
        self._jump_budget = self._config.jump_budget * self._budget
        self._budget = self._peak = 0.0
        self._rising, self._rise, self._gap = True, growth, gap
        self._num_rises, self._num_flat, self._since_rise = 1, 0, 0

    def _follow(self, growth: float) -> None:
        if growth > _KEEPS_RISING * self._rise:
            self._gap = max(self._gap, self._since_rise)
            self._num_rises += 1
            self._rise, self._num_flat, self._since_rise = growth, 0, 0
            return
        self._num_flat += 1
        is_steady = self._gap == 1 and self._num_rises > 1
        if growth < 0 or is_steady or self._num_flat > self._gap:
            self._rising = False
            if self._num_rises > 1:
                self._jump_budget = 0.0

    def _budget_left(self, reading: Reading) -> float:
        """The share that is left of the cycle's budget, as far as can be told; 1 if nothing can.

        Taken in the middle of the review to come, since that is what the phase is for.
        """
        left = math.inf
        if len(self._falls) == 3 and min(self._falls) > 0:
            slows_down = self._falls[-1] < SLOW * self._falls[0]
            left = self._last**2 / self._falls[-1] * (2 / 3 if slows_down else 1 / 2)
        if reading.progress is not None and math.isfinite(reading.progress):
            if self._first_progress is None:
                self._first_progress = (self._num_steps, reading.progress)
            steps, progress = self._num_steps - self._first_progress[0], reading.progress - self._first_progress[1]
            if progress > 0:
                left = min(left, self._last * steps * max(0.0, 1 - reading.progress) / progress)
        if left == math.inf or self._budget == 0:
            return 1.0
        coming = AHEAD * self._last * reading.num_steps
        return max(0.0, left - coming) / (left + self._budget)

    def verdict(self) -> _Verdict | None:
        """What the rate says about the phase; None if nothing."""
        config = self._config
        if self._rising:
            return _Verdict(phase="critical", reason="the learning rate rises", inputs={"learning_rate": self._last})
        if self._budget < self._jump_budget:
            return _Verdict(phase="critical", reason="the learning rate has jumped", inputs={"learning_rate": self._last})
        share = self._last / self._peak if self._peak > 0 else 1.0
        if share <= config.final_share:
            reason = f"the learning rate is down to {100 * share:.2g} % of its peak"
            return _Verdict(phase="final", reason=reason, inputs={"rate_share": share})
        if self._left <= config.final_budget:
            reason = f"{100 * self._left:.2g} % of the learning rate's sum is left to come"
            return _Verdict(phase="final", reason=reason, inputs={"budget_left": self._left})
        return None


class _Start:
    """From random parameters, or after a setback: says when the fall that follows is over, or that there is none."""

    __slots__ = ("_config", "_figures", "_has_paused", "_num_steps", "_signals", "is_over")

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._num_steps = 0
        self._figures = {name: _Fall() for name in ("loss", "gradient", "metric")}
        """In order of preference."""
        self._signals: list[float] = []
        self._has_paused = False
        self.is_over = False

    def observe(self, reading: Reading) -> _Verdict | None:
        """Take a reading; None says that it makes no difference."""
        self._num_steps += reading.num_steps
        if math.isfinite(reading.loss):
            self._figures["loss"].add(reading.loss, at=self._num_steps)
        if reading.gradient is not None and reading.gradient.norm_sq > 0:
            self._figures["gradient"].add(math.sqrt(max(0.0, reading.gradient.mean_norm_sq)), at=self._num_steps)
            self._signals.append(reading.gradient.mean_norm_sq / reading.gradient.norm_sq)
        if reading.metric is not None and math.isfinite(reading.metric):
            self._figures["metric"].add(-reading.metric, at=self._num_steps)
        known = {name: fall for name, fall in self._figures.items() if len(fall.values) > 1}
        is_late = self._num_steps >= self._config.start_steps
        if not known:
            return self._pause("nothing tells of a fall", {}, is_over=True) if is_late else None
        return self._judge(known, is_late=is_late)

    def _judge(self, known: Mapping[str, "_Fall"], *, is_late: bool) -> _Verdict | None:
        config = self._config
        name, figure = next(iter(known.items()))
        inputs = {"highest": figure.highest, "recent": figure.recent}
        depth = figure.highest - figure.recent
        if name == "gradient":
            signal = statistics.fmean(self._signals)
            if signal < config.noise_share:
                return self._pause("the gradient is mostly noise", {"signal_share": signal}, is_over=is_late)
        if depth <= config.least_fall * abs(figure.highest) or depth < config.straightness * figure.way:
            if name == "gradient" and not is_late:
                return None
            return self._pause(f"the {name} does not fall", inputs, is_over=is_late)
        limits = {"loss": config.settled_loss, "gradient": config.settled_gradient, "metric": config.settled_loss}
        shares = {key: known[key].newer_share for key in {name, "gradient"} & known.keys()}
        inputs |= {f"{key}_newer_share": share for key, share in shares.items()}
        if all(share < limits[key] for key, share in shares.items()):
            return self._pause(f"the {name} has most of its fall behind it", inputs, is_over=True)
        if self._has_paused and len(figure.values) < _USUAL_READINGS:
            return None
        return _Verdict(phase="critical", reason=f"the {name} falls fast", inputs=inputs)

    def _pause(self, reason: str, inputs: Mapping[str, float], *, is_over: bool) -> _Verdict:
        self._has_paused = True
        self.is_over = is_over
        return _Verdict(phase="stable", reason=reason, inputs=inputs)


class _Fall:
    """What a figure has done since a start."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: list[tuple[int, float]] = []
        """Each with the steps that were done."""

    def add(self, value: float, *, at: int) -> None:
        self.values.append((at, value))

    @property
    def highest(self) -> float:
        return max(value for _, value in self.values)

    @property
    def recent(self) -> float:
        """Mean of the last quarter."""
        now = self.values[-1][0]
        return statistics.fmean(value for step, value in self.values if step > (1 - RECENT) * now)

    @property
    def way(self) -> float:
        """Up and down, all together."""
        return sum(abs(after - before) for (_, before), (_, after) in itertools.pairwise(self.values))

    @property
    def newer_share(self) -> float:
        """Share of the whole fall that was made in the later half of the steps."""
        half = self.values[-1][0] / 2
        nearest = min(abs(step - half) for step, _ in self.values)
        width = max(nearest, half * WIDTH)
        middle = statistics.fmean(value for step, value in self.values if abs(step - half) <= width)
        depth = self.highest - self.recent
        return (middle - self.recent) / depth if depth > 0 else 0.0


class _Level:
    """The loss's usual level: notices when it is left for good."""

    __slots__ = ("_config", "_highest", "_usual", "outliers")

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._usual: deque[float] = deque(maxlen=2 * _USUAL_READINGS)
        self._highest = -math.inf
        self.outliers: list[Reading] = []
        """The last readings, if their loss was out of the usual."""

    def forget(self) -> None:
        """What was usual is so no more."""
        self._usual.clear()
        self.outliers = []

    def observe(self, reading: Reading) -> _Verdict | None:
        """Take a reading; a verdict if it is a setback."""
        loss = reading.loss
        if not math.isfinite(loss):
            return None
        level, limit = self._limit()
        excess = loss - level
        if not excess > limit:
            self._usual.append(loss)
            self._highest = max(self._highest, loss)
            self.outliers = []
            return None
        self.outliers.append(reading)
        if len(self.outliers) < 2 and excess < 2 * limit:
            return None
        reason = f"the loss has risen from {level:.3g} to {loss:.3g}"
        return _Verdict(phase="critical", reason=reason, inputs={"loss": loss, "level": level})

    def _limit(self) -> tuple[float, float]:
        """Level, and by how much a loss may exceed it."""
        config = self._config
        if len(self._usual) < _USUAL_READINGS:
            return math.nan, math.inf
        level = statistics.fmean(self._usual)
        usual = config.setback_noise * statistics.pstdev(self._usual)
        return level, max(usual, config.setback * abs(level), config.least_fall * (self._highest - level))
