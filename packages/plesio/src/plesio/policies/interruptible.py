"""A policy in whose run all workers can be made to stand still together, for a checkpoint.

A static policy never changes, so its workers would never be asked to stop. Here it is the only stage of a run that
could change (`plesio.policies.steered`): on a collective the workers send empty reports every few steps, so that an
answer can name a clock at which all of them stand; on the store a `Pause` ends the stage, and the same begins again.
A schedule (`plesio.policies.switch`) has such reviews beside those at its changes. The adaptive policy needs none of
this: it has reviews of its own.

    interruptible:bsp · interruptible:ssp:4 · interruptible:switch:bsp/asp@200

Users never write it; the event log of a run with checkpoints names it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from plesio.policies.events import Reviewed
from plesio.policies.policy import NEVER, Decision, Director, Policy
from plesio.policies.review_clocks import next_review
from plesio.policies.steered import SteeredPolicy

EVERY = 10
"""Steps between two moments on a collective at which all could stand still."""


def _of_policy(name: str) -> Any:
    """Make a property that is the wrapped policy's."""
    return property(attrgetter(f"policy.{name}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptible(SteeredPolicy):
    """Runs ``policy`` so that it can be stopped.

    >>> from plesio.policies import SSP
    >>> Interruptible(policy=SSP(bound=4)).spec, Interruptible(policy=SSP(bound=4)).title
    ('interruptible:ssp:4', 'ssp:4')
    """

    name: ClassVar[str] = "interruptible"

    policy: Policy

    first = _of_policy("first")
    pushes = _of_policy("pushes")
    bound = _of_policy("bound")
    synchronous = _of_policy("synchronous")
    goes_by_racks = _of_policy("goes_by_racks")
    shards = _of_policy("shards")
    needs_server_optimizer = _of_policy("needs_server_optimizer")
    most_servers = _of_policy("most_servers")
    title = _of_policy("title")

    @property
    def spec(self) -> str:
        return f"{self.name}:{self.policy.spec}"

    def director(self, *, clock: int = 0) -> Director:
        return _Regular(self.policy.director(clock=clock))


class _Regular:
    """Requests reports every `EVERY` steps on a collective, beside the reviews of another director."""

    def __init__(self, director: Director) -> None:
        self._director = director
        self._policy = director.first
        self._due = False
        """True if the next review belongs to the other director."""

    @property
    def first(self) -> Policy:
        return self._director.first

    def review(self, reviews: Mapping[int, Reviewed]) -> Decision:
        """Return the other director's answer if it asked for this review; otherwise all continue unchanged."""
        if not self._due:
            return Decision(policy=self._policy)
        return self._follow(self._director.review(reviews))

    def over(self, clock: int) -> Decision | None:
        decision = self._director.over(clock)
        return None if decision is None else self._follow(decision)

    def _follow(self, decision: Decision) -> Decision:
        self._policy = decision.policy
        return decision

    def next_review(self, since: int) -> tuple[int, int]:
        """Return the other director's next review, or the next regular one if that is sooner."""
        asked = self._director.next_review(since)
        own = (NEVER, NEVER)
        if self._policy.exchange == "collective":
            own = next_review(since, period=self._policy.period, delay=self._policy.delay, every=EVERY)
        self._due = asked[1] <= own[1]
        return asked if self._due else own
