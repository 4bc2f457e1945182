"""Phases of training, found while it goes on: critical, stable, final; and less slack in those that are sensitive.

What the phases mean. A *cycle* begins with the run and whenever the learning rate rises by a tenth over its lowest
value (a warm-up, a warm restart). Its *budget* is the sum of its learning rates: how far it can move the parameters, up
to the size of the gradients.

    critical   the rate rises; or it has jumped up, and has not yet spent a twentieth of a cycle's budget since; or
               training begins (or is set back, as by other data) and most of the loss's fall is still to come
    final      less than a twentieth of the cycle's budget is left: the rate is annealed, or few steps are to come
    stable     all else

The learning rate speaks first: who writes a warm-up marks the first phase, and its end ends it, whatever the loss does.
The loss decides only where the schedule is silent. A step decay is no phase of its own: at a smaller rate the replicas
of workers differ less, so nothing asks for strictness that was not needed before (Gu et al. 2024 lengthen the period
then). It is the beginning of ``final`` if it is deep enough, and else nothing.

Where to be strict. Early: steps that are too large for an untrained model harm for good, which is what warm-up prevents
(Goyal et al. 2017); what goes wrong in the first epochs is not made good later (Achille et al. 2019); communicating
exactly first and rarely later keeps accuracy (post-local SGD, Lin et al. 2020; Sync-Switch, Li et al. 2021; Accordion,
Agarwal et al. 2021, which takes what follows a step decay for critical as well). Late: local steps raise the noise in
which SGD ends, so the period should shrink as the loss does (AdaComm, Wang & Joshi 2019). Hence ``direction``.

How they are found:

- *Rate*. A cycle begins when the rate exceeds ``rise`` times its lowest since the last peak. It rises for as long as it
  grows by half of what it grew by before (every review; or, where a schedule moves once an epoch, every few reviews). A
  rise that is over after one review is a jump.
- *Budget*. The future being unknown, what is left is the smaller of two estimates: a straight line down to zero, or
  where the fall slows down a parabola, continued from the last three reviews if the rate fell in each; and the present
  rate for the steps that progress says are to come. ``final_share`` of its peak is final in any case (after a step
  decay nobody knows how long the new rate lasts). Only a new cycle ends ``final``.
- *Start*. Two figures fall: the loss and the norm of the mean gradient. Of each, h is the highest value, r the recent
  one (mean over the last third of the steps), m that of half the steps ago. Its fall is over when the newer half holds
  less than ``settled_loss`` (``settled_gradient``) of it: m - r < settled (h - r). Steps are counted from the start, so
  an exponential fall ends at about the same height whatever its time constant. The start is over when both falls are:
  the loss alone is early where a fast fall is followed by a long slow one, the gradient alone is noisy. A loss that
  has fallen by less than ``least_fall`` of h, or by less than ``straightness`` of its way up and down, does not fall:
  the model was trained before. If it falls after all (as long as its way is straight, and for ``start_steps`` in any
  case) the phase is critical again. Without a loss, ‖E g‖² below ``noise_share`` of ‖g‖² tells a trained model; with
  neither loss nor gradient the metric takes their place; with nothing a start lasts ``start_steps``.
- *Setback*. A loss above its usual level by ``setback`` of it, by ``setback_noise`` standard deviations, and by
  ``least_fall`` of what it once fell by: twice in a row, or once by twice as much. A start follows.

How long the end is strict. Under a cosine the last twentieth of the rates' sum takes three tenths of the steps. So
where it is known how many steps there are, the last ``final_steps`` of them are strict, whatever the rate does, and a
final phase before them allows anything.

Noise does not make the phase flap: a setback must exceed it and needs four usual readings before, and a start that was
taken for over can return to ``critical`` once.
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
"""Share of its last growth by which a rate that still rises grows."""
_SLOWS_DOWN = 0.99
"""Newest fall of the rate over the oldest of three, below which it slows down."""
_RECENT_SHARE = 1 / 3
_MIDDLE_WIDTH = 0.1
"""Shares of a start's steps: over which the recent value is taken, and on each side of half of them the middle one."""
_USUAL_READINGS = 4
_MOST_VALUES = 128
"""Of one figure; beyond, each two become one."""
_LARGEST = 1e100
"""Beyond, a figure says nothing but that training diverges, which is for the guard to see."""
_AHEAD = 1.5
"""Reviews until the end begins at which it is time to act: the next may be late by half of one, and acting takes as
long where workers on the store have to be stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseConfig:
    """Which phases are strict, and where they begin and end; the module's head has the rules.

    Attributes:
        direction: Strict phases: ``first`` the critical one, ``last`` the final one, or ``both``.
        slack: What strict phases allow; the others allow anything.
        rise: Times its lowest value at which the learning rate begins a new cycle.
        jump_budget: Share of the last cycle's budget; when a jump has spent as much it is over.
        final_share: Share of its peak at which the learning rate is final.
        final_budget: Share of the cycle's budget that is left when the final phase begins.
        final_steps: Share of all steps that is strict at the end, where it is known how many there are.
        settled_loss: Share of the loss's fall that the newer half of a start holds when it is over.
        settled_gradient: The same for the norm of the mean gradient.
        least_fall: Share of its highest value by which a figure falls, if it does.
        straightness: Share of a figure's way up and down that is its fall, if it falls.
        noise_share: ‖E g‖² / ‖g‖² of a model that was trained before.
        start_steps: After so many, a start in which nothing falls is over.
        setback: Share of its level by which the loss rises in a setback.
        setback_noise: Standard deviations by which it rises as well.

    Raises:
        PolicySpecError: A value out of its range.
    """

    direction: Direction = "last"
    slack: int = 0
    rise: float = 1.1
    jump_budget: float = 0.05
    final_share: float = 0.12
    final_budget: float = 0.05
    final_steps: float = 0.1
    settled_loss: float = 0.25
    settled_gradient: float = 0.5
    least_fall: float = 0.15
    straightness: float = 0.5
    noise_share: float = 0.1
    start_steps: int = 128
    setback: float = 0.3
    setback_noise: float = 6.0

    def __post_init__(self) -> None:
        owner = "phase"
        require_one_of(owner, "direction", self.direction, known=get_args(Direction))
        require_whole(owner, "slack", self.slack, minimum=0)
        require_whole(owner, "start_steps", self.start_steps, minimum=1)
        require_number(owner, "rise", self.rise, above=1.0)
        require_number(owner, "setback", self.setback, above=0.0)
        require_number(owner, "setback_noise", self.setback_noise, above=0.0)
        for share in (
            "jump_budget",
            "final_share",
            "final_budget",
            "final_steps",
            "settled_loss",
            "settled_gradient",
            "least_fall",
            "straightness",
            "noise_share",
        ):
            require_number(owner, share, getattr(self, share), above=0.0, below=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    phase: Phase
    reason: str
    inputs: Mapping[str, float]


class PhaseDetector:
    """Follows the phase of one run; equal readings give equal phases.

    >>> detector = PhaseDetector(PhaseConfig(direction="both"))
    >>> for review, rate in enumerate([0.2, 0.4, 0.4, 0.4, 0.02], start=1):
    ...     advice = detector.observe(Reading(clock=16 * review, num_steps=16, learning_rate=rate))
    ...     print(detector.phase, advice.slack, advice.reason)
    critical 0 training has just begun
    critical 0 the learning rate rises
    critical 0 the learning rate rises
    stable inf the learning rate rises no more
    final 0 the learning rate is down to 5 % of its peak
    """

    __slots__ = ("_config", "_ends", "_level", "_rate", "_start", "_verdict")

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._ends = False
        """The last steps have begun, as far as it is known how many there are."""
        self._rate = _Rate(config)
        self._level = _Level(config)
        self._start: _Start | None = _Start(config)
        """The one that is not over."""
        self._verdict = _Verdict(phase="critical", reason="training has just begun", inputs={})
        """What the phase follows from; renewed with every reading while the phase is critical."""

    @property
    def phase(self) -> Phase:
        """That of the steps to come."""
        return self._verdict.phase

    def observe(self, reading: Reading) -> Advice:
        """Take a review's reading; say what the phase allows from now on, and what made it this phase."""
        self._rate.observe(reading, is_critical=self.phase == "critical")
        verdict = self._by_rate() or self._by_figures(reading)
        if verdict.phase != self.phase or verdict.phase == "critical":
            self._verdict = verdict
        slack = self._config.slack if self._is_strict(reading) else math.inf
        reason = self._verdict.reason
        if slack < math.inf and self.phase not in _STRICT[self._config.direction]:
            reason = "the run is about to end"
        return Advice(slack=slack, reason=reason, inputs=self._verdict.inputs)

    def _is_strict(self, reading: Reading) -> bool:
        """Whether the steps to come are in a phase that is strict; the end is the last steps, where they are known."""
        strict = _STRICT[self._config.direction]
        if "final" not in strict or reading.progress is None or not reading.clock:
            return self.phase in strict
        to_come = _AHEAD * reading.num_steps / reading.clock
        self._ends = self._ends or reading.progress * (1 + to_come) >= 1 - self._config.final_steps
        return self._ends or (self.phase == "critical" and "critical" in strict)

    def _by_rate(self) -> _Verdict | None:
        """What the learning rate says; None where it is silent."""
        verdict = self._rate.verdict()
        if verdict is None:
            return self._verdict if self.phase == "final" else None
        self._start = None
        self._level.forget()
        return verdict

    def _by_figures(self, reading: Reading) -> _Verdict:
        """What loss, gradient and metric say."""
        if self._start is None:
            setback = self._level.observe(reading)
            if setback is None:
                return _Verdict(phase="stable", reason="the learning rate rises no more", inputs={})
            self._start = _Start(self._config)
            for outlier in self._level.outliers:
                self._start.observe(outlier)
            self._level.forget()
            return setback
        self._level.notice(reading.loss)
        verdict = self._start.observe(reading)
        if self._start.is_over:
            self._start = None
        return verdict or self._verdict


