"""Trials of changes: a change that shortens steps is judged by the loss, and undone if it costs too much progress.

The system side predicts seconds a step, and seconds are not progress. So there is no slack and no store in the first
``warm_up`` reviews, which show how training goes without them; and every change to a looser setting is on *trial* for
the next reviews. Let y be the loss of a review (the mean over its steps and workers), y0 the last one before the
change, and F the fall of the loss over the S steps before that (over at most ``window`` reviews). Without a change the
loss would fall further; the curves of training flatten, so the trial demands only a part of the fall in another Δ
steps:

    expected(Δ) = y0 - keeps · min(F · Δ / (S + Δ), E(Δ))

The first term is the fall of a hyperbola. E is the fall of an exponential that lost as much in the newer and in the
older half of those reviews as the loss did. ``keeps`` is the predicted time of a step over that before the change,
because a change that saves a tenth of the time must not cost more than a tenth of the progress; at least `keeps` and at
most `most_kept`, for curves flatten in other ways too. The trial *fails* as soon as

    y(Δ) > expected(Δ) + noise_factor · σ + least_rise · |y0|

σ is the error of both losses and of F: of each review the scatter of the workers' means over the root of their number,
or, if that is more, the scatter of the reviews about their trend. Workers that draw from different data scatter more,
and are judged more mildly. Nothing is judged without a loss, nor with fewer than two reviews before the change: one
shows no trend, and at the beginning losses may rise by themselves.

A trial goes on when the setting is left before it is over for another reason: harm shows late.

A failure bars the change's *kind* (local steps, racks, rounding between racks, racks on the store, the store, rounding,
low rank), from half of its slack on, for ``back_off`` reviews, twice as many after every further failure. If racks are
barred, so is rounding between them; and single workers bear even less than racks do, so local steps are barred as well.
For ``rest`` reviews, and for as many as there have been, nothing looser than the setting before the trial is taken:
this shows again how training goes without the change, and a run of any length has few failures. If the loss is above
its value before the trial, by more than its noise, the run goes back to the last good state as well.

After an alarm of the guard, the setting under which training diverged and the looser ones of its kind are barred for
the rest of the run; between racks, single workers' steps of that slack too. Strict steps of all workers are not to
blame, rounded or not.
"""

import itertools
import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from plesio.policies.adaptive.config.progress import ProgressConfig
from plesio.policies.adaptive.readings.reading import NO_OBJECTION, ComponentAdvice, Reading
from plesio.policies.adaptive.system.setting import Sent, Setting

__all__ = ["Failure", "ProgressJudge"]

_MEDIAN = 0.6745
"""Median of the absolute value of a standard normal number."""

