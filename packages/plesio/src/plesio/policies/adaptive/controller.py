"""Chooses the setting of the highest lower bound of progress per second, and takes back what the loss does not bear.

Progress per second is what a step is worth (`worth`) over its seconds (`system.times`). Of both a cautious value
counts: worth by its standard deviation, seconds without the outliers that may be chance. A change to something looser
is on trial: the loss's trend before it (`trend`) says what is to be expected, and a test that may stop at any time
whether it is missed. What fails is believed to be worth less from then on, and what is looser of its kind still less.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping

from plesio.policies.adaptive.compared import ComparedSetting, TrialEnd
from plesio.policies.adaptive.guard import Alarm, Guard
from plesio.policies.adaptive.numbers import Options
from plesio.policies.adaptive.readings.reading import Reading
from plesio.policies.adaptive.readings.review import GradientPairs, Movement, put_together
from plesio.policies.adaptive.system.setting import ROUNDED_STEPS, SYNCHRONOUS, Setting
from plesio.policies.adaptive.system.times import LARGEST_PERIOD, SettingTimes
from plesio.policies.adaptive.trend import Point, Trial
from plesio.policies.adaptive.worth import WITH_SLACK, Worth, kind_of
from plesio.policies.events import Reviewed
from plesio.policies.policy import Decision, Policy
from plesio.policies.review_clocks import FIRST_CLOCK, FIRST_REVIEW, next_review

FIRST_INTERVAL = 4
"""Least number of steps between two reviews: half of the steps so far is less at the beginning."""
MOST_RESTORES = 3
"""Most times that alarms take a run back. After them it continues under BSP, where staleness cannot be the cause."""
GOT_ON = 0.02
"""Share by which the loss must be below that of a kept state, so that going back to this state is of no use."""
HOPELESS = 10.0
"""Multiple of the highest loss of a kept state, from which a run does not come back by itself."""
TREND = 6
"""Reviews that the loss's trend is taken from."""
LARGEST_SLACK = LARGEST_PERIOD - 1
"""Steps of slack at most: those of the longest period without a delay."""
LEAST_LEFT = 16
"""Steps of a trial. With fewer and a period before the strict end nothing looser is tried; a quarter for the rest."""
SHOWN = 3
"""Settings whose figures a decision keeps, of the best; and those of BSP and of the setting in force."""