class _Rate:
    """The learning rate's cycles: whether it rises, has just jumped, or is nearly spent."""

    __slots__ = (
        "_budget",
        "_config",
        "_falls",
        "_first_progress",
        "_gap",
        "_jump_budget",
        "_last",
        "_left",
        "_lowest",
        "_num_flat",
        "_num_rises",
        "_num_steps",
        "_peak",
        "_rise",
        "_rises",
        "_since_rise",
    )

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._last = self._lowest = math.nan
        self._peak = self._budget = 0.0
        """Of this cycle: the highest rate, and the sum of the rates so far."""
        self._jump_budget = 0.0
        """What of the budget belongs to a jump."""
        self._rises = False
        self._rise = 0.0
        """By how much it grew when it did so last, a step."""
        self._num_rises = self._num_flat = self._since_rise = 0
        """Reviews: in which it rose, in which it did not since then, and since the last rise or the start."""
        self._gap = 1
        """The most reviews between two rises."""
        self._falls: deque[float] = deque(maxlen=3)
        """By how much it fell, a step."""
        self._num_steps = 0
        self._first_progress: tuple[int, float] | None = None
        self._left = 1.0

    def observe(self, reading: Reading, *, is_critical: bool) -> None:
        """Take the next rate; one that is no number counts for nothing."""
        rate, num_steps = reading.learning_rate, max(1, reading.num_steps)
        self._num_steps += num_steps
        if not 0 <= rate < _LARGEST:
            return
        if math.isnan(self._last):
            self._last = self._lowest = rate
        else:
            self._since_rise += 1
        growth = (rate - self._last) / num_steps
        if self._rises:
            self._follow(growth)
        elif rate > self._config.rise * self._lowest:
            self._begin_cycle(growth, gap=self._since_rise if is_critical else 1)
        self._falls.append(-growth)
        self._lowest = rate if self._rises else min(self._lowest, rate)
        self._peak = max(self._peak, rate)
        self._budget += rate * num_steps
        self._last = rate
        self._left = self._budget_left(reading)

    def _begin_cycle(self, growth: float, *, gap: int) -> None:
        self._jump_budget = self._config.jump_budget * self._budget
        self._budget = self._peak = 0.0
        self._rises, self._rise, self._gap = True, growth, gap
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
            self._rises = False
            self._lowest = math.inf
            if self._num_rises > 1:
                self._jump_budget = 0.0

    def _budget_left(self, reading: Reading) -> float:
        """The share that is left of the cycle's budget, as far as can be told; 1 if nothing can.

        In the middle of the review to come, since that is what the phase is for.
        """
        left = math.inf
        oldest, newest = self._falls[0], self._falls[-1]
        if len(self._falls) == self._falls.maxlen and min(self._falls) > 0:
            left = self._last * self._last / newest * (2 / 3 if newest < _SLOWS_DOWN * oldest else 1 / 2)
        progress = reading.progress
        if progress is not None and 0 <= progress <= 1:
            first_steps, first_progress = self._first_progress = self._first_progress or (self._num_steps, progress)
            if progress > first_progress:
                steps = (self._num_steps - first_steps) * (1 - progress) / (progress - first_progress)
                left = min(left, self._last * steps)
        if left == math.inf or self._budget == 0:
            return 1.0
        return max(0.0, left - self._last * reading.num_steps / 2) / (left + self._budget)

    def verdict(self) -> _Verdict | None:
        """What follows for the phase; None if nothing."""
        if self._rises:
            return _Verdict(phase="critical", reason="the learning rate rises", inputs={"learning_rate": self._last})
        if self._budget < self._jump_budget:
            inputs = {"learning_rate": self._last}
            return _Verdict(phase="critical", reason="the learning rate has jumped", inputs=inputs)
        share = self._last / self._peak if self._peak > 0 else 1.0
        if share <= self._config.final_share:
            reason = f"the learning rate is down to {100 * share:.2g} % of its peak"
            return _Verdict(phase="final", reason=reason, inputs={"rate_share": share})
        if self._left <= self._config.final_budget:
            reason = f"{100 * self._left:.2g} % of the learning rate's sum is to come"
            return _Verdict(phase="final", reason=reason, inputs={"budget_left": self._left})
        return None


