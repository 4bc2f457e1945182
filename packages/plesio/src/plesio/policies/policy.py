"""The interface of every policy: a frozen description that starts a fresh machine.

The description (`Policy`) is the value that users write, compare and store; a world runs the machine (`PolicyMachine`).
A machine has no clock, no random numbers, no tensors and no sockets: it is a function of the events it has seen.

A worker follows two rules on its own, without a message from the others, so they are functions of its clock alone and
the same on every rank: `Policy.exchanges_at` and `Policy.merges_at`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

from plesio.policies.compression import Compression
from plesio.policies.events import Action, Event, Reviewed
from plesio.policies.torch_hook import TorchHook
from plesio.policies.weighting import Weighting

if TYPE_CHECKING:
    from plesio.policies.adaptive.config.guard import GuardConfig
    from plesio.policies.adaptive.config.review import ReviewConfig

__all__ = [
    "EXCHANGES",
    "MOMENTS",
    "UPDATES",
    "Course",
    "Director",
    "ExchangeKind",
    "MomentsKind",
    "Policy",
    "PolicyMachine",
    "UpdateKind",
]

ExchangeKind = Literal["collective", "store"]
UpdateKind = Literal["gradient", "delta"]
MomentsKind = Literal["own", "mean"]
EXCHANGES: tuple[ExchangeKind, ...] = ("collective", "store")
MOMENTS: tuple[MomentsKind, ...] = ("own", "mean")
UPDATES: tuple[UpdateKind, ...] = ("gradient", "delta")


@runtime_checkable
class PolicyMachine(Protocol):
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
        """Kind of exchange; ``collective``, whose membership is fixed, if it changes during the run."""
        ...

    @property
    def first(self) -> "Policy":
        """The static policy that workers begin under: this one, unless it changes while it runs."""
        ...

    @property
    def pushes(self) -> UpdateKind | None:
        """The kind of update that workers push to a store; None without a store.

        Gradients need an optimizer that the store can run.
        """
        ...

    @property
    def update(self) -> UpdateKind:
        """The kind of update that a worker contributes.

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
        """True if every exchange waits for all live workers, so that data can be dealt in a fixed order."""
        ...

    @property
    def compression(self) -> Compression:
        """Compression of an update in a collective; none by default."""
        ...

    @property
    def hook(self) -> TorchHook | None:
        """Torch's own hook that sends DDP's gradients; None where Plesio, or DDP by itself, does."""
        ...

    @property
    def shards(self) -> bool:
        """True if each worker alone holds its part of the parameters, so that none can be lost or come later."""
        ...

    @property
    def blocks(self) -> tuple[str, ...]:
        """Classes of the modules that are gathered one at a time where parameters are in parts; none named: a rule."""
        ...

    @property
    def inner_rate(self) -> float:
        """Share of the learning rate that local steps take; what they come to counts 1/inner_rate times."""
        ...

    @property
    def momentum(self) -> float:
        """Momentum of the outer steps, which are made of the results of local steps."""
        ...

    @property
    def moments(self) -> MomentsKind:
        """Gradients that a normalising optimizer remembers, in local steps: a worker's own, or the mean of all."""
        ...

    @property
    def has_outer_step(self) -> bool:
        """True if the result of local steps is more than their plain mean."""
        ...

    @property
    def undoes_writes(self) -> str | None:
        """Clause on how the policy undoes a script's writes into parameters after a step; None if it does not."""
        ...

    @property
    def inner(self) -> "Policy | None":
        """The policy within a rack; None where racks have none of their own."""
        ...

    @property
    def racks_share_store(self) -> bool:
        """True if one worker exchanges with the store for its whole rack."""
        ...

    @property
    def goes_by_racks(self) -> bool:
        """True if the policy needs to know which workers are near to each other."""
        ...

    @property
    def has_collectives(self) -> bool:
        """True if workers meet in collectives, if only in their rack: no worker can join while they do."""
        ...

    @property
    def needs_server_optimizer(self) -> bool:
        """True if the policy can only be run with servers that can run the optimizer."""
        ...

    @property
    def most_servers(self) -> int | None:
        """Number of servers beyond which more of them make it slower; None if one a host is right."""
        ...

    @property
    def can_be_stage(self) -> bool:
        """True if other policies may come before and after it in one run."""
        ...

    @property
    def adapts(self) -> bool:
        """True if the policy changes while it runs: workers report and are steered."""
        ...

    @property
    def first_review(self) -> tuple[int, int]:
        """Clocks of the first reports and of the answer to them, if workers ever report."""
        ...

    @property
    def review(self) -> "ReviewConfig | None":
        """The measurements that workers report; None where no report is read."""
        ...

    @property
    def guard(self) -> "GuardConfig | None":
        """Limits by which workers watch for divergence; None if they do not."""
        ...

    @property
    def remembers(self) -> bool:
        """True if decisions follow from all past events, and not from the clock alone."""
        ...

    @property
    def title(self) -> str:
        """The policy's name in results."""
        ...

    @property
    def spec(self) -> str:
        """The shortest text that `plesio.policies.parse_policy` turns into an equal policy."""
        ...

    def start(self, *, clock: int = 0) -> PolicyMachine:
        """Start a fresh machine that has seen no event.

        Args:
            clock: Clock at which the workers begin.
        """
        ...

    def director(self, *, clock: int = 0) -> "Director":
        """Return a director of the policy as one stage of a changing run; workers begin at ``clock``."""
        ...

    def exchanges_at(self, clock: int) -> bool:
        """Return True if a worker contributes its update when it has finished step ``clock``."""
        ...

    def merges_at(self, clock: int) -> int | None:
        """Return the clock of the exchange whose result is merged after step ``clock``, or None."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Static policy and actions of the next steps.

    Attributes:
        policy: The static policy; on the store `SSP` or `ASP`, of workers or of racks.
        shares: Shares of each round's samples, by rank; empty for equal shares. On the store there are none.
        keep: True if the present state is worth keeping.
        restore: True if the workers go back to the older of the two states that they kept last.
        alarm: True if training diverged; the other attributes are the response.
        reason: One sentence.
        inputs: The figures behind the course, by name.
    """

    policy: Policy
    shares: tuple[float, ...] = ()
    keep: bool = False
    restore: bool = False
    alarm: bool = False
    reason: str = ""
    inputs: tuple[tuple[str, float], ...] = ()


class Director(Protocol):
    """Decides the course of a run."""

    @property
    def first(self) -> Policy:
        """The policy to begin with."""
        ...

    def review(self, reviews: Mapping[int, Reviewed], *, metric: float | None) -> Course:
        """Answer the reviews of all workers; the course keeps the policy in force if nothing changes."""
        ...

    def over(self, clock: int) -> Course | None:
        """Return the course after a stage on the store that is over at ``clock``, or None; called once a clock."""
        ...

    def next_review(self, since: int) -> tuple[int, int]:
        """Return the clocks of the next review and of its answer, if the workers go on at ``since``."""
        ...
