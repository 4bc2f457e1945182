"""Guard: finds divergence, and the states that are worth going back to.

Each figure is compared with its own recent past (`level`), in standard deviations of its own noise and as a share of
its level; both must be exceeded. A *severity* above 1 is an alarm:

    loss        min(noises / noise_factor, share / loss_rise), of the newest value over its level, and of the median of
                the last three over the lowest level of the window (a rise slow enough for the level to follow)
    worst loss  the same with ``worst_rise``: one bad worker among many shows here first
    speed       the same with ``speed_jump`` and two thirds of the factor; 1.5 times the jump if it rises slowly. It is
                the distance of the shared parameters from those of the last review, over the sum of the learning rates
    norm        the same with ``norm_jump`` and two thirds of the factor, for the gradient's norm, if another figure is
                half-way to an alarm: the norm of a few sampled batches is often extraordinary and does no harm alone
    refused     share of steps without a finite gradient / refused_share, in two reviews in succession (refused
                gradients do no harm meanwhile); an overflow of a scaled loss does not count
    infinite    a loss that is infinite: at once
    clipped     share of a worker's steps whose gradient was extraordinary and scaled down / clipped_share

The *speed* is the first figure to show that too much slack is allowed. If gradients are stale, or steps too long for
the sharpest directions, parameters swing in these with an amplitude a that grows from step to step. The loss rises by
λa²/2, which its noise hides for long, and with stale gradients it belongs to parameters from before the swing; the norm
of one worker's gradient is mostly noise. But each swing moves the parameters by a, and otherwise they move little: over
the learning rate, by the length of the mean gradient of all steps and workers of a review, in which the noise averages
out.

Harm is *averted* if it shows in no more than some workers: their gradients were extraordinary and scaled down in a
``clipped_share`` of the steps (`spike`), and the median worker's loss is at its level. Then there is nothing to go back
from.

A *leap* in the data raises all workers' losses, and BSP's would have risen the same: there is nothing to go back to
either. Divergence grows over several steps, and parameters move faster before the loss shows it; here the loss is up
from one step to the next, when all was ordinary, and then stays or falls. So the losses of single steps tell one from
the other (`_leap`). If the loss has risen further at the next review, it is divergence after all, and the state of
before is still kept; else all levels are learned anew, here and on the workers, which would scale gradients down for
long.

While a level is not known (the first reviews, and after a restart), a loss is compared with the highest value that was
ordinary, and may exceed it by ``early_rise``.

A *restart* of the learning rate is a rise by more than a third to a rate that the run has had before (warm restarts,
Loshchilov & Hutter 2017). Losses are meant to rise then, so their levels are learned anew; the others are kept. A rate
above all earlier ones excuses nothing.

After an alarm the guard is silent for ``rearm_reviews`` reviews, in which the runtime goes back to a good state and the
loss with it; after averted harm, only about further averted harm. Extraordinary values are kept out of the levels, so
the next alarm is measured against the state before the first one. If no value was ordinary between two alarms, the
present values become the level: the guard does not alarm forever about a lasting change.

Its limits. A review's figures are means over steps *before* its end, so the effect of a review's last steps on the
parameters shows in the next review. `good` therefore means: nothing was wrong with the steps that led here. A state is
*known* to be good one review later; keep two states, and go back to the older one.
"""

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from plesio.policies.adaptive.config.guard import GuardConfig
from plesio.policies.adaptive.config.numbers import RECENT
from plesio.policies.adaptive.readings.reading import Reading
from plesio.policies.adaptive.training.level import Excess, RecentLevel

__all__ = ["Alarm", "Guard"]

_MULTIPLE = 2 / 3
"""Share of the noise factor that speed and norm must reach: they must be multiples of their levels besides."""
_CREEP = 1.5
"""Multiple of its jump that the speed must reach if it rises slowly, as it may in healthy training."""
_AGREES = 0.5
"""Severity of another figure that the norm needs for an alarm."""
_PART, _STAYS = 0.25, 1.25
"""Share of its rise that a leaping loss has not made in the steps before, and that each worker's has; its most growth
after the leap."""
_FEW = 3
"""Steps whose mean tells."""
_RESTART = 4 / 3
"""Multiple of the last learning rate above which a rise is deliberate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Alarm: training diverges.

    Attributes:
        reason: One clause for people, such as ``the loss is 3.1, 12 times its noise above 0.42``.
        averted: True if the shared parameters are unhurt; the module's head has the conditions.
        early: True in the first four reviews, when a figure is compared with the highest of very few.
        inputs: The numbers behind the alarm, by name.
    """

    reason: str
    averted: bool = False
    early: bool = False
    inputs: Mapping[str, float] = field(default_factory=dict)