class Controller:
    """Decides the reviews of one run."""

    def __init__(self, options: Options) -> None:
        self.setting: Setting = SYNCHRONOUS
        """The setting in force."""
        self.shares: tuple[float, ...] = ()
        """The shares in force; empty for equal shares."""
        self._numbers = options
        self._times = SettingTimes(options)
        self._worth = Worth(options)
        self._guard = Guard() if options.guard else None
        self._points: deque[Point] = deque(maxlen=TREND)
        """The newest reviews under the setting in force, or under settings that no trial told from it."""
        self._trial: Trial | None = None
        self._pairs, self._movement = GradientPairs(), Movement()
        self._num_reviews = self._num_restores = 0
        self._kept: deque[tuple[int, float]] = deque(maxlen=2)
        """Review after which the workers have kept each of their states, and its mean loss."""
        self._highest_kept = 0.0
        """Largest amount of a loss at which a state was kept."""
        self._last_loose = 0
        """Newest review of steps with slack, on the store or in low rank."""
        self._was_loose = False
        """True if the run was ever under anything but plain BSP, after its first steps."""
        self._finishes = False
        self._most_slack = 1
        """Steps of slack that trials have allowed; each that passes at this slack allows the next doubling."""

    @property
    def first(self) -> Policy:
        """BSP, until an exchange has been measured."""
        return SYNCHRONOUS.policy

    def over(self, clock: int) -> Decision | None:
        """Return None: stages end at reviews alone."""
        return None

    def next_review(self, since: int) -> tuple[int, int]:
        """Return the clocks of the next review and of its answer."""
        if since == 0:
            return FIRST_REVIEW, FIRST_CLOCK
        every = self._interval(since, trial=self._trial is not None) if self._times.knows_transfer else 1
        return next_review(since, period=self.setting.period, delay=self.setting.delay, every=every)

    def _interval(self, since: int, *, trial: bool) -> int:
        """Return the least number of steps from clock ``since`` to the next review; a trial halves ``every``."""
        most = self._numbers.every // 2 if trial else self._numbers.every
        return max(FIRST_INTERVAL, min(most, since // 2))

    def review(self, reviews: Mapping[int, Reviewed]) -> Decision:
        """Decide on the next steps."""
        reading = put_together(reviews, gradient=self._pairs.take(reviews), speed=self._movement.take(reviews))
        self._num_reviews += 1
        if any(review.began_slow for review in reviews.values()):
            self.setting = ROUNDED_STEPS
        if kind_of(self.setting) not in (None, "rounded"):
            self._last_loose = self._num_reviews
        self._times.observe(reviews, setting=self.setting)
        self._worth.observe(reading, momentum=max(review.momentum for review in reviews.values()))
        alarm = self._alarm(reading)
        ended, harmed = self._judge(reading) if alarm is None else (None, not alarm.averted)
        failed = ended is not None and ended.failed
        times_s, shares = self._times.predict(self.setting, self.shares)
        inputs = {} if ended is None else ended.inputs
        setting, reason = SYNCHRONOUS, ""
        if alarm is None:
            setting, reason = self._choose(times_s, reading, inputs)
        restore = harmed and self._may_restore(reading.loss)
        self._num_restores += restore and alarm is not None
        if alarm is not None:
            reason = f"{alarm.reason}: {self._back_text(restore=restore)}"
        elif ended is not None and failed:
            reason = f"the loss is {ended.excess:.3g} above what was to be expected: {reason}"
            reason += ", from the last good state on" if restore else ""
        keep = self._keeps(reading, setting, ordinary=alarm is None and not failed)
        if restore and len(self._kept) > 1:
            self._kept.pop()  # the older state is all that the workers have then
        relearns = self._guard is not None and (self._guard.has_leapt or self._tightens(setting))
        self._go_to(setting, restore=restore, alarmed=alarm is not None)
        self.shares = () if setting.on_store else shares
        return Decision(
            policy=setting.policy,
            shares=self.shares,
            keep=keep,
            restore=restore,
            relearn=alarm is None and relearns,
            alarm=alarm is not None,
            reason=reason,
            inputs=tuple((name, value) for name, value in sorted(inputs.items()) if math.isfinite(value)),
        )

    def _back_text(self, *, restore: bool) -> str:
        if self.setting != SYNCHRONOUS:
            return "back to bsp" + (" and to the last good state" if restore else "")
        return "back to the last good state" if restore else "the run stays with bsp"

    def _alarm(self, reading: Reading) -> Alarm | None:
        if self._guard is None:
            return None
        alarm = self._guard.observe(reading, settled=self._trial is None or self._trial.num > 0)
        if alarm is None:
            return None
        if alarm.early and not self._was_loose and math.isfinite(reading.loss):
            self._guard.excuse()  # losses may leap at the beginning, and this is BSP's own leap
            return None
        if not alarm.averted:
            self._worth.fail(self.setting, drift=self._times.drift(self.setting), lost=math.inf)
        self._end_trial(forget=True)
        return alarm

    def _judge(self, reading: Reading) -> tuple[TrialEnd | None, bool]:
        """Judge the change on trial; return the end of its trial, if it ends here, and True if it did harm."""
        if not math.isfinite(reading.loss):
            return None, False
        point = Point(reading.clock, reading.loss, reading.loss_error if math.isfinite(reading.loss_error) else 0.0)
        self._points.append(point)
        trial = self._trial
        if trial is None:
            return None, False
        trial.add(point)
        last, drift = trial.before[-1], self._times.drift(self.setting)
        most = trial.most
        if trial.mean_excess > most:
            self._worth.fail(self.setting, drift=drift, lost=0.5)
            self._end_trial(forget=True)
            return TrialEnd(excess=trial.mean_excess, most=most), point.loss > last.loss + 3 * trial.error
        if trial.num < self._numbers.trial:
            return None, False
        found = trial.efficiency()
        self._worth.passed(self.setting, drift=drift, found=found)
        if drift >= self._most_slack and kind_of(self.setting) in WITH_SLACK:
            self._most_slack = min(2 * self._most_slack + 1, LARGEST_SLACK)
        self._end_trial(forget=False)
        low, high = (None, None) if found is None else _ends(*found)
        return TrialEnd(excess=trial.mean_excess, most=most, worth_low=low, worth_high=high), False

    def _end_trial(self, *, forget: bool) -> None:
        self._trial = None
        if forget:
            self._points.clear()

    def _choose(
        self, times_s: Mapping[Setting, float], reading: Reading, inputs: dict[str, float]
    ) -> tuple[Setting, str]:
        numbers = self._numbers
        if not self._times.knows_transfer or SYNCHRONOUS not in times_s:
            return self.setting, "no exchange has been measured yet"
        bsp_s = times_s[SYNCHRONOUS]
        scores = {it: self._score(it, time_s / bsp_s) for it, time_s in times_s.items()}
        if self._is_strict(times_s, reading):
            scores = {it: score for it, score in scores.items() if it.is_strict}
        else:
            most = self._slack_to_try(scores)
            scores = {it: score for it, score in scores.items() if self._times.drift(it) <= most}
        standing = SYNCHRONOUS if self._num_reviews == 1 else self.setting  # rounding at first is a measurement alone
        standing = self._own(standing, times_s)
        own, highest = scores.get(standing, -math.inf), max(scores.values())
        # of those about as good, and good enough, the least slack
        least = max(highest - numbers.gain / 2, min(highest, own + numbers.gain))
        best = min((it for it in scores if scores[it] >= least), key=lambda it: (it.slack, -scores[it]))
        shown = sorted(scores, key=lambda it: -scores[it])[:SHOWN]
        for it in {SYNCHRONOUS, standing, best, *shown} & scores.keys():
            inputs |= self._compared(it, times_s[it], score=scores[it]).inputs
        if best == standing or scores[best] < own + numbers.gain:
            more = ", now with an outer momentum" if standing.has_outer > self.setting.has_outer else ""
            return standing, f"{standing.spec} has the most progress per second{more}"
        if self._loosens(best) and not self._gets_on():
            return self._own(self.setting, times_s), f"{best.spec} waits until the loss falls again"
        if self._is_late(best, times_s, reading):
            return self._own(self.setting, times_s), "too few steps are left for a change"
        return best, self._reason(self._compared(best, times_s[best], score=scores[best]), bsp_s=bsp_s, own=own)

    def _slack_to_try(self, scores: Mapping[Setting, float]) -> float:
        """Return the most slack that trials have allowed, or the least that pays where none of that does."""
        most = max(self._most_slack, min(self._times.drift(self.setting), LARGEST_SLACK))
        if self._trial is not None:
            return most
        needed = scores.get(self.setting, -math.inf) + self._numbers.gain
        pays = (self._times.drift(it) for it, score in scores.items() if score >= needed)
        return max(most, min((slack for slack in pays if slack <= LARGEST_SLACK), default=0))

    def _is_late(self, best: Setting, times_s: Mapping[Setting, float], reading: Reading) -> bool:
        """Return True if a change would not last: more slack needs a trial and a period before the end without it."""
        if not reading.progress:
            return False
        steps = reading.clock / reading.progress
        if best.slack <= self.setting.slack:
            return steps - reading.clock < LEAST_LEFT / 4
        return steps * (1 - self._strict_share(times_s)) - reading.clock < LEAST_LEFT + best.period

    def _gets_on(self) -> bool:
        """Return True unless the loss of the newest reviews is above that of those before."""
        losses = [point.loss for point in self._points]
        if len(losses) < 2:
            return True
        half = min(2, len(losses) // 2)
        return statistics.fmean(losses[-half:]) <= statistics.fmean(losses[-2 * half : -half])

    def _compared(self, setting: Setting, step_s: float, *, score: float) -> ComparedSetting:
        low, high = _ends(*self._worth.of(setting, drift=self._times.drift(setting)))
        return ComparedSetting(spec=setting.spec, step_s=step_s, worth_low=low, worth_high=min(1.0, high), score=score)

    def _reason(self, best: ComparedSetting, *, bsp_s: float, own: float) -> str:
        """Return the reason for a change to ``best``, where the setting in force has the score ``own``."""
        if math.isinf(own) and self._finishes:
            return "the last steps are without slack"
        if best.spec == SYNCHRONOUS.spec:
            return f"bsp has more progress per second than {self.setting.spec}"
        return (
            f"a step of {best.spec} takes {1e3 * best.step_s:.3g} ms where one of bsp takes {1e3 * bsp_s:.3g} ms, "
            f"and is worth {best.worth_low:.2f} to {best.worth_high:.2f} of it"
        )

    def _score(self, setting: Setting, time: float) -> float:
        """Return the logarithm of progress per second over BSP's, by the cautious value of a step's worth."""
        mean, deviation = self._worth.of(setting, drift=self._times.drift(setting))
        if self._trial is not None and setting == self.setting:
            deviation = 0.0  # the trial is to say how much it is worth
        cautious = mean - self._numbers.caution * deviation
        return (1 + self._numbers.lost_steps) * cautious - math.log(time)

    def _own(self, setting: Setting, times_s: Mapping[Setting, float]) -> Setting:
        """Return a setting with the step sizes that fit the optimizer now."""
        if setting.on_store:
            return setting
        return next((it for it in times_s if it == setting), setting)

    def _is_strict(self, times_s: Mapping[Setting, float], reading: Reading) -> bool:
        """Return True at the beginning, and from the review on after which the end would begin."""
        numbers, progress = self._numbers, reading.progress
        if self._num_reviews < numbers.warm_up:
            return True
        if progress and not self._finishes:
            share = self._strict_share(times_s)
            until_next = self._interval(reading.clock, trial=False) * progress / reading.clock
            ahead = 1.5 if self.setting.on_store else 0.5  # clocks differ on the store, and it takes a while to leave
            self._finishes = progress + ahead * until_next >= 1 - share
        return self._finishes

    def _strict_share(self, times_s: Mapping[Setting, float]) -> float:
        """Return the share of the steps at the end that are without slack: fewer the slower they are."""
        strict_s = min(time_s for it, time_s in times_s.items() if it.is_strict)
        ratio, most = strict_s / min(times_s.values()), self._numbers.finish_time
        return min(self._numbers.finish, most / (most + (1 - most) * ratio))

    def _go_to(self, setting: Setting, *, restore: bool, alarmed: bool) -> None:
        tightens, loosens = self._tightens(setting), self._loosens(setting)
        before, self.setting = self.setting, setting
        if setting.has_outer != before.has_outer and self._guard is not None:
            self._guard.tightened()  # an outer momentum is another optimizer's steps
        self._was_loose = self._was_loose or setting != SYNCHRONOUS
        if before == setting:
            if restore:
                self._movement.forget()
            return
        if restore or tightens:
            self._movement.forget()
            if tightens and not alarmed and self._guard is not None:
                self._guard.tightened()
        if loosens:
            self._trial = Trial(tuple(self._points)) if len(self._points) > 1 else None
        else:
            self._end_trial(forget=True)

    def _loosens(self, setting: Setting) -> bool:
        """Return True if steps get more slack, or as much of another kind."""
        own = self.setting
        is_new = kind_of(setting) not in (None, kind_of(own))
        return setting.slack > own.slack or (is_new and setting.slack == own.slack)

    def _tightens(self, setting: Setting) -> bool:
        """Return True if gradients are no longer taken at each worker's own parameters, or no longer at those alone.

        Speeds, losses and norms before such a change are no measure of those after it.
        """
        if setting == self.setting:
            return False
        return setting.slack < self.setting.slack or setting.on_store or self.setting.on_store

    def _keeps(self, reading: Reading, setting: Setting, *, ordinary: bool) -> bool:
        """Return True if the state is worth keeping: nothing is wrong, on trial, or on the way to or from the store."""
        on_the_way = self.setting != setting and (self.setting.on_store or setting.on_store)
        keeps = ordinary and self._trial is None and self._guard is not None and self._guard.good
        if keeps and not on_the_way:
            self._kept.append((self._num_reviews, reading.loss))
            self._highest_kept = max(self._highest_kept, abs(reading.loss))
        return keeps

    def _may_restore(self, loss: float) -> bool:
        """Return True if going back to a kept state is of use: slack came after it, and the loss is not below its own.

        What diverges without slack would do so under BSP; there only a loss that is hopeless is taken back.
        """
        if not self._kept or self._num_restores >= MOST_RESTORES:
            return False
        review, kept = self._kept[0]
        if not loss < HOPELESS * self._highest_kept:
            return True
        return self._last_loose > review and loss >= kept - GOT_ON * abs(kept)


def _ends(mean: float, deviation: float) -> tuple[float, float]:
    """Return what is a standard deviation to either side of a logarithm's mean."""
    return math.exp(mean - deviation), math.exp(mean + deviation)
