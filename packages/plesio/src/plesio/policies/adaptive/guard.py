"""Guard: finds divergence, and the states that are worth going back to.

Training diverges if the loss, or the parameters' speed (`Movement`), is above what its trend allows by more than chance
explains. The speed shows reviews before the loss that stale gradients make parameters swing. One test judges both:

1. Divergence may have begun at any of the last six reviews: what rises over more of them is training. For each such
   beginning, the excess is the weighted mean of the values since then over the median of those before. The weights 1,
   2, 3 grow, for divergence does. Values count as shares of their level, and by their logarithms.
2. The excess must pass the boundary of a test that may stop at any time (`trend.boundary`), in standard errors from
   second differences (`trend.scatter`). The beginning at review i has 1/(i(i+1)) of the chance; these sum to one.
3. Tails are those of Student's t, with degrees of freedom for each value: the mean of many is nearer to normal.
4. The median of the newest three must be above that level by a share, too: what is smaller does no harm.

Parameters are also fast where training leaves a plateau. What swings makes no progress: so the speed is no alarm while
the loss falls faster than before by as much as the speed has grown, and by more than its noise.

Harm is *averted* if many gradients of a worker were scaled down (`spike`), and the median worker's loss is ordinary. A
*leap* in the data would raise BSP's loss, too: the losses of all workers rise from one step to the next, and then stay.
Where the learning rate rises back to what it was (warm restarts, Loshchilov & Hutter 2017), the loss may rise as well.

After an alarm the guard is silent while the runtime goes back. Extraordinary values stay out of the levels, unless none
was ordinary until the next alarm. A state is known to be good one review later: keep two, and go back to the older.
"""

import math
import operator
import statistics
from collections import deque
from dataclasses import dataclass

from plesio.policies.adaptive.readings.reading import Reading
from plesio.policies.adaptive.trend import LEAST_NOISE, Point, boundary, scatter

CHANCE = 0.001
"""Chance of a wrong alarm in a run, which costs more than a change taken back; each of two figures has half of it."""
WINDOW, RECENT, FEW, SILENT = 24, 6, 3, 4
"""Reviews from which noise is computed; reviews whose median is a level; fewest before a leap; reviews without an alarm
after one."""
LOSS_RISE, SPEED_RISE, EARLY_RISE = 1.1, 2.5, 3.0
"""Multiples of its level that a figure must reach, and of the highest loss while no level is known."""
SHARE = 0.25
"""Share of steps whose gradients are extraordinary, or not finite, at an alarm."""
TAIL = 10
"""Degrees of freedom of one review's figure, tuned on random runs; `scatter` of 24 normal values has 6."""
RESTART, LEAP, LARGEST = 4 / 3, 0.25, 1e100
"""Multiple of the last rate above which a rise is deliberate; least share of a leap in each worker; larger is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Alarm: training diverges. It is averted if the shared parameters are unhurt, and early in the first reviews."""

    reason: str
    averted: bool = False
    early: bool = False


class Guard:
    """Raises an alarm when training diverges; the module's head has the rule."""

    def __init__(self) -> None:
        self._loss = _Figure("the loss", rise=LOSS_RISE, early_rise=EARLY_RISE)
        self._speed = _Figure("the parameters' speed", rise=SPEED_RISE, early_rise=math.inf)
        self._num_reviews = self._quiet = 0
        self._rate, self._highest_rate = math.inf, 0.0
        self._falls: deque[float] = deque(maxlen=RECENT)
        self._last_loss = math.nan
        self._was_refused = self._was_averted = self._alarmed = False
        self._leapt_to = math.nan
        self.has_leapt = False
        """True if the loss has leapt in the review before the last, and stayed there."""
        self.good = False
        """True if nothing, not even half an alarm, is wrong with the steps until here: the state is worth keeping."""

    def observe(self, reading: Reading, *, settled: bool = True) -> Alarm | None:
        """Return an alarm, if any; ``settled`` is False while a change is on trial."""
        self._num_reviews = num = self._num_reviews + 1
        self.has_leapt = reading.loss <= self._leapt_to + (LOSS_RISE - 1) * abs(self._leapt_to)
        if self.has_leapt:
            self.tightened()
        if RESTART * self._rate < reading.learning_rate <= RESTART * self._highest_rate:
            self._loss.values.clear()
        steps = max(1, reading.num_steps)
        loss, speed = self._loss.judge(reading.loss, review=num), self._speed.judge(reading.speed, review=num)
        if self._falls_faster(reading):
            speed = 0.0, ""
        self._leapt_to = self._leap(reading) if settled and self.good and loss[0] >= 0.5 else math.nan
        self._rate, self._highest_rate = reading.learning_rate, max(self._highest_rate, reading.learning_rate)
        clipped = reading.num_clipped / steps / SHARE
        was_refused, self._was_refused = self._was_refused, reading.num_refused > SHARE * steps
        refused = math.inf if was_refused and self._was_refused else 0.0
        extraordinary = clipped, f"{reading.num_clipped} gradients of one worker in {steps} steps were extraordinary"
        not_finite = refused, f"{reading.num_refused} gradients in {steps} steps were not finite"
        severity, reason = max(loss, speed, extraordinary, not_finite)
        averted = clipped >= 1 and self._loss.judge(reading.typical_loss, review=num)[0] < 0.5
        if not math.isnan(self._leapt_to):
            averted, reason = True, f"all workers' losses leapt to {self._leapt_to:.4g}"
        self._loss.learn(reading.loss, ordinary=loss[0] <= 1)
        self._speed.learn(reading.speed, ordinary=speed[0] <= 1)
        self.good = severity < 0.5 and not reading.num_refused and not reading.num_clipped
        silent = self._quiet > 0 and (averted or not self._was_averted)  # averted harm covers no alarm of real harm
        self._quiet = max(0, self._quiet - 1)
        self._alarmed = self._alarmed and severity > 1
        if silent or severity <= 1:
            return None
        if self._alarmed and not averted:
            self.tightened()
        self._alarmed, self._quiet, self._was_averted = True, SILENT, averted
        return Alarm(reason=reason, averted=averted, early=num <= 4)

    def excuse(self) -> None:
        """Forget all levels and the last alarm."""
        self.tightened()
        self._quiet, self._alarmed = 0, False

    def tightened(self) -> None:
        """Forget all levels: the run gets less slack, or another optimizer's steps."""
        self._loss.values.clear()
        self._speed.values.clear()

    def _falls_faster(self, reading: Reading) -> bool:
        """Return whether the loss falls faster than before, by more than chance and as much as the speed has grown."""
        fall, usual = self._last_loss - reading.loss, math.nan
        per_step = fall / max(1, reading.num_steps)
        if len(self._falls) >= FEW:
            usual = max(0.0, statistics.median(self._falls))
        self._last_loss = reading.loss
        if math.isfinite(per_step):
            self._falls.append(per_step)
        faster = per_step * self._speed.level >= usual * reading.speed
        return faster and math.isfinite(fall) and fall - usual * max(1, reading.num_steps) > 2 * self._loss.noise

    def _leap(self, reading: Reading) -> float:
        """Return the loss after a leap that the parameters are not to blame for; NaN if there is none."""
        level = statistics.median(list(self._loss.values)[-RECENT:]) if len(self._loss.values) >= FEW else math.nan
        rise = LEAP * (reading.loss - level)
        of_all = reading.least_loss - level >= rise and reading.learning_rate <= self._rate
        finite = reading.losses and all(abs(loss) < LARGEST for loss in (reading.loss, *reading.losses))
        if not of_all or not finite or reading.num_refused:
            return math.nan
        losses = [*[self._loss.values[-1]] * RECENT, *reading.losses]
        before = {at: statistics.fmean(losses[at - RECENT : at]) for at in range(RECENT, len(losses))}
        steepest = max(before, key=lambda at: statistics.fmean(losses[at : at + RECENT]) - before[at])
        after = losses[steepest:]
        half = (len(after) + 1) // 2
        older, newer = statistics.fmean(after[:half]), statistics.fmean(after[-half:])
        sudden = before[steepest] - level < LEAP * (older - level)
        stays = len(after) < RECENT or newer - level <= (1 + LEAP) * (older - level)
        return max(older, newer) if sudden and stays else math.nan


