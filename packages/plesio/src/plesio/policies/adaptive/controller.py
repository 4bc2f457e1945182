"""Decides each review: the setting is the smaller of what training affords and what the system side wants.

A change that shortens steps is on trial until the loss shows that training goes on (`progress`); a change that fails is
undone. An alarm of the guard overrules all else: the run continues under plain BSP without compression, so neither
staleness nor rounding can be the cause. Later reviews may loosen the setting again in the ordinary way.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from plesio.policies.adaptive.config.components import Components
from plesio.policies.adaptive.readings.reading import ComponentAdvice, Reading
from plesio.policies.adaptive.readings.review import GradientPairs, Movement, put_together
from plesio.policies.adaptive.system.choice import Allowance, SystemChoice
from plesio.policies.adaptive.system.monitor import SystemMonitor
from plesio.policies.adaptive.system.setting import SYNCHRONOUS, Setting
from plesio.policies.adaptive.training.bound import BoundTuner
from plesio.policies.adaptive.training.gradient import GradientMonitor
from plesio.policies.adaptive.training.guard import Guard
from plesio.policies.adaptive.training.noise import NoiseMonitor
from plesio.policies.adaptive.training.phase import PhaseDetector
from plesio.policies.adaptive.training.progress import ProgressJudge
from plesio.policies.events import Reviewed
from plesio.policies.policy import Decision, Policy
from plesio.policies.review_clocks import FIRST_CLOCK, FIRST_REVIEW, next_review
from plesio.policies.steered import LEAD

__all__ = ["Controller"]

MAX_RESTORES = 3
"""Most times that alarms take a run back. After them it continues under BSP, where staleness cannot be the cause."""


GOT_ON = 0.02
"""Share by which the loss must be below that of a kept state, so that going back to this state is of no use."""


class _Component(Protocol):
    def observe(self, reading: Reading) -> ComponentAdvice: ...


class Controller:
    """Decides the reviews of one run by its components."""

    def __init__(self, components: Components) -> None:
        self.setting: Setting = SYNCHRONOUS
        """The setting in force."""
        self.shares: tuple[float, ...] = ()
        """The shares in force; empty for equal shares."""
        self._review = components.review
        self._system = SystemMonitor(components.system, topology=components.topology)
        self._components: dict[str, _Component] = {}
        if components.gradient is not None:
            self._components["gradient"] = GradientMonitor(components.gradient)
        if components.noise is not None:
            self._components["noise"] = NoiseMonitor(components.noise)
        if components.phase is not None:
            self._components["phase"] = PhaseDetector(components.phase)
        if components.feedback is not None:
            self._components["feedback"] = BoundTuner(components.feedback)
        self._most_slack = math.inf if components.feedback is None else components.feedback.largest_slack
        self._guard = None if components.guard is None else Guard(components.guard)
        self._progress = None if components.progress is None else ProgressJudge(components.progress)
        self._pairs = GradientPairs()
        self._movement = Movement()
        self._has_kept = False
        """True if the workers have a state to go back to; none is kept on the way to the store or from it."""
        self._kept_losses: deque[float] = deque(maxlen=2)
        """Mean loss of the steps before each state that the workers have kept, of two at most."""
        self._num_restores = 0
        self._was_loose = False
        """True if the run was ever under anything but plain BSP."""

    @property
    def first(self) -> Policy:
        """BSP, until an exchange has been measured."""
        return SYNCHRONOUS.policy

    def over(self, clock: int) -> Decision | None:
        """Return None: stages end at reviews alone."""
        return None

    def next_review(self, since: int) -> tuple[int, int]:
        """Return the clocks of the next review and of its answer: the earliest, until an exchange is measured."""
        if since == 0:
            return FIRST_REVIEW, FIRST_CLOCK
        every = self._review.interval(since, trial=self._on_trial) if self._system.knows_transfer else 1
        return next_review(since, period=self.setting.period, delay=self.setting.delay, every=every)

    def review(self, reviews: Mapping[int, Reviewed], *, metric: float | None) -> Decision:
        reading = self._read(reviews, metric=metric)
        self._system.observe(reviews, setting=self.setting)
        advices = {name: component.observe(reading) for name, component in self._components.items()}
        alarm = None if self._guard is None else self._guard.observe(reading, settled=not self._on_trial)
        if alarm is not None and alarm.early and not self._was_loose and math.isfinite(reading.loss):
            assert self._guard is not None, "an alarm without a guard"
            self._guard.excuse()  # losses may leap at the beginning, and this is BSP's own leap
            alarm = None
        # the trial ends, if it fails, before the choice: what it bars must not be chosen again
        failure = None if self._progress is None else self._progress.observe(reading)
        choice = self._system.choose(
            allowance=self._allowance(advices.values()),
            current=self.setting,
            shares=self.shares,
            only=None if alarm is None else SYNCHRONOUS,
        )
        if alarm is None and failure is None and choice.setting != self.setting:
            choice = self._paying_back(choice, reading)
        # the judge's advice bars settings one by one (`_allowance`); in the log it stands beside the others
        if self._progress is not None:
            advices["progress"] = self._progress.advice
        inputs = dict(choice.inputs)
        inputs |= {f"{name}.slack": float(advice.slack) for name, advice in advices.items()}
        if self._system.has_racks:
            inputs |= {f"{name}.drift": float(advice.drift) for name, advice in advices.items()}
        inputs |= {f"{name}.{key}": float(v) for name, advice in advices.items() for key, v in advice.inputs.items()}
        # an alarm takes precedence over a failed trial, and that over the ordinary reason
        restore = False
        if failure is not None:
            inputs |= {f"progress.{key}": float(value) for key, value in failure.inputs.items()}
        if alarm is not None:
            inputs |= {f"guard.{key}": float(value) for key, value in alarm.inputs.items()}
            restore = not alarm.averted and self._may_restore(reading.loss)
            reason = f"{alarm.reason}: {self._fall_back_text(restore=restore)}"
        elif failure is not None:
            restore = failure.harmed and self._may_restore(reading.loss)
            reason = f"{failure.reason}: {self._return_text(choice, restore=restore)}"
        else:
            reason = choice.reason + self._objection(choice, advices)
        self._num_restores += restore and alarm is not None
        # what a change did to training is not known before its trial is over: until then nothing new is kept
        keep = alarm is None and failure is None and not self._on_trial and self._guard is not None and self._guard.good
        on_the_way = self.setting != choice.setting and (self.setting.on_store or choice.setting.on_store)
        if keep and not on_the_way:
            self._has_kept = True
            self._kept_losses.append(reading.loss)
        if restore and len(self._kept_losses) > 1:
            self._kept_losses.pop()  # the older state is all that the workers have then
        # after a leap of the parameters, or with less slack, speeds and losses before it are no measure
        tightens = self._tightens(choice.setting)
        if restore or tightens:
            self._movement.forget()
        if tightens and alarm is None and self._guard is not None:
            self._guard.tightened()
        if self._progress is not None:
            if alarm is not None and not alarm.averted:
                self._progress.diverged(self.setting)  # first: it ends the trial that is on
            if choice.setting != self.setting:
                cost = inputs["system.step_s"] / inputs["system.before_step_s"] if choice.inputs else 0.0
                self._progress.changed(self.setting, choice.setting, cost=cost)
        self._was_loose = self._was_loose or choice.setting != SYNCHRONOUS
        self.setting, self.shares = choice.setting, choice.shares
        return Decision(
            policy=choice.setting.policy,
            shares=choice.shares,
            keep=keep,
            restore=restore,
            relearn=alarm is None and self._guard is not None and self._guard.has_leapt,
            alarm=alarm is not None,
            reason=reason,
            inputs=tuple((name, value) for name, value in sorted(inputs.items()) if math.isfinite(value)),
        )

    def _read(self, reviews: Mapping[int, Reviewed], *, metric: float | None) -> Reading:
        reading = put_together(
            reviews, gradient=self._pairs.take(reviews), metric=metric, speed=self._movement.take(reviews)
        )
        if not reading.progress:
            return reading
        steps, most = reading.clock * (1 / reading.progress - 1), self._most_slack

        def spent(slack: float, drift: float) -> float:
            return self._system.spent(Allowance(slack=min(slack, most), drift=min(drift, most)), steps=steps)

        return replace(reading, spent=spent)

    def _allowance(self, advices: Iterable[ComponentAdvice]) -> Allowance:
        """Return the least that the components allow, and the settings that failed trials bar."""
        advices = list(advices)
        allowance = Allowance(
            slack=min((advice.slack for advice in advices), default=math.inf),
            drift=min((advice.drift for advice in advices), default=math.inf),
            staleness=min((advice.staleness for advice in advices), default=math.inf),
            efficiency=min((advice.efficiency for advice in advices), default=1.0),
            rack_efficiency=min((advice.rack_efficiency for advice in advices), default=1.0),
            store_efficiency=min((advice.store_efficiency for advice in advices), default=1.0),
        )
        return allowance if self._progress is None else replace(allowance, bears=self._progress.allows)

    def _paying_back(self, choice: SystemChoice, reading: Reading) -> SystemChoice:
        """Return the choice, or one to go on under the setting in force if the run ends before a change pays.

        A change must last for as many steps as lie between two reviews; one to less slack, which is for the final
        parameters, for the fewest that may lie between them.
        """
        since = 0 if choice.setting.slack < self.setting.slack else reading.clock
        left = math.inf
        if reading.progress:
            left = round(reading.clock * (1 / reading.progress - 1)) - max(LEAD, self.setting.delay)
        if left >= self._review.interval(since, trial=False):
            return choice
        reason = f"too few steps are left to change to {choice.setting.spec}"
        inputs = dict(choice.inputs)
        inputs |= {"system.step_s": inputs["system.before_step_s"]} if inputs else {}
        shares = () if self.setting.on_store else choice.shares
        return replace(choice, setting=self.setting, shares=shares, reason=reason, inputs=tuple(inputs.items()))

    @property
    def _on_trial(self) -> bool:
        return self._progress is not None and self._progress.on_trial

    def _may_restore(self, loss: float) -> bool:
        """Return True if there is a state to go back to, and training has not clearly improved since."""
        if not self._has_kept or self._num_restores >= MAX_RESTORES:
            return False
        kept = self._kept_losses[0]
        return not loss < kept - GOT_ON * abs(kept)

    def _return_text(self, choice: SystemChoice, *, restore: bool) -> str:
        return f"on with {choice.setting.spec}" + (" and from the last good state" if restore else "")

    def _tightens(self, setting: Setting) -> bool:
        """Return True if ``setting`` has less slack than the one in force, or enters or leaves the store.

        The exchange under way is then merged at once, or the servers' optimizer takes over. With less slack speeds are
        also higher, because averages of many local steps have less noise.
        """
        if setting == self.setting:
            return False
        return setting.slack < self.setting.slack or setting.on_store or self.setting.on_store

    def _fall_back_text(self, *, restore: bool) -> str:
        if self.setting != SYNCHRONOUS:
            return "back to bsp" + (" and to the last good state" if restore else "")
        return "back to the last good state" if restore else "the run stays with bsp"

    def _objection(self, choice: SystemChoice, advices: Mapping[str, ComponentAdvice]) -> str:
        """Return the rest of a sentence on the component that forbids the wanted setting; empty if none does."""
        wanted, by_racks = self._system.drift(choice.least), choice.least.by_racks
        if not advices or self._system.drift(choice.setting) >= wanted:
            return ""
        if wanted <= min(advice.drift if by_racks else advice.slack for advice in advices.values()):
            barred = self._progress is not None and not self._progress.allows(choice.least)
            return f"; {choice.least.spec} is barred, since its kind has failed" if barred else ""
        of_racks = min(advices, key=lambda name: advices[name].drift)
        if (choice.setting.by_racks or choice.least.by_racks) and advices[of_racks].drift < math.inf:
            strictest, slack = of_racks, self._system.slack_by_racks(advices[of_racks].drift)
            whose = " between racks" if slack else ""
        else:
            strictest = min(advices, key=lambda name: advices[name].slack)
            slack, whose = advices[strictest].slack, " of single workers" if choice.setting.by_racks else ""
        return f"; {advices[strictest].reason}, so {strictest} allows a slack of {slack:g} steps{whose}"
