"""Delayed gradients: the mean gradient of step c is applied after step c + d, and its exchange runs behind the steps.

"Pipe-SGD" (Li et al. 2018); SGD with a constant delay goes back to Langford, Smola and Zinkevich 2009, "Slow Learners
are Fast", and is analysed together with compression by Stich and Karimireddy 2020, "The Error-Feedback Framework".

    x_c = step(x_{c-1}, mean gradient of step c - d)          the gradient of step c is taken at x_{c-1}

All workers step with the same gradients in the same order, so their parameters are equal, as under BSP; no worker has a
parameter of its own. Each update is computed from parameters that are d versions old when it is applied: the staleness
is d, always, where asynchronous policies have it vary. The first d steps change nothing, and at the end the d gradients
under way are applied.

An exchange has the time of d steps before anybody waits for it, so communication costs no time until an exchange takes
longer than d steps, or exchanges take longer than steps. The price is staleness, which limits the learning rate: where
BSP is stable up to a rate of 2/L, on curvature L, this is up to ``2 sin(π / (4d + 2)) / L``, half of it with d = 1 and
0.31 of it with d = 2 (Levin and May 1976, on ``x_c = x_{c-1} - a x_{c-1-d}``).

Zhu et al. 2021, "Delayed Gradient Averaging", step with their own gradient at once and replace it by the mean when that
has come: less is stale, but replicas are never equal, and by an optimizer that is not linear in the gradient they stay
apart. For plain SGD and d = 1 this is ``local_sgd:1,delay=1``, which is there already.

`DelayedMachine` is the barrier's with rounds of one step, of which d may be open behind the first.
"""

from collections import deque
from dataclasses import dataclass
from typing import Annotated, ClassVar

from msgspec.structs import replace

from plesio.core.within import AT_LEAST_0
from plesio.policies.barrier import BarrierMachine
from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.policies.events import Action, Apply
from plesio.policies.policy import Policy, PolicyMachine, UpdateKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Delayed(Policy):
    """Every step the workers' gradients are averaged, behind the next ``delay`` steps, and applied after them.

    Args:
        delay: d, steps between a gradient and its application; 0 is BSP.
        compression: Compression of gradients.

    >>> policy = Delayed(delay=2)
    >>> policy.spec, policy.bound, policy.merges_at(2), policy.merges_at(3)
    ('delayed:2', 2, None, 1)
    """

    name: ClassVar[str] = "delayed"
    _argument: ClassVar[str | None] = "delay"
    update: ClassVar[UpdateKind] = "gradient"

    delay: Annotated[int, AT_LEAST_0] = 1
    compression: Compression = NO_COMPRESSION

    def start(self, *, clock: int = 0) -> PolicyMachine:
        return DelayedMachine(delay=self.delay, clock=clock)


class DelayedMachine(BarrierMachine):
    """Completes the round of every step when all live workers have contributed to it; d more may be open.

    Invariants, beside those of the barrier: an update of the round at clock c was computed when the rounds up to c - 1
    - d had been applied, so its staleness is the number of versions that the d rounds before its own have made: d, less
    those that made none (all updates refused) or were before the first.
    """

    def __init__(self, *, delay: int, clock: int = 0) -> None:
        super().__init__(period=1, clock=clock)
        self._delay = delay
        self._made: deque[bool] = deque(maxlen=delay)
        """For each of the last d rounds, True if it made a version."""

    def _complete_round(self) -> list[Action]:
        actions = super()._complete_round()
        staleness = sum(self._made)
        self._made.append(any(isinstance(action, Apply) for action in actions))
        return [
            replace(action, staleness=(staleness,) * len(action.updates)) if isinstance(action, Apply) else action
            for action in actions
        ]

    def validate(self) -> None:
        """Raise AssertionError when an invariant of the barrier or of the class's head does not hold."""
        BarrierMachine.validate(self)
        assert sum(self._made) <= self._version