class _Figure:
    """A figure's last ordinary values, and the test of the next."""

    def __init__(self, name: str, *, rise: float, early_rise: float) -> None:
        self._name = name
        self._rise, self._early_rise = math.log(rise), early_rise
        self.values: deque[float] = deque(maxlen=WINDOW)

    def learn(self, value: float, *, ordinary: bool) -> None:
        if ordinary and math.isfinite(value):
            self.values.append(max(-LARGEST, min(value, LARGEST)))

    @property
    def level(self) -> float:
        """The level; NaN while it is unknown."""
        return statistics.median(list(self.values)[-RECENT:]) if len(self.values) >= RECENT + 2 else math.nan

    @property
    def noise(self) -> float:
        """Standard deviation of a value."""
        return scatter(tuple(Point(0, one, 0.0) for one in self.values))

    def judge(self, value: float, *, review: int) -> tuple[float, str]:
        """Return how severe ``value`` is, above 1 for an alarm; and the alarm's reason."""
        if not value < math.inf:
            return (math.inf if value == math.inf else 0.0), f"{self._name} is infinite"
        if math.isnan(self.level):
            highest = max(self.values, default=math.inf)
            rise = (value - highest) / max(abs(highest), 1e-300) / (self._early_rise - 1)
            return max(0.0, rise), f"{self._name} is {value:.4g} and was never above {highest:.4g}"
        values = [*self.values, max(-LARGEST, min(value, LARGEST))]
        unit = abs(self.level) or max(map(abs, self.values)) or 1.0
        scales = [[one / unit for one in values]]
        if min(values) > 0:
            scales.append([math.log(one) for one in values])
        num_begins = min(RECENT, len(values) - RECENT)
        severity, noises = 0.0, 0.0
        for scaled in scales:
            noise = max(scatter(tuple(Point(0, one, 0.0) for one in scaled[:-1])), LEAST_NOISE)
            found = (self._test(scaled, num, noise, review) for num in range(1, num_begins + 1))
            severity, noises = max((severity, noises), *found)
        return severity, f"{self._name} is {value:.4g}, {noises:.3g} times its noise above {self.level:.4g}"

    def _test(self, values: list[float], num: int, noise: float, review: int) -> tuple[float, float]:
        """Return the severity of divergence that began ``num`` values ago, and its excess in standard errors."""
        level = statistics.median(values[-num - RECENT : -num])
        weights, begin = range(1, num + 1), max(1, review - num + 1)
        excess = sum(map(operator.mul, weights, values[-num:])) / sum(weights) - level
        alike = sum(weights) ** 2 / sum(weight**2 for weight in weights)  # as many of equal weight are as certain
        chance = CHANCE / 2 / (begin * (begin + 1))
        normal = boundary(chance, alike, effect=math.sqrt(2 * math.log(1 / chance)))  # the least for one value
        freedom = TAIL * alike
        student = math.sqrt(freedom * math.expm1(normal**2 / (freedom + 1)))
        noises = excess / noise / math.sqrt(1 / alike + math.pi / 2 / RECENT)
        return min(noises / student, (statistics.median(values[-min(3, num) :]) - level) / self._rise), noises
