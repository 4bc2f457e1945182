"""Schedule of a worker's exchanges and merges: rules that it follows on its own, as functions of its clock.

Nothing else enters, so every rank decides alike without a message, and a rank that starts a collective can rely on the
others to start the same one.

    period 4, delay 2      clock  1  2  3  4  5  6  7  8  9  10
    contributes after                      x           x
    merges the exchange of                       4            8

A worker has one exchange in flight at most, so the delay is at most the period. With both equal it merges one exchange
and starts the next after the same step, in this order.
"""

from typing import TYPE_CHECKING, ClassVar, cast

from plesio.policies.asynchronous import UNLIMITED
from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.policies.policy import Director, ExchangeKind, MomentsKind, Policy, UpdateKind
from plesio.policies.steered import ConstantDirector
from plesio.policies.torch_hook import TorchHook

if TYPE_CHECKING:
    from plesio.policies.adaptive.config.guard import GuardConfig
    from plesio.policies.adaptive.config.review import ReviewConfig

__all__ = ["PeriodicSchedule"]


class PeriodicSchedule:
    """Exchanges every ``period`` steps and merges the result ``delay`` steps later."""

    __slots__ = ()

    adapts: ClassVar[bool] = False

    @property
    def exchange(self) -> ExchangeKind:
        """Kind of exchange."""
        raise NotImplementedError

    @property
    def update(self) -> UpdateKind:
        """The kind of update that a worker contributes."""
        raise NotImplementedError

    @property
    def first(self) -> Policy:
        """The policy that workers begin under: this one."""
        return cast(Policy, self)

    @property
    def pushes(self) -> UpdateKind | None:
        """The kind of update that is pushed to a store, if there is one."""
        return self.update if self.exchange == "store" else None

    @property
    def compression(self) -> Compression:
        """No compression."""
        return NO_COMPRESSION

    @property
    def hook(self) -> TorchHook | None:
        """None: torch has no hook in the exchange."""
        return None

    @property
    def shards(self) -> bool:
        """False: every worker has all parameters."""
        return False

    @property
    def blocks(self) -> tuple[str, ...]:
        """Empty: no class is named."""
        return ()

    @property
    def inner_rate(self) -> float:
        """One: local steps take the whole learning rate."""
        return 1.0

    @property
    def momentum(self) -> float:
        """Zero: outer steps have no momentum."""
        return 0.0

    @property
    def moments(self) -> MomentsKind:
        """``own``: each worker's optimizer keeps its own moments."""
        return "own"

    @property
    def has_outer_step(self) -> bool:
        """True if the result of local steps is more than their plain mean."""
        return self.inner_rate != 1 or self.momentum != 0

    @property
    def undoes_writes(self) -> str | None:
        """Clause on how the policy undoes a script's writes into parameters after a step; None if it does not."""
        if self.exchange == "store":
            return "the servers step and never see it" if self.update == "gradient" else None
        if self.update == "gradient" and self.delay > 0:
            return "gradients of steps before are applied after it"
        if self.compression.keeps_residual:
            return "what was left out of an exchange is added after it"
        if self.has_outer_step:
            return "it counts as a local step, and is taken several times"
        return "it counts as a local step, and goes into the moments" if self.moments == "mean" else None

    @property
    def inner(self) -> Policy | None:
        """None: racks have no policy of their own."""
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
        """True if workers meet in collectives, if only in their rack."""
        return self.exchange == "collective" or self.inner is not None

    @property
    def needs_server_optimizer(self) -> bool:
        """True if gradients are pushed: the servers must be able to run the optimizer."""
        return self.pushes == "gradient"

    @property
    def most_servers(self) -> int | None:
        """None: one server a host is right."""
        return None

    @property
    def can_be_stage(self) -> bool:
        """False: no other policy may come before or after it in one run."""
        return False

    @property
    def first_review(self) -> tuple[int, int]:
        """Clocks that never come: no worker reports."""
        return UNLIMITED, UNLIMITED

    @property
    def review(self) -> "ReviewConfig | None":
        """None: no report is read."""
        return None

    @property
    def guard(self) -> "GuardConfig | None":
        """None: divergence is not watched."""
        return None

    @property
    def remembers(self) -> bool:
        """False: decisions follow from the clock alone."""
        return False

    @property
    def title(self) -> str:
        """The policy's name in results: its spec."""
        return self.spec

    @property
    def spec(self) -> str:
        """The shortest text of the policy."""
        raise NotImplementedError

    def director(self, *, clock: int = 0) -> Director:
        """Direct a run in which nothing ever changes."""
        return ConstantDirector(cast(Policy, self))

    @property
    def period(self) -> int:
        """H, local steps between two exchanges."""
        raise NotImplementedError

    @property
    def delay(self) -> int:
        """d, steps between starting an exchange and merging its result."""
        raise NotImplementedError

    def exchanges_at(self, clock: int) -> bool:
        """Return True if a worker contributes its update when it has finished step ``clock``."""
        return clock > 0 and clock % self.period == 0

    def merges_at(self, clock: int) -> int | None:
        """Return the clock of the exchange whose result is merged after step ``clock``, or None."""
        started = clock - self.delay
        return started if self.exchanges_at(started) else None
