"""Stale synchronous parallel: a fast worker may be ahead of the slowest, but never by more than ``bound`` steps.

Cipar et al. 2013, "Solving the straggler problem with bounded staleness"; Ho et al. 2013, "More Effective Distributed
ML via a Stale Synchronous Parallel Parameter Server". A worker whose clock is c may begin its next step when every live
worker has reported clock c - s or later. One slow worker then holds up the others only once they have used up the
bound, and what they read is never arbitrarily old.

*Reads.* A worker trains on cached parameters, which it refreshes at every exchange, after p steps (the period).
When it begins a step at clock c, its parameters hold every update of every live worker up to clock c - s - p at least
(refused ones apart). Proof: they were pulled at an exchange at clock e > c - p, and it began step e only when everyone
had reported clock e - 1 - s or later. With p = 1 that is the guarantee of Ho et al.: all up to clock c - s - 1.

*Behind the training.* With a delay of d steps an exchange runs behind the next d, and its result is merged after them:
what the worker has done meanwhile is kept. The pull is answered when the worker may begin the step after these, so the
guarantee on reads is the same, and hiding counts as staleness within the bound: d <= s.

*Sends.* A worker flushes its cache at every clock, as in Ho et al., or sends one update for p steps (the
period), so a slow link carries less. This has a price under momentum: the gradients of p steps are applied as one
step of p times the length, which bears less of a learning rate (docs/log.md, section 43). A worker that has stopped
at the bound needs news from one that sends every p steps, hence p <= s + 1: beyond, all could stop with unsent steps
and none would ever report again.

A bound of 0 is BSP on the store, by the same machine; an infinite one is ASP.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.errors import PolicySpecError
from plesio.core.within import AT_LEAST_0, AT_LEAST_1, Within
from plesio.policies.asynchronous import AsynchronousMachine, RateKind, check_delay
from plesio.policies.barrier import BarrierMachine
from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.policies.fields import require_read_alone
from plesio.policies.policy import ExchangeKind, Policy, PolicyMachine, UpdateKind
from plesio.policies.weighting import UNWEIGHTED, Weighting


@dataclass(frozen=True, slots=True, kw_only=True)
class SSP(Policy):
    """No step begins at a lead above ``bound``; updates are applied as they arrive.

    Args:
        bound: s, the largest lead in steps; ``math.inf`` for none.
        period: p, steps between two exchanges of a worker, at most ``bound + 1``.
        delay: d, steps behind which an exchange is hidden, at most ``period`` and ``bound``; 0 waits for it.
        update: ``gradient`` (the store's optimizer steps) or ``delta`` (the worker's does, and the store adds).
        weighting: Weight of an update by its staleness.
        rate: ``divided`` (the workers share that of a synchronous step) or ``undivided`` (each update has all of it).
        compression: Compression of the updates that are pushed; what is pulled is sent in full.

    Raises:
        PolicySpecError: A value that is out of range, a period that would let every worker wait for the others,
            or a compression that the store cannot read.

    >>> SSP(bound=4).period, SSP(bound=4).spec, SSP(bound=math.inf).spec
    (1, 'ssp:4', 'ssp:inf')
    """

    name: ClassVar[str] = "ssp"
    _argument: ClassVar[str | None] = "bound"
    exchange: ClassVar[ExchangeKind] = "store"
    can_be_stage: ClassVar[bool] = True

    bound: Annotated[
        Annotated[int, AT_LEAST_0] | Annotated[float, Within(math.inf, math.inf)],
        "a whole number of steps, 0 or more, or inf for no bound",
    ] = 4
    period: Annotated[int, AT_LEAST_1] = 1
    delay: Annotated[int, AT_LEAST_0] = 0
    update: UpdateKind = "gradient"
    weighting: Weighting = UNWEIGHTED
    rate: RateKind = "divided"
    compression: Compression = NO_COMPRESSION

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.period > self.bound + 1:
            raise PolicySpecError(
                f"ssp: period {self.period} with bound {self.bound} lets every worker stop and wait for the others' "
                f"updates; write a period of {self.bound + 1} or less, or a bound of {self.period - 1} or more"
            )
        check_delay("ssp", delay=self.delay, period=self.period, bound=self.bound)
        require_read_alone("ssp", compress=self.compression.spec, on_store=self.compression.on_store)
        if self.bound == 0 and self.rate == "undivided":
            raise PolicySpecError("ssp: with a bound of 0 a round is a mean, whose rate is not divided; leave rate out")
        if self.bound == 0 and self.compression != NO_COMPRESSION:
            raise PolicySpecError(
                f"ssp: with a bound of 0 updates are sent in full; write bsp,compress={self.compression.spec}"
            )

    @property
    def synchronous(self) -> bool:
        """True for a bound of 0: then every step waits for everyone."""
        return self.bound == 0

    def start(self, *, clock: int = 0) -> PolicyMachine:
        if self.bound == 0:
            return BarrierMachine(period=self.period, clock=clock)
        return AsynchronousMachine(
            bound=self.bound, update=self.update, weighting=self.weighting, rate=self.rate, clock=clock
        )