Kind = Literal["local", "racks", "rounded racks", "racks on the store", "store", "rounded", "low rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure: a change that training did not bear.

    Attributes:
        reason: One clause.
        harmed: True if the loss is above its value before the change.
        inputs: The figures behind the failure, by name.
    """

    reason: str
    harmed: bool
    inputs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Point:
    clock: int
    loss: float
    error: float


@dataclass(slots=True)
class _Trial:
    before: Setting
    after: Setting
    points: tuple[_Point, ...]
    keeps: float
    reviews: int = 0


@dataclass(slots=True)
class _Bar:
    slack: int
    until: int
    times: int = field(default=1)


class ProgressJudge:
    """Judges changes by the loss; the module's head has the rule.

    >>> judge = ProgressJudge(ProgressConfig())
    >>> def look(clock: int, loss: float) -> Failure | None:
    ...     return judge.observe(Reading(clock=clock, num_steps=16, learning_rate=0.1, loss=loss, loss_error=0.01))
    >>> bsp, local = Setting.of(period=1, delay=0), Setting.of(period=8, delay=4)
    >>> [look(clock, loss) for clock, loss in ((16, 2.0), (32, 1.8), (48, 1.65))]
    [None, None, None]
    >>> judge.changed(bsp, local)
    >>> look(64, 1.9).reason
    'the loss went from 1.65 to 1.9 in 16 steps of local_sgd:8,delay=4, where 1.594 was to be expected'
    >>> judge.allows(local), judge.allows(bsp)
    (False, True)
    """

    def __init__(self, config: ProgressConfig) -> None:
        self._config = config
        self._points: deque[_Point] = deque(maxlen=config.window)
        self._trial: _Trial | None = None
        self._bars: dict[Kind, _Bar] = {}
        self._diverged: dict[Kind, tuple[int, int]] = {}
        """Least slack and bound under which training has diverged."""
        self._reviews = 0
        self._rest_until = 0
        self._resting_at: Setting | None = None

    @property
    def on_trial(self) -> bool:
        return self._trial is not None

    @property
    def advice(self) -> ComponentAdvice:
        if self._reviews < self._config.warm_up:
            return ComponentAdvice(slack=0, reason="training shows first how it goes without slack")
        if self._resting_at is not None and self._reviews < self._rest_until:
            left = self._rest_until - self._reviews
            reason = f"training shows for {left} reviews how it goes without what failed"
            return ComponentAdvice(slack=self._resting_at.slack, reason=reason)
        return NO_OBJECTION

    def observe(self, reading: Reading) -> Failure | None:
        """Take a review's reading; return a failure if the setting in force is to be left."""
        self._reviews += 1
        if not math.isfinite(reading.loss):
            return None
        point = _Point(reading.clock, reading.loss, reading.loss_error)
        failure = None if self._trial is None else self._judge(self._trial, point)
        self._points.append(point)
        return failure

    def allows(self, setting: Setting) -> bool:
        kinds = _kinds(setting)
        if not kinds:
            return True
        if kinds != ("rounded",) and self._reviews < self._config.warm_up:
            return False
        if self._resting_at is not None and self._reviews < self._rest_until and _looser(setting, self._resting_at):
            return False
        if any(_looseness(setting) >= self._diverged[kind] for kind in kinds if kind in self._diverged):
            return False
        bars = [self._bars[kind] for kind in kinds if kind in self._bars]
        return all(self._reviews >= bar.until or 2 * setting.slack < bar.slack for bar in bars)

    def changed(self, before: Setting, after: Setting, *, cost: float = 0.0) -> None:
        """Take note that another setting is in force from now on.

        ``cost`` is the predicted time of a step under ``after`` over that under ``before``.
        """
        if _looser(after, before):
            known = tuple(self._points)
            keeps = max(self._config.keeps, min(self._config.most_kept, cost))
            self._trial = _Trial(before, after, known, keeps) if len(known) > 1 else None
        elif self._trial is None:
            self._points.clear()

    def diverged(self, setting: Setting) -> None:
        """Fail the change on trial and bar ``setting`` for good; forget all losses, for they predict nothing."""
        blamed = {setting}
        if self._trial is not None:
            blamed.add(self._trial.after)
            self._bar(self._trial)
        self._points.clear()
        for one in blamed:
            if one.slack:
                kind = _kinds(one)[-1]
                for barred in (kind, *_WORSE.get(kind, ())):
                    self._diverged[barred] = min(_looseness(one), self._diverged.get(barred, _looseness(one)))

    def _judge(self, trial: _Trial, point: _Point) -> Failure | None:
        config, last = self._config, trial.points[-1]
        trial.reviews += 1
        ran = point.clock - last.clock
        # the loss to expect, and the error of that and of the loss just seen
        part, fell = _further_fall(trial.points, ran)
        expected = last.loss - trial.keeps * fell
        noise = _scatter(trial.points)
        last_error, error = max(noise, last.error), max(noise, point.error)
        part *= trial.keeps
        sigma = math.hypot(error, (1 + part) * last_error, part * max(noise, trial.points[0].error))
        margin = config.noise_factor * sigma + config.least_rise * abs(last.loss)
        if point.loss > expected + margin:
            self._bar(trial)
            return Failure(
                reason=f"the loss went from {last.loss:.4g} to {point.loss:.4g} in {ran} steps of {trial.after.spec}, "
                f"where {expected:.4g} was to be expected",
                harmed=point.loss > last.loss + margin,
                inputs={"loss": point.loss, "loss_before": last.loss, "expected": expected, "sigma": sigma},
            )
        if trial.reviews >= config.trial:
            self._trial = None
        return None

    def _bar(self, trial: _Trial) -> None:
        kinds, before = _kinds(trial.after), _kinds(trial.before)
        self._trial = None
        self._points.clear()
        self._resting_at, self._rest_until = trial.before, self._reviews + max(self._config.rest, self._reviews)
        if not kinds:
            return
        # kinds that training bore before are innocent, unless nothing else is left to blame
        blamed = ([kind for kind in kinds if kind not in before] or kinds)[-1]
        self._bar_kind(blamed, trial.after.slack)
        for worse in _WORSE.get(blamed, ()):
            self._bar_kind(worse, 0)

    def _bar_kind(self, kind: Kind, slack: int) -> None:
        times = self._bars[kind].times + 1 if kind in self._bars else 1
        until = self._reviews + self._config.back_off * 2 ** (times - 1)
        self._bars[kind] = _Bar(slack=slack, until=until, times=times)


_KINDS_TOGETHER: Mapping[Sent, tuple[Kind, ...]] = {
    Sent.FULL: (),
    Sent.ROUNDED: ("rounded",),
    Sent.LOW_RANK: ("low rank",),
}


_WORSE: Mapping[Kind, tuple[Kind, ...]] = {"racks": ("local",)}
"""Kinds that training bears less than another one at the same slack."""


def _looseness(setting: Setting) -> tuple[int, int]:
    return setting.slack, setting.bound


def _kinds(setting: Setting) -> tuple[Kind, ...]:
    """Return the kinds by which ``setting`` is looser than BSP, perhaps none; of new ones the last is to blame."""
    if setting.on_store:
        return ("racks on the store",) if setting.by_racks else ("store",)
    if setting.steps_together:
        return _KINDS_TOGETHER[setting.sent]
    if setting.by_racks:
        return ("racks", "rounded racks") if setting.sent is Sent.ROUNDED else ("racks",)
    return ("rounded", "local") if setting.sent is Sent.ROUNDED else ("local",)


def _looser(after: Setting, before: Setting) -> bool:
    """Return True if training has more to bear under ``after`` than under ``before``, or something else."""
    kinds = _kinds(after)
    if after.slack == 0 < before.slack:
        return False
    new = not set(kinds) <= set(_kinds(before))
    return bool(kinds) and (new or after.slack > before.slack or after.bound > before.bound)


def _further_fall(points: tuple[_Point, ...], num_steps: int) -> tuple[float, float]:
    """Return a hyperbola's share of the fall so far in so many further steps, and the expected fall of the loss."""
    first, last = points[0], points[-1]
    over, fell = last.clock - first.clock, max(0.0, first.loss - last.loss)
    if not over:
        return 0.0, 0.0
    part = num_steps / (over + num_steps)
    middle = points[len(points) // 2]
    older, newer = middle.clock - first.clock, last.clock - middle.clock
    if len(points) < 3 or first.loss <= middle.loss:
        return part, part * fell
    # the slopes of both halves give the exponential: its decay, and its slope now
    ratio = ((middle.loss - last.loss) / newer) / ((first.loss - middle.loss) / older)
    if ratio <= 0:
        return part, 0.0
    decay = max(0.0, -math.log(ratio)) / ((older + newer) / 2)  # a step, between the middles of the halves
    slope = (middle.loss - last.loss) / newer * math.exp(-decay * newer / 2)
    exponential = slope * (-math.expm1(-decay * num_steps) / decay if decay else num_steps)
    return part, min(part * fell, exponential)


def _scatter(points: tuple[_Point, ...]) -> float:
    """Return the standard deviation of one loss about the trend before the change; 0 if there are too few.

    It is computed from second differences. A steep fall that flattens has such differences too, all of one sign: then
    it is computed from their changes, but not below a third of the first estimate, since there are few.
    """
    losses = [point.loss for point in points]
    second = [c - 2 * b + a for a, b, c in zip(losses, losses[1:], losses[2:], strict=False)]
    if not second:
        return 0.0
    of_second = statistics.median(map(abs, second)) / (math.sqrt(6) * _MEDIAN)
    if min(second) <= 0:
        return of_second
    third = [abs(b - a) for a, b in itertools.pairwise(second)] or [0.0]
    return max(of_second / 3, min(of_second, statistics.median(third) / (math.sqrt(20) * _MEDIAN)))