class _Start:
    """Training from here on: says when the fall that follows is over, or that there is none."""

    __slots__ = ("_config", "_falls", "_has_paused", "_has_returned", "_num_steps", "_signals", "is_over")

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._num_steps = 0
        self._falls = {name: _Fall() for name in ("loss", "gradient", "metric")}
        """In order of preference."""
        self._signals: list[float] = []
        """‖E g‖² / ‖g‖² of each reading."""
        self._has_paused = self._has_returned = False
        self.is_over = False

    def observe(self, reading: Reading) -> _Verdict | None:
        """Take a reading; None says that it changes nothing."""
        self._num_steps += reading.num_steps
        gradient = reading.gradient
        if abs(reading.loss) < _LARGEST:
            self._falls["loss"].add(reading.loss, at=self._num_steps)
        if gradient is not None and 0 < gradient.norm_sq < _LARGEST and abs(gradient.mean_norm_sq) < _LARGEST:
            self._falls["gradient"].add(math.sqrt(max(0.0, gradient.mean_norm_sq)), at=self._num_steps)
            self._signals.append(gradient.mean_norm_sq / gradient.norm_sq)
        if reading.metric is not None and abs(reading.metric) < _LARGEST:
            self._falls["metric"].add(-reading.metric, at=self._num_steps)
        is_late = self._num_steps >= self._config.start_steps
        known = [name for name, fall in self._falls.items() if len(fall.values) > 1]
        if not known:
            return (
                self._pause("nothing tells of a fall", {"num_steps": self._num_steps}, for_good=True)
                if is_late
                else None
            )
        return self._judge(known, is_late=is_late)

    def _judge(self, known: list[str], *, is_late: bool) -> _Verdict | None:
        """What the figures that have more than one value say; the first of them says whether there is a fall."""
        config = self._config
        name = known[0]
        fall = self._falls[name]
        inputs = {"highest": fall.highest, "recent": fall.recent}
        if name == "gradient":
            signal_share = statistics.fmean(self._signals)
            if signal_share < config.noise_share:
                return self._pause("the gradient is mostly noise", {"signal_share": signal_share}, for_good=is_late)
        is_straight = fall.depth >= config.straightness * fall.way
        if not is_straight or fall.depth <= config.least_fall * abs(fall.highest):
            if name == "gradient" and not is_late:
                return None  # it often rises at first
            return self._pause(f"the {name} does not fall", inputs, for_good=is_late and not is_straight)
        shares = {key: self._falls[key].newer_share for key in known if key in (name, "gradient")}
        inputs |= {f"{key}_newer_share": share for key, share in shares.items()}
        limits = {"loss": config.settled_loss, "gradient": config.settled_gradient, "metric": config.settled_loss}
        if all(share < limits[key] for key, share in shares.items()):
            return self._pause(f"the {name} has most of its fall behind it", inputs, for_good=True)
        if self._has_paused:
            if len(fall.values) < _USUAL_READINGS:
                return None
            self._has_returned = True
        return _Verdict(phase="critical", reason=f"the {name} falls", inputs=inputs)

    def _pause(self, reason: str, inputs: Mapping[str, float], *, for_good: bool) -> _Verdict:
        self._has_paused = True
        self.is_over = for_good or self._has_returned
        return _Verdict(phase="stable", reason=reason, inputs=inputs)


