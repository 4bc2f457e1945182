"""Policies by a schedule: one after another, each from a clock that is known before the run.

Li et al. 2021, "Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning", begin with BSP, whose
updates are exact while the loss falls fast, and go on with ASP, under which no worker waits for a slow one; they find
that the switch may come after a small part of the work. Here any of ``bsp``, ``local_sgd``, ``diloco``, ``ssp``,
``asp`` and ``hier`` may follow another, any number of times, so the schedule can also end synchronously.

    switch:bsp/asp@200                      BSP for 200 steps, then ASP
    switch:bsp/ssp:4@100/local_sgd:4@300    three stages
    switch:bsp/hier:bsp/ssp:4@20/bsp@40     BSP, then racks that share the store, then BSP again

A stage on a collective ends after exactly the step that is named. One on the store ends when the first worker has got
there: each worker stops at its next exchange, and all go on from the clock of the furthest one.
`plesio.policies.steered` makes the change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, ClassVar

from plesio.core.errors import PolicySpecError
from plesio.core.within import Within
from plesio.policies.asp import ASP
from plesio.policies.bsp import BSP
from plesio.policies.events import Reviewed
from plesio.policies.policy import NEVER, Decision, Director, Policy, UpdateKind
from plesio.policies.steered import LEAD, SteeredPolicy

_FIRST_CHANGE = 2
"""Earliest clock of a change: the step before it tells the server that the workers are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(SteeredPolicy):
    """Trains under ``policies[0]`` up to step ``clocks[0]``, under ``policies[1]`` up to ``clocks[1]``, and so on.

    Args:
        policies: `BSP`, `LocalSGD` and `DiLoCo` on the collective, `SSP`, `ASP` and `Hierarchical`.
        clocks: Steps after which each policy but the first begins; rising, one less than there are policies.

    Raises:
        PolicySpecError: Another policy, one that follows itself, or clocks that do not rise from 2.

    >>> Switch(policies=(BSP(), ASP()), clocks=(200,)).spec
    'switch:bsp/asp@200'
    """

    name: ClassVar[str] = "switch"

    policies: tuple[Policy, ...] = field(default=(BSP(), ASP()))
    clocks: tuple[Annotated[int, Within(_FIRST_CHANGE)], ...] = (200,)

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if len(self.policies) < 2 or len(self.clocks) != len(self.policies) - 1:
            raise PolicySpecError(
                f"switch: {len(self.policies)} policies and {len(self.clocks)} clocks; "
                'every policy but the first needs the clock at which it begins, as in "switch:bsp/asp@200"'
            )
        for policy in self.policies:
            if not policy.can_be_stage:
                raise PolicySpecError(
                    f'switch: "{policy.spec}" cannot be a stage; write bsp or local_sgd on the collective, diloco, '
                    "ssp, asp or hier"
                )
        for before, after in pairwise(self.clocks):
            if after <= before:
                raise PolicySpecError(f"switch: a change at {after} follows one at {before}; write them in their order")
        for one, other in pairwise(self.policies):
            if one == other:
                raise PolicySpecError(f'switch: "{one.spec}" follows itself; write it once')

    @property
    def first(self) -> Policy:
        """Policy of the first stage."""
        return self.policies[0]

    @property
    def goes_by_racks(self) -> bool:
        """True if any of the stages goes by racks."""
        return any(policy.goes_by_racks for policy in self.policies)

    @property
    def bound(self) -> float:
        """The largest lead that any of the policies allows."""
        return max(policy.bound for policy in self.policies)

    @property
    def pushes(self) -> UpdateKind | None:
        """``gradient`` if any stage on the store pushes gradients."""
        pushed = {policy.pushes for policy in self.policies}
        return "gradient" if "gradient" in pushed else "delta" if "delta" in pushed else None

    @property
    def spec(self) -> str:
        """``switch:FIRST/SECOND@CLOCK...``, each policy's own spec."""
        rest = [f"{policy.spec}@{clock}" for policy, clock in zip(self.policies[1:], self.clocks, strict=True)]
        return f"{self.name}:{'/'.join([self.policies[0].spec, *rest])}"

    def director(self, *, clock: int = 0) -> Director:
        return _Schedule(self, stage=sum(change <= clock for change in self.clocks))


class _Schedule:
    def __init__(self, policy: Switch, *, stage: int) -> None:
        self._policy = policy
        self._stage = stage

    @property
    def _ends(self) -> int:
        clocks = self._policy.clocks
        return clocks[self._stage] if self._stage < len(clocks) else NEVER

    @property
    def first(self) -> Policy:
        return self._policy.policies[self._stage]

    def review(self, reviews: Mapping[int, Reviewed]) -> Decision:
        """Go to the next stage: a collective one is only reviewed where it ends."""
        return self._turn()

    def over(self, clock: int) -> Decision | None:
        """Go to the next stage, if a worker has reached the end of this one."""
        return self._turn() if clock >= self._ends else None

    def _turn(self) -> Decision:
        ended = self._ends
        self._stage += 1
        return Decision(policy=self._policy.policies[self._stage], reason=f"the schedule changes at step {ended}")

    def next_review(self, since: int) -> tuple[int, int]:
        """Return no clock in a stage on the store, nor in the last one."""
        if self._policy.policies[self._stage].exchange == "store" or self._ends == NEVER:
            return NEVER, NEVER
        holds = max(self._ends, since + _FIRST_CHANGE)
        return max(since + 1, holds - LEAD), holds