class Guard:
    """Raises an alarm when training diverges; the module's head has the rule.

    >>> guard = Guard(GuardConfig())
    >>> def look(loss: float) -> Alarm | None:
    ...     return guard.observe(Reading(clock=16, num_steps=16, learning_rate=0.1, loss=loss, worst_loss=loss))
    >>> [look(1.0 + 0.01 * (review % 3)) for review in range(8)] == [None] * 8, guard.good
    (True, True)
    >>> look(1.6).reason, guard.good
    ('the loss is 1.6, 30.2 times its noise above 1.01', False)
    """

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        every = functools.partial(RecentLevel, window=config.window, recent=RECENT, known_after=2 * RECENT)
        # gradients are sampled in about every other review, so the norm has half as many values
        every_other = RecentLevel(window=config.window // 2, recent=RECENT, known_after=RECENT + 1)
        factor, norm_rise = config.noise_factor, config.norm_jump**2 - 1.0
        self._loss = _Watched(
            "the loss", every(), noise_factor=factor, rise=config.loss_rise, early_rise=config.early_rise
        )
        self._worst = _Watched("the worst loss", every(), noise_factor=factor, rise=config.worst_rise)
        self._typical = _Watched(
            "the median worker's loss",
            every(),
            noise_factor=factor,
            rise=config.loss_rise,
            early_rise=config.early_rise,
        )
        self._norm_sq = _Watched(
            "the gradient's squared norm", every_other, noise_factor=_MULTIPLE * factor, rise=norm_rise
        )
        self._speed = _Watched(
            "the parameters' speed",
            every(),
            noise_factor=_MULTIPLE * factor,
            rise=config.speed_jump - 1.0,
            creep_rise=_CREEP * config.speed_jump - 1.0,
        )
        self._num_reviews = 0
        self._rate = math.inf
        self._highest_rate = 0.0
        self._refused_before = 0.0
        """Severity of the refused gradients in the review before."""
        self._quiet = 0
        """Number of reviews for which the guard is still silent."""
        self._averted = False
        """True if the silence is about averted harm."""
        self._alarmed = False
        """True if nothing has been ordinary since the last alarm."""
        self._good = False
        self._leapt_to = math.nan
        """Loss after a leap in the last review."""
        self.has_leapt = False
        """True if the loss has leapt in the review before the last, and stayed there."""

    @property
    def good(self) -> bool:
        """True if nothing was wrong with the steps that led to the present state, so that it is worth keeping."""
        return self._good

    def observe(self, reading: Reading, *, settled: bool = True) -> Alarm | None:
        """Return an alarm, if any; ``settled`` is False while a change is on trial."""
        self._num_reviews += 1
        self.has_leapt = reading.loss <= self._leapt_to * (1 + self._config.loss_rise)
        if self.has_leapt:
            self._learn_anew()
        self._leapt_to = self._leap(reading) if settled and self._good else math.nan
        self._look_for_restart(reading.learning_rate)
        found = [self._judge_refused(reading), self._judge_clipped(reading)]
        figures = ((self._loss, reading.loss), (self._worst, reading.worst_loss), (self._speed, reading.speed))
        for watched, value in figures:
            if not math.isnan(value):
                found.append(watched.judge(value))
        if reading.gradient is not None:
            found.append(self._judge_norm(reading.gradient.norm_sq, others=max(one[0] for one in found)))
        severity, alarm = max(found, key=lambda one: one[0])
        # half an alarm is not good either: harm shows a review late
        averted = self._averts(reading)
        if not math.isnan(self._leapt_to):
            averted, alarm = True, Alarm(reason=f"all workers' losses leapt to {self._leapt_to:.4g}")
        self._good = severity < 0.5 and not reading.num_refused and not reading.num_clipped
        if severity <= 1.0:
            self._alarmed = False
        # silence after averted harm covers no alarm of real harm
        silent = self._quiet > 0 and (averted or not self._averted)
        self._quiet = max(0, self._quiet - 1)
        if silent or severity <= 1.0:
            return None
        if self._alarmed and not averted:
            self._learn_anew()
        self._alarmed = True
        self._quiet, self._averted = self._config.rearm_reviews, averted
        return replace(alarm, averted=averted, early=self._num_reviews <= RECENT)

    def excuse(self) -> None:
        """Take back the last alarm: learn all levels anew, without silence."""
        self._learn_anew()
        self._quiet, self._alarmed = 0, False

    def tightened(self) -> None:
        """Forget the levels of speed and losses: the run gets less slack, or another optimizer's steps.

        A worker that steps by itself fits its own data better than the mean of all fits them, so the loss that workers
        report rises when they step together, and most if they have different data.
        """
        for watched in (self._speed, self._loss, self._worst, self._typical):
            watched.level.clear()

    def _averts(self, reading: Reading) -> bool:
        """Return True if no more than some workers are affected, whose gradients were scaled down."""
        unhurt = math.isfinite(reading.typical_loss) and self._typical.judge(reading.typical_loss)[0] < 0.5
        return unhurt and reading.num_clipped >= self._config.clipped_share * reading.num_steps

    def _leap(self, reading: Reading) -> float:
        """Return the loss after a leap that the parameters are not to blame for; NaN if there is none."""
        raised = reading.learning_rate > self._rate
        if not reading.losses or not self._loss.level.is_known or raised or reading.num_refused:
            return math.nan
        level = self._loss.level.level
        significant = self._loss.level.excess(reading.loss).noises > self._config.noise_factor / 2
        if not significant or not reading.least_loss - level >= _PART * (reading.loss - level):
            return math.nan  # or some workers have no part in it
        # the step from which on all is different: both parts are about their means, before the review is the level
        losses = [level] * _FEW + list(reading.losses)
        at = min(range(_FEW, len(losses)), key=lambda place: _scatter(losses[:place]) + _scatter(losses[place:]))
        after = losses[at:]
        middle = len(after) // 2
        older, newer = statistics.fmean(after[:middle] or after), statistics.fmean(after[middle:])
        sudden = statistics.fmean(losses[at - _FEW : at]) - level < _PART * (older - level)
        rises = len(after) > _FEW and newer - level > _STAYS * (older - level)
        return max(older, newer) if sudden and not rises else math.nan

    def _look_for_restart(self, rate: float) -> None:
        if _RESTART * self._rate < rate <= self._highest_rate:
            self._loss.level.clear()
            self._worst.level.clear()
            self._typical.level.clear()
        self._rate = rate
        self._highest_rate = max(self._highest_rate, rate)

    def _learn_anew(self) -> None:
        for watched in (self._loss, self._worst, self._typical, self._speed, self._norm_sq):
            watched.level.clear()
            watched.highest = -math.inf

    def _judge_norm(self, norm_sq: float, *, others: float) -> tuple[float, Alarm]:
        """Judge the norm, which counts only if the most severe of the ``others`` is half-way to an alarm."""
        severity, alarm = self._norm_sq.judge(norm_sq)
        if severity > 1.0 and others < _AGREES:
            self._norm_sq.level.add(norm_sq)
            severity = 0.0
        return severity, alarm

    def _judge_refused(self, reading: Reading) -> tuple[float, Alarm]:
        share = reading.num_refused / max(1, reading.num_steps)
        before, self._refused_before = self._refused_before, share / self._config.refused_share
        reason = f"{reading.num_refused} gradients in {reading.num_steps} steps were not finite"
        return min(before, self._refused_before), Alarm(reason=reason, inputs={"num_refused": reading.num_refused})

    def _judge_clipped(self, reading: Reading) -> tuple[float, Alarm]:
        share = reading.num_clipped / max(1, reading.num_steps)
        reason = f"{reading.num_clipped} gradients of one worker in {reading.num_steps} steps were extraordinary"
        return share / self._config.clipped_share, Alarm(reason=reason, inputs={"num_clipped": reading.num_clipped})


class _Watched:
    """A figure, its level and the highest value that was ordinary."""

    def __init__(
        self,
        name: str,
        level: RecentLevel,
        *,
        noise_factor: float,
        rise: float,
        creep_rise: float | None = None,
        early_rise: float = math.inf,
    ) -> None:
        self._name = name
        self._noise_factor = noise_factor
        self._rise = rise
        self._creep_rise = rise if creep_rise is None else creep_rise
        self._early_rise = early_rise
        self.highest = -math.inf
        self.level = level

    def judge(self, value: float) -> tuple[float, Alarm]:
        """Return the severity of ``value`` and the alarm that it would be; an ordinary value enters the level."""
        if math.isinf(value) and value > 0:
            return math.inf, Alarm(reason=f"{self._name} is infinite", inputs={})
        if self.level.is_known:
            jumped = self._weigh(self.level.excess(value), rise=self._rise)
            crept = self._weigh(self.level.creep(value), rise=self._creep_rise)
            severity, alarm = max(jumped, crept, key=lambda one: one[0])
        else:
            share = (value - self.highest) / abs(self.highest) if self.highest else 0.0
            severity = share / self._early_rise if math.isfinite(share) else 0.0
            reason = f"{self._name} is {value:.4g} and was never above {self.highest:.4g}"
            alarm = Alarm(reason=reason, inputs={"value": value, "highest": self.highest})
        if severity <= 1.0:
            self.level.add(value)
            self.highest = max(self.highest, value)
        return severity, alarm

    def _weigh(self, excess: Excess, *, rise: float) -> tuple[float, Alarm]:
        severity = min(excess.noises / self._noise_factor, excess.share / rise)
        reason = f"{self._name} is {excess.value:.4g}, {excess.noises:.3g} times its noise above {excess.level:.4g}"
        inputs = {"value": excess.value, "level": excess.level, "noises": excess.noises}
        return severity, Alarm(reason=reason, inputs=inputs)


def _scatter(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)