class _Fall:
    """What a figure has done since a start."""

    __slots__ = ("highest", "recent", "values")

    def __init__(self) -> None:
        self.values: list[tuple[int, float]] = []
        """Each with the steps since the start."""
        self.highest = self.recent = math.nan
        """The highest value, and the mean over the last third of the steps."""

    def add(self, value: float, *, at: int) -> None:
        """Take the newest value."""
        self.values.append((at, value))
        if len(self.values) == _MOST_VALUES:
            pairs = zip(self.values[::2], self.values[1::2], strict=True)
            self.values = [(step, (before + after) / 2) for (_, before), (step, after) in pairs]
        last = self.values[-1][0]  # 0 while no worker has made a step
        first = (1 - _RECENT_SHARE) * last
        self.highest = max([each for _, each in self.values])
        self.recent = statistics.fmean([each for step, each in self.values if step > first or step == last])

    @property
    def depth(self) -> float:
        """From the highest value to the recent one."""
        return self.highest - self.recent

    @property
    def way(self) -> float:
        """All ups and downs together."""
        return math.fsum([abs(after - before) for (_, before), (_, after) in itertools.pairwise(self.values)])

    @property
    def newer_share(self) -> float:
        """Share of the depth that was made in the newer half of the steps."""
        if self.depth <= 0:
            return 0.0
        half = self.values[-1][0] / 2
        nearest = min([abs(step - half) for step, _ in self.values])
        width = max(nearest, _MIDDLE_WIDTH * self.values[-1][0])
        middle = statistics.fmean([value for step, value in self.values if abs(step - half) <= width])
        return (middle - self.recent) / self.depth


