"""Decides a review: what training can afford, what the system wants, and the smaller of the two.

A change that makes steps shorter is on trial until it has shown that training goes on (`progress`); one that fails is
undone. An alarm of the guard overrules all: the run goes on under plain BSP, in full and not rounded, so neither
staleness nor rounding can be what is wrong. Whatever makes steps shorter comes back by the ordinary decision of a later
review.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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

__all__ = ["Controller", "Decision"]

MAX_RESTORES = 3
"""Times that an alarm takes a run back; after that it goes on under BSP, where staleness cannot be what is wrong."""


GOT_ON = 0.02
"""Share by which the loss must be below that of a kept state for it to be no use going back there."""


class _Component(Protocol):
    def observe(self, reading: Reading) -> ComponentAdvice: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How the workers go on.

    Attributes:
        setting: Period and delay.
        shares: By rank; empty is equal shares.
        keep: The state is worth keeping.
        restore: The workers go back to the older of the two states that they kept last.
        alarm: Training diverged, and this is what is done about it.
        reason: A sentence.
        inputs: The figures behind it, by name.
    """

    setting: Setting
    shares: tuple[float, ...]
    keep: bool
    restore: bool
    reason: str
    inputs: tuple[tuple[str, float], ...]
    alarm: bool = False


class Controller:
    """The components of one run.

    Args:
        components: Which of them there are, and their parameters.
    """

    __slots__ = (
        "_components",
        "_guard",
        "_has_kept",
        "_kept_losses",
        "_movement",
        "_num_restores",
        "_pairs",
        "_progress",
        "_system",
        "_was_loose",
        "setting",
        "shares",
    )

    def __init__(self, components: Components) -> None:
        self.setting: Setting = SYNCHRONOUS
        """In force."""
        self.shares: tuple[float, ...] = ()
        """In force; empty is equal shares."""
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
        self._guard = None if components.guard is None else Guard(components.guard)
        self._progress = None if components.progress is None else ProgressJudge(components.progress)
        self._pairs = GradientPairs()
        self._movement = Movement()
        self._has_kept = False
        """The workers have a state to go back to; on the ways to the store and from it they keep none."""
        self._kept_losses: deque[float] = deque(maxlen=2)
        """Of the steps before each of the states that the workers have kept, two at most."""
        self._num_restores = 0
        self._was_loose = False
        """Whether the run has ever been under anything but plain BSP."""

    @property
    def knows_transfer(self) -> bool:
        """Whether an exchange has been measured yet."""
        return self._system.knows_transfer

    def decide(self, reviews: Mapping[int, Reviewed], *, metric: float | None) -> Decision:
        """Answer the reviews of all workers at one clock."""
        reading = put_together(
            reviews, gradient=self._pairs.take(reviews), metric=metric, speed=self._movement.take(reviews)
        )
        self._system.observe(reviews, setting=self.setting)
        advices = {name: component.observe(reading) for name, component in self._components.items()}
        alarm = None if self._guard is None else self._guard.observe(reading)
        if alarm is not None and alarm.early and not self._was_loose and math.isfinite(reading.loss):
            assert self._guard is not None, "who gave alarm"
            self._guard.excuse()  # losses may leap at the beginning, and this is BSP's own leap
            alarm = None
        failure = None if self._progress is None else self._progress.observe(reading)
        choice = self._system.choose(
            allowance=self._allowance(advices.values()),
            current=self.setting,
            shares=self.shares,
            only=None if alarm is None else SYNCHRONOUS,
        )
        if self._progress is not None:
            advices["progress"] = self._progress.advice
        inputs = dict(choice.inputs)
        inputs |= {f"{name}.slack": float(advice.slack) for name, advice in advices.items()}
        if self._system.has_racks:
            inputs |= {f"{name}.drift": float(advice.drift) for name, advice in advices.items()}
        inputs |= {f"{name}.{key}": float(v) for name, advice in advices.items() for key, v in advice.inputs.items()}
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
        keep = alarm is None and failure is None and not self.on_trial and self._guard is not None and self._guard.good
        on_the_way = self.setting != choice.setting and (self.setting.on_store or choice.setting.on_store)
        if keep and not on_the_way:
            self._has_kept = True
            self._kept_losses.append(reading.loss)
        if restore and len(self._kept_losses) > 1:
            self._kept_losses.pop()  # the older state is all that the workers have then
        tightens = self._tightens(choice.setting)
        if restore or tightens:
            self._movement.forget()
        if tightens and alarm is None and self._guard is not None:
            self._guard.tightened()
        if self._progress is not None:
            if alarm is not None and not alarm.averted:
                self._progress.failed()
            if choice.setting != self.setting:
                cost = inputs["system.step_s"] / inputs["system.before_step_s"] if choice.inputs else 0.0
                self._progress.changed(self.setting, choice.setting, cost=cost)
        self._was_loose = self._was_loose or choice.setting != SYNCHRONOUS
        self.setting, self.shares = choice.setting, choice.shares
        return Decision(
            setting=choice.setting,
            shares=choice.shares,
            keep=keep,
            restore=restore,
            alarm=alarm is not None,
            reason=reason,
            inputs=tuple((name, value) for name, value in sorted(inputs.items()) if math.isfinite(value)),
        )

    def _allowance(self, advices: Iterable[ComponentAdvice]) -> Allowance:
        """The least that any component allows."""
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

    @property
    def on_trial(self) -> bool:
        """Whether the last change is still on trial."""
        return self._progress is not None and self._progress.on_trial

    def _may_restore(self, loss: float) -> bool:
        """Whether there is a state to go back to, and training has not clearly got on since then."""
        if not self._has_kept or self._num_restores >= MAX_RESTORES:
            return False
        kept = self._kept_losses[0]
        return not loss < kept - GOT_ON * abs(kept)

    def _return_text(self, choice: SystemChoice, *, restore: bool) -> str:
        """What is done about a change that training did not bear."""
        return f"on with {choice.setting.spec}" + (" and from the last good state" if restore else "")

    def _tightens(self, setting: Setting) -> bool:
        """Whether the next setting has less slack, or is on the way to the store or from it.

        Then what is under way is merged at once, or the servers' optimizer takes over; and with less slack speeds are
        higher, because averages of many local steps have less noise.
        """
        if setting == self.setting:
            return False
        return setting.slack < self.setting.slack or setting.on_store or self.setting.on_store

    def _fall_back_text(self, *, restore: bool) -> str:
        """What is done about an alarm, from the setting in force."""
        if self.setting != SYNCHRONOUS:
            return "back to bsp" + (" and to the last good state" if restore else "")
        return "back to the last good state" if restore else "the run stays with bsp"

    def _objection(self, choice: SystemChoice, advices: Mapping[str, ComponentAdvice]) -> str:
        """Who keeps training from what the system side wants, as the rest of a sentence; empty where nobody does."""
        wanted, by_racks = self._system.drift(choice.least), choice.least.by_racks
        if not advices or self._system.drift(choice.setting) >= wanted:
            return ""
        if wanted <= min(advice.drift if by_racks else advice.slack for advice in advices.values()):
            barred = self._progress is not None and not self._progress.allows(choice.least)
            return f"; {choice.least.spec} is barred, since a trial of its kind has failed" if barred else ""
        of_racks = min(advices, key=lambda name: advices[name].drift)
        if (choice.setting.by_racks or choice.least.by_racks) and advices[of_racks].drift < math.inf:
            strictest, slack = of_racks, self._system.slack_by_racks(advices[of_racks].drift)
            whose = " between racks" if slack else ""
        else:
            strictest = min(advices, key=lambda name: advices[name].slack)
            slack, whose = advices[strictest].slack, " of single workers" if choice.setting.by_racks else ""
        return f"; {advices[strictest].reason}, so {strictest} allows a slack of {slack:g} steps{whose}"
