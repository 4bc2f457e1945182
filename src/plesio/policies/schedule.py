"""When a worker exchanges and merges: rules it follows on its own, as functions of its clock.

Because nothing else enters, every rank answers alike without a message, and a rank that starts a collective knows that
the others start the same one.

    period 4, delay 2      clock  1  2  3  4  5  6  7  8  9  10
    contributes after                      x           x
    merges the exchange of                       4            8

A worker has one exchange in flight at most, so the delay is at most the period. With both equal it merges one exchange
and starts the next after the same step, in this order.
"""

from typing import ClassVar, cast

from plesio.policies.policy import ExchangeKind, Policy, UpdateKind

__all__ = ["PeriodicSchedule"]


class PeriodicSchedule:
    """Exchanges every ``period`` steps and merges the result ``delay`` steps later."""

    __slots__ = ()

    adapts: ClassVar[bool] = False

    @property
    def exchange(self) -> ExchangeKind:
        """How workers share updates."""
        raise NotImplementedError

    @property
    def update(self) -> UpdateKind:
        """What a worker contributes."""
        raise NotImplementedError

    @property
    def first(self) -> Policy:
        """The policy that workers begin under: this one."""
        return cast(Policy, self)

    @property
    def pushes(self) -> UpdateKind | None:
        """What is pushed to a store, if there is one."""
        return self.update if self.exchange == "store" else None

    @property
    def period(self) -> int:
        """H, local steps between two exchanges."""
        raise NotImplementedError

    @property
    def delay(self) -> int:
        """d, steps between starting an exchange and merging its result."""
        raise NotImplementedError

    def exchanges_at(self, clock: int) -> bool:
        """Whether a worker contributes its update when it has finished step ``clock``."""
        return clock > 0 and clock % self.period == 0

    def merges_at(self, clock: int) -> int | None:
        """The clock of the exchange whose result is merged after step ``clock``, or None."""
        started = clock - self.delay
        return started if self.exchanges_at(started) else None
