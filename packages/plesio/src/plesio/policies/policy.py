"""The interface of every policy: a frozen description that starts a fresh machine.

The description (`Policy`) is the value that users write, compare and store; a world runs the machine (`PolicyMachine`).
A machine has no clock, no random numbers, no tensors and no sockets: it is a function of the events it has seen.

A worker follows two rules on its own, without a message from the others, so they are functions of its clock alone and
the same on every rank: `Policy.exchanges_at` and `Policy.merges_at`. A rank that starts a collective can rely on the
others to start the same one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.policies.events import UNLIMITED, Action, Event, Reviewed
from plesio.policies.fields import check_policy, write_spec
from plesio.policies.outer_rule import OuterRule
from plesio.policies.torch_hook import TorchHook
from plesio.policies.weighting import UNWEIGHTED, Weighting

ExchangeKind = Literal["collective", "store"]
UpdateKind = Literal["gradient", "delta"]
MomentsKind = Literal["own", "mean"]
MergeKind = Literal["mean", "rda"]
NEVER = UNLIMITED
"""Clock that never comes."""


@runtime_checkable
class PolicyMachine(Protocol):
    """A policy at work."""

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Take one event; return what the world must do, in this order."""
        ...

    def validate(self) -> None:
        """Raise AssertionError when the machine's own invariants do not hold (tests call this after every event)."""
        ...


