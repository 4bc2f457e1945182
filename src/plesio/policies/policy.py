"""What every policy is: a frozen description that starts a fresh machine.

The description (`Policy`) is what users write, compare and store; the machine (`Machine`) is what a world runs. A
machine has no clock, no random numbers, no tensors and no sockets: it is a function of the events it has seen.

Two rules are needed by a worker on its own, without hearing of the others, so they are functions of its clock alone and
therefore the same on every rank: `Policy.exchanges_at` and `Policy.merges_at`.
"""

from typing import ClassVar, Literal, Protocol, runtime_checkable

from plesio.policies.events import Action, Event
from plesio.policies.weighting import Weighting

__all__ = ["EXCHANGES", "UPDATES", "ExchangeKind", "Machine", "Policy", "UpdateKind"]

ExchangeKind = Literal["collective", "store"]
UpdateKind = Literal["gradient", "delta"]
EXCHANGES: tuple[ExchangeKind, ...] = ("collective", "store")
UPDATES: tuple[UpdateKind, ...] = ("gradient", "delta")


@runtime_checkable
class Machine(Protocol):
    """A policy at work."""

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Take one event; return what the world must do, in this order."""
        ...

    def validate(self) -> None:
        """Raise AssertionError when the machine's own invariants do not hold (tests call this after every event)."""
        ...


class Policy(Protocol):
    """A consistency policy, as a user writes it: a frozen value, equal to another with the same fields.

    Attributes:
        name: The name in a spec.
    """

    name: ClassVar[str]

    @property
    def exchange(self) -> ExchangeKind:
        """How workers share updates; where that changes, ``collective``, whose membership is fixed."""
        ...

    @property
    def first(self) -> "Policy":
        """The static policy that workers begin under: this one, unless it changes while it runs."""
        ...

    @property
    def pushes(self) -> UpdateKind | None:
        """What workers push to a store; None where there never is one. Gradients need an optimizer that it can run."""
        ...

    @property
    def update(self) -> UpdateKind:
        """What a worker contributes.

        ``gradient``: the mean gradient of the steps since its last exchange; the shared optimizer steps with it.
        ``delta``: how far the worker's own optimizer has moved its parameters since; deltas are averaged or added.
        """
        ...

    @property
    def bound(self) -> float:
        """Largest lead allowed, in steps; ``math.inf`` for none."""
        ...

    @property
    def period(self) -> int:
        """H, local steps between two exchanges."""
        ...

    @property
    def delay(self) -> int:
        """d, steps between starting an exchange and merging its result."""
        ...

    @property
    def weighting(self) -> Weighting:
        """Weight of an update by its staleness."""
        ...

    @property
    def synchronous(self) -> bool:
        """Whether every exchange waits for all live workers, so that data can be dealt in a fixed order."""
        ...

    @property
    def adapts(self) -> bool:
        """Whether it changes while it runs: workers report and are steered."""
        ...

    @property
    def spec(self) -> str:
        """The shortest text that `plesio.policies.parse_policy` turns into an equal policy."""
        ...

    def start(self) -> Machine:
        """A fresh machine that has seen no event."""
        ...

    def exchanges_at(self, clock: int) -> bool:
        """Whether a worker contributes its update when it has finished step ``clock``."""
        ...

    def merges_at(self, clock: int) -> int | None:
        """The clock of the exchange whose result is merged after step ``clock``, or None."""
        ...
