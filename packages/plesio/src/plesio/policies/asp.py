"""Asynchronous parallel: no worker waits for another.

Dean et al. 2012, "Large Scale Distributed Deep Networks" (Downpour SGD). A worker sends its update, pulls what
the store holds, and goes on. Throughput is the sum of the workers' own, whatever the slowest does; the price is
staleness, which no rule limits: with N workers of equal speed an update is about N - 1 versions old when it is applied,
and one of a worker that is k times slower about k times as many. `Weighting` counts old updates less, or refuses them.

It is SSP without a bound, and runs the same machine.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.within import AT_LEAST_0, AT_LEAST_1
from plesio.policies.asynchronous import AsynchronousMachine, RateKind, check_delay
from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio.policies.fields import require_read_alone
from plesio.policies.policy import ExchangeKind, Policy, PolicyMachine, UpdateKind
from plesio.policies.weighting import UNWEIGHTED, Weighting


@dataclass(frozen=True, slots=True, kw_only=True)
class ASP(Policy):
    """No worker ever waits for another; updates are applied as they arrive.

    Args:
        period: Steps between two exchanges of a worker.
        delay: Steps behind which an exchange is hidden, at most ``period``; 0 waits for it.
        update: ``gradient`` (the store's optimizer steps) or ``delta`` (the worker's does, and the store adds).
        weighting: Weight of an update by its staleness.
        rate: ``divided`` (the workers share that of a synchronous step) or ``undivided`` (each update has all of it).
        compression: Compression of the updates that are pushed; what is pulled is sent in full.

    Raises:
        PolicySpecError: A value that is out of range, a delay above the period, or a compression that the store cannot
            read.

    >>> ASP(period=2, delay=1).spec
    'asp,period=2,delay=1'
    """

    name: ClassVar[str] = "asp"
    exchange: ClassVar[ExchangeKind] = "store"
    bound: ClassVar[float] = math.inf
    can_be_stage: ClassVar[bool] = True
    synchronous: ClassVar[bool] = False

    period: Annotated[int, AT_LEAST_1] = 1
    delay: Annotated[int, AT_LEAST_0] = 0
    update: UpdateKind = "gradient"
    weighting: Weighting = UNWEIGHTED
    rate: RateKind = "divided"
    compression: Compression = NO_COMPRESSION

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        check_delay("asp", delay=self.delay, period=self.period, bound=self.bound)
        require_read_alone("asp", compress=self.compression.spec, on_store=self.compression.on_store)

    def start(self, *, clock: int = 0) -> PolicyMachine:
        return AsynchronousMachine(
            bound=math.inf, update=self.update, weighting=self.weighting, rate=self.rate, clock=clock
        )