class Policy:
    """A consistency policy, as a user writes it: a frozen dataclass, equal to another with the same fields.

    The base of all. It has the answers of a policy that needs nothing special; each replaces those that are otherwise.
    A value that is out of range is a `PolicySpecError`.

    A worker exchanges every ``period`` steps and merges the result ``delay`` steps later:

        period 4, delay 2      clock  1  2  3  4  5  6  7  8  9  10
        contributes after                      x           x
        merges the exchange of                       4            8

    It has one exchange in flight at most, so the delay is at most the period. With both equal it merges one exchange
    and starts the next after the same step, in this order.

    Attributes:
        name: The name in a spec.
        adapts: True if the policy changes while it runs: workers report and are steered.
    """

    __slots__ = ()

    name: ClassVar[str]
    _argument: ClassVar[str | None] = None
    """Field that the spec has behind the colon."""
    adapts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_policy(self, f"{self.name}: ")

    @property
    def exchange(self) -> ExchangeKind:
        """Kind of exchange; ``collective``, whose membership is fixed, if it changes during the run."""
        return "collective"

    @property
    def first(self) -> "Policy":
        """The static policy that workers begin under: this one, unless it changes while it runs."""
        return self

    @property
    def first_if_slow(self) -> "Policy":
        """The static policy that workers begin under where it takes seconds to send all parameters."""
        return self.first

    @property
    def pushes(self) -> UpdateKind | None:
        """The kind of update that workers push to a store; None without a store.

        Gradients need an optimizer that the store can run.
        """
        return self.update if self.exchange == "store" else None

    @property
    def update(self) -> UpdateKind:
        """The kind of update that a worker contributes.

        ``gradient``: the mean gradient of the steps since its last exchange; the shared optimizer steps with it.
        ``delta``: how far the worker's own optimizer has moved its parameters since; deltas are averaged or added.
        """
        return "delta"

    @property
    def bound(self) -> float:
        """Largest lead allowed, in steps; ``math.inf`` for none. Rounds that wait for all allow H + d - 1."""
        return self.period + self.delay - 1

    @property
    def period(self) -> int:
        """H, local steps between two exchanges."""
        return 1

    @property
    def delay(self) -> int:
        """d, steps between starting an exchange and merging its result."""
        return 0

    @property
    def credit_ahead(self) -> int:
        """Steps before the end of its credit at which a worker begins an exchange with the store."""
        return 0

    @property
    def looks_at_pace(self) -> bool:
        """True if updates on the store tell how long their steps took."""
        return False

    @property
    def weighting(self) -> Weighting:
        """Weight of an update by its staleness."""
        return UNWEIGHTED

    @property
    def synchronous(self) -> bool:
        """True if every exchange waits for all live workers, so that data can be dealt in a fixed order."""
        return True

    @property
    def compression(self) -> Compression:
        """Compression of an update in a collective, or on its way to the store."""
        return NO_COMPRESSION

    @property
    def compresses_pulls(self) -> bool:
        """True if what a worker pulls from the store is compressed, too."""
        return False

    @property
    def hook(self) -> TorchHook | None:
        """Torch's own hook that sends DDP's gradients; None where Plesio, or DDP by itself, does."""
        return None

    @property
    def shards(self) -> bool:
        """True if each worker alone holds its part of the parameters."""
        return False

    @property
    def mirror(self) -> int:
        """Steps after which each worker copies another one's part, to go on from when that one is lost; 0: never."""
        return 0

    @property
    def blocks(self) -> tuple[str, ...]:
        """Classes of the modules that are gathered one at a time where parameters are in parts; none named: a rule."""
        return ()

    @property
    def inner_rate(self) -> float:
        """Share of the learning rate that local steps take; what they come to counts 1/inner_rate times."""
        return 1.0

    @property
    def outer_step(self) -> OuterRule | None:
        """The rule by which the mean of local steps' results becomes a step; None where it is the step itself."""
        return None

    @property
    def own_share(self) -> float | None:
        """Share of its own parameters that a worker keeps at a merge, of those that outer steps make and all share.

        None where the replicas' mean is what they share: a worker then keeps all its steps since the exchange began.
        """
        return None

    @property
    def merge(self) -> MergeKind:
        """Mean of the results of local steps: the plain one, or by lengths and directions."""
        return "mean"

    @property
    def fragments(self) -> int:
        """Groups of whole tensors that are exchanged in turn."""
        return 1

    @property
    def moments(self) -> MomentsKind:
        """Gradients that a normalising optimizer remembers, in local steps: a worker's own, or the mean of all."""
        return "own"

    @property
    def undoes_writes(self) -> str | None:
        """Clause on how the policy undoes a script's writes into parameters after a step; None if it does not."""
        if self.exchange == "store" and self.update == "gradient":
            return "the servers step and never see it"
        if self.exchange == "store" and self.outer_step is None:
            return None
        if self.update == "gradient" and self.delay > 0:
            return "gradients of steps before are applied after it"
        if self.compression.keeps_residual:
            return "what was left out of an exchange is added after it"
        if self.outer_step is not None:
            return "it counts as a local step, and an outer step scales it"
        return "it counts as a local step, and goes into the moments" if self.moments == "mean" else None

    @property
    def inner(self) -> "Policy | None":
        """The policy within a rack; None where racks have none of their own."""
        return None

    @property
    def racks_share_store(self) -> bool:
        """True if one worker exchanges with the store for its whole rack."""
        return self.inner is not None and self.exchange == "store"

    @property
    def goes_by_racks(self) -> bool:
        """True if the policy needs to know which workers are near to each other."""
        return self.inner is not None

    @property
    def has_collectives(self) -> bool:
        """True if workers meet in collectives, if only in their rack: no worker can join while they do."""
        return self.exchange == "collective" or self.inner is not None

    @property
    def needs_server_optimizer(self) -> bool:
        """True if the policy can only be run with servers that can run the optimizer."""
        return self.pushes == "gradient"

    @property
    def most_servers(self) -> int | None:
        """Number of servers beyond which more of them make it slower; None if one a host is right."""
        return None

    @property
    def can_be_stage(self) -> bool:
        """True if other policies may come before and after it in one run."""
        return False

    @property
    def first_review(self) -> tuple[int, int]:
        """Clocks of the first reports and of the answer to them, if workers ever report."""
        return NEVER, NEVER

    @property
    def guard(self) -> bool:
        """True if workers watch for signs of divergence in every step."""
        return False

    @property
    def remembers(self) -> bool:
        """True if decisions follow from all that workers have measured, and not from the clock alone."""
        return False

    @property
    def title(self) -> str:
        """The policy's name in results."""
        return self.spec

    @property
    def spec(self) -> str:
        """The shortest text that `plesio.policies.parse_policy` turns into an equal policy."""
        return write_spec(self, argument=self._argument)

    def start(self, *, clock: int = 0) -> PolicyMachine:
        """Start a fresh machine that has seen no event.

        Args:
            clock: Clock at which the workers begin.
        """
        raise NotImplementedError

    def director(self, *, clock: int = 0) -> "Director":
        """Return a director of the policy as one stage of a changing run; workers begin at ``clock``."""
        return ConstantDirector(self)

    def exchanges_at(self, clock: int) -> bool:
        """Return True if a worker contributes its update when it has finished step ``clock``."""
        return clock > 0 and clock % self.period == 0

    def fragments_at(self, clock: int) -> tuple[int, ...]:
        """Return the numbers of the fragments that are exchanged after step ``clock``, at which a worker exchanges."""
        return tuple(range(self.fragments))

    def merges_at(self, clock: int) -> int | None:
        """Return the clock of the exchange whose result is merged after step ``clock``, or None."""
        started = clock - self.delay
        return started if self.exchanges_at(started) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Static policy and actions of the next steps.

    Attributes:
        policy: The static policy; on the store `SSP` or `ASP`, of workers or of racks.
        shares: Shares of each round's samples, by rank; empty for equal shares. On the store there are none.
        keep: True if the present state is worth keeping.
        restore: True if the workers go back to the older of the two states that they kept last.
        relearn: True if the workers' data have changed, so that each learns anew which gradients are extraordinary.
        alarm: True if training diverged; the other attributes are the response.
        reason: One sentence.
        inputs: The figures behind the decision, by name.
    """

    policy: Policy
    shares: tuple[float, ...] = ()
    keep: bool = False
    restore: bool = False
    relearn: bool = False
    alarm: bool = False
    reason: str = ""
    inputs: tuple[tuple[str, float], ...] = ()


class Director(Protocol):
    """Makes the decisions of a run."""

    @property
    def first(self) -> Policy:
        """The policy to begin with."""
        ...

    def review(self, reviews: Mapping[int, Reviewed]) -> Decision:
        """Answer the reviews of all workers; the decision keeps the policy in force if nothing changes."""
        ...

    def over(self, clock: int) -> Decision | None:
        """Return the decision after a stage on the store that is over at ``clock``, or None; called once a clock."""
        ...

    def next_review(self, since: int) -> tuple[int, int]:
        """Return the clocks of the next review and of its answer, if the workers go on at ``since``."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantDirector:
    """Directs a run in which nothing changes."""

    first: Policy

    def review(self, reviews: Mapping[int, Reviewed]) -> Decision:
        return Decision(policy=self.first)

    def over(self, clock: int) -> Decision | None:
        return None

    def next_review(self, since: int) -> tuple[int, int]:
        return NEVER, NEVER
