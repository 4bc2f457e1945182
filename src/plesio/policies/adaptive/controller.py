"""Decides a review: what training can afford, what the system wants, and the smaller of the two."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from plesio.policies.adaptive.bound import BoundTuner
from plesio.policies.adaptive.gradient import GradientMonitor
from plesio.policies.adaptive.guard import Guard
from plesio.policies.adaptive.noise import NoiseMonitor
from plesio.policies.adaptive.phase import PhaseDetector
from plesio.policies.adaptive.reading import Advice, Reading
from plesio.policies.adaptive.review import GradientPairs, put_together
from plesio.policies.adaptive.setting import Setting
from plesio.policies.adaptive.system import SystemMonitor
from plesio.policies.events import Reviewed

if TYPE_CHECKING:  # the policy's description starts the machine that holds this
    from plesio.policies.adaptive.adaptive import Adaptive

__all__ = ["Controller", "Decision"]

MAX_RESTORES = 3
"""Times that a run is taken back; after that it goes on under BSP, where staleness cannot be what is wrong."""


class _Component(Protocol):
    def observe(self, reading: Reading) -> Advice: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How the workers go on.

    Attributes:
        setting: Period and delay.
        shares: By rank; empty is equal shares.
        keep: The state is worth keeping.
        restore: The workers go back to the state that they kept last.
        reason: A sentence.
        inputs: The figures behind it, by name.
    """

    setting: Setting
    shares: tuple[float, ...]
    keep: bool
    restore: bool
    reason: str
    inputs: tuple[tuple[str, float], ...]


class Controller:
    """The components of one run.

    Args:
        policy: Which of them, and their parameters.
    """

    __slots__ = (
        "_components",
        "_guard",
        "_num_restores",
        "_pairs",
        "_system",
        "setting",
        "shares",
    )

    def __init__(self, policy: "Adaptive") -> None:
        self.setting: Setting = policy.first_setting
        """In force."""
        self.shares: tuple[float, ...] = ()
        """In force; empty is equal shares."""
        self._system = SystemMonitor(policy.system)
        self._components: dict[str, _Component] = {}
        if policy.gradient is not None:
            self._components["gradient"] = GradientMonitor(policy.gradient)
        if policy.noise is not None:
            self._components["noise"] = NoiseMonitor(policy.noise)
        if policy.phase is not None:
            self._components["phase"] = PhaseDetector(policy.phase)
        if policy.feedback is not None:
            self._components["feedback"] = BoundTuner(policy.feedback)
        self._guard = None if policy.guard is None else Guard(policy.guard)
        self._pairs = GradientPairs()
        self._num_restores = 0

    @property
    def knows_transfer(self) -> bool:
        """Whether an exchange has been measured yet."""
        return self._system.knows_transfer

    def decide(self, reviews: Mapping[int, Reviewed], *, metric: float | None) -> Decision:
        """Answer the reviews of all workers at one clock."""
        reading = put_together(reviews, gradient=self._pairs.take(reviews), metric=metric)
        self._system.observe(reviews, setting=self.setting)
        advices = {name: component.observe(reading) for name, component in self._components.items()}
        strictest = min(advices, key=lambda name: advices[name].slack, default="")
        slack = advices[strictest].slack if strictest else math.inf
        alarm = None if self._guard is None else self._guard.observe(reading)
        if alarm is not None:
            slack = 0
        choice = self._system.choose(slack=slack, current=self.setting, shares=self.shares)
        inputs = dict(choice.inputs)
        inputs |= {f"{name}.slack": float(advice.slack) for name, advice in advices.items()}
        inputs |= {f"{name}.{key}": float(v) for name, advice in advices.items() for key, v in advice.inputs.items()}
        restore = False
        if alarm is not None:
            inputs |= {f"guard.{key}": float(value) for key, value in alarm.inputs.items()}
            restore = not alarm.averted and self._num_restores < MAX_RESTORES
            self._num_restores += restore
            reason = f"{alarm.reason}: back to bsp" + (" and to the last good state" if restore else "")
        elif strictest and choice.setting.slack < choice.least.slack:
            reason = f"{choice.reason}; {advices[strictest].reason}, so {strictest} allows a slack of {slack:g} steps"
        else:
            reason = choice.reason
        self.setting, self.shares = choice.setting, choice.shares
        return Decision(
            setting=choice.setting,
            shares=choice.shares,
            keep=alarm is None and self._guard is not None and self._guard.good,
            restore=restore,
            reason=reason,
            inputs=tuple((name, value) for name, value in sorted(inputs.items()) if math.isfinite(value)),
        )