class _Level:
    """The usual level of the loss: notices when it is left upwards for good."""

    __slots__ = ("_config", "_highest", "_usual", "outliers")

    def __init__(self, config: PhaseConfig) -> None:
        self._config = config
        self._highest = -math.inf
        self._usual: deque[float] = deque(maxlen=2 * _USUAL_READINGS)
        self.outliers: list[Reading] = []
        """The last readings, where their loss was above the usual."""

    def forget(self) -> None:
        """What was usual is no more."""
        self._usual.clear()
        self.outliers = []

    def notice(self, loss: float) -> None:
        """Take a loss of a start: it tells how far a fall goes, not what is usual."""
        if abs(loss) < _LARGEST:
            self._highest = max(self._highest, loss)

    def observe(self, reading: Reading) -> _Verdict | None:
        """Take a reading; a verdict if it is a setback."""
        loss = reading.loss
        if not abs(loss) < _LARGEST:
            return None
        level, limit = self._limit()
        if not loss - level > limit:
            self.notice(loss)
            self._usual.append(loss)
            self.outliers = []
            return None
        self.outliers.append(reading)
        if len(self.outliers) < 2 and loss - level < 2 * limit:
            return None
        reason = f"the loss has risen from {level:.3g} to {loss:.3g}"
        return _Verdict(phase="critical", reason=reason, inputs={"loss": loss, "level": level})

    def _limit(self) -> tuple[float, float]:
        """The level, and by how much a loss may exceed it."""
        config = self._config
        if len(self._usual) < _USUAL_READINGS:
            return math.nan, math.inf
        level = statistics.fmean(self._usual)
        noise = config.setback_noise * math.sqrt(statistics.fmean((loss - level) ** 2 for loss in self._usual))
        return level, max(noise, config.setback * abs(level), config.least_fall * (self._highest - level))
