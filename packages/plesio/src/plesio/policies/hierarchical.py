"""Hierarchical: one policy within a rack, another between racks, whose ways are long and shared.

BSP in the rack and local SGD between racks is *hierarchical local SGD* (Lin et al. 2020, "Don't Use Large Mini-batches,
Use Local SGD") with one step between two averagings of the inner level. In the terms of Castiglia, Das & Patterson
2021, "Multi-Level Local SGD", racks are the hubs, the local period is 1, and all hubs are neighbours. A rack of m
workers with batches of b samples takes the steps of one worker with m·b, because the mean of their mean gradients is
the same. So R racks train as R workers of ``local_sgd`` do, with batches m times as large: there are R replicas that
drift apart and not R·m, and each drifts less, since the variance of its gradient is an m-th.

*Traffic between racks.* A ring all-reduce of S bytes over all n ranks, in the order of racks, crosses racks R times
at each step, with ``2 (n-1)/n S`` bytes each. Here a mean is taken among the R racks every H steps:

    ``2 (R-1) S / H``  against  ``2 R (n-1)/n S``  bytes a step; for 2 racks of 8 that is ``1 / (1.875 H)`` of it.

With a delay of d steps the exchange between racks runs behind the next d steps, as in `plesio.policies.local_sgd`;
within the rack all go on waiting for each other at every step.

With a compression (`plesio.policies.compression`) less than S goes between racks; within them everything goes in full,
where it costs little. Compression applies to a rack's delta, and each rack keeps the part that was left out. It
multiplies with the period: a quarter of an H-th with ``qsgd:8``.

BSP in the rack and SSP between racks makes the rack the client of the parameter store: to the machine it is one worker,
whose clock, lead, credit and staleness are those that its members have in common. So every law of
`plesio.policies.ssp` holds between any two workers, and in a rack the lead is 0. A slow step, or a slow rack, holds up
the others only when they have used up the bound; a slow worker always holds up its own rack. Between racks goes one
push and one pull for each rack and exchange: ``2 (R-1) S / p`` bytes a step with a period of p, wherever servers are.

Racks need not be equally large: their parameters, or updates, count by their number of workers, as every sample would
in BSP.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from plesio.core.errors import PolicySpecError
from plesio.policies.asp import ASP
from plesio.policies.bsp import BSP
from plesio.policies.compression import Compression
from plesio.policies.local_sgd import LocalSGD
from plesio.policies.policy import ExchangeKind, MomentsKind, Policy, PolicyMachine, UpdateKind
from plesio.policies.ssp import SSP
from plesio.policies.weighting import Weighting


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchical(Policy):
    """Workers of a rack step together; racks average their parameters now and then, or share a parameter store.

    Args:
        inner: Within a rack: `BSP`.
        outer: Between racks: `LocalSGD` with a period, a delay, moments (of the mean of all racks) and a compression of
            what goes between racks; or `SSP` or `ASP`, to which a rack is one worker.

    Raises:
        PolicySpecError: Another policy at a level, or one with other options.

    >>> policy = Hierarchical(outer=LocalSGD(period=8, delay=4))
    >>> policy.spec, policy.bound, policy.exchanges_at(8), policy.merges_at(12)
    ('hier:bsp/local_sgd:8,delay=4', 11, True, 8)
    >>> policy = Hierarchical(outer=SSP(bound=4, period=3))
    >>> policy.spec, policy.exchange, policy.bound, policy.period
    ('hier:bsp/ssp:4,period=3', 'store', 4, 3)
    """

    name: ClassVar[str] = "hier"
    can_be_stage: ClassVar[bool] = True

    inner: Policy = field(default_factory=BSP)
    outer: Policy = field(default_factory=LocalSGD)

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.inner != BSP():
            raise PolicySpecError(
                f'hier: "{self.inner.spec}" cannot be run within a rack; write "bsp", as in "hier:bsp/local_sgd:8"'
            )
        outer = self.outer
        plain = isinstance(outer, LocalSGD) and outer == LocalSGD(
            period=outer.period, delay=outer.delay, moments=outer.moments, compression=outer.compression
        )
        if isinstance(outer, SSP | ASP) and outer.delay:
            raise PolicySpecError(
                f'hier: "{outer.spec}" hides the exchange of one worker, and a rack waits for that of its first; leave '
                "delay out"
            )
        if not plain and not isinstance(outer, SSP | ASP):
            raise PolicySpecError(
                f'hier: "{outer.spec}" cannot be run between racks; write a local_sgd with a period and perhaps '
                'delay, moments and compress, as in "hier:bsp/local_sgd:8,delay=4", or ssp or asp, as in '
                '"hier:bsp/ssp:4"'
            )

    @property
    def exchange(self) -> ExchangeKind:
        """How racks share updates; within a rack it is always a collective."""
        return self.outer.exchange

    @property
    def update(self) -> UpdateKind:
        """A rack's contribution."""
        return self.outer.update

    @property
    def weighting(self) -> Weighting:
        """Weight of a rack's update by its staleness."""
        return self.outer.weighting

    @property
    def synchronous(self) -> bool:
        """True if every exchange between racks waits for all racks."""
        return self.outer.synchronous

    @property
    def period(self) -> int:
        """H, steps between two exchanges between racks."""
        return self.outer.period

    @property
    def delay(self) -> int:
        """d, steps between starting an exchange between racks and merging its result."""
        return self.outer.delay

    @property
    def compression(self) -> Compression:
        """Compression of a rack's update; within a rack everything is sent in full."""
        return self.outer.compression

    @property
    def moments(self) -> MomentsKind:
        """The gradients in the memory of an optimizer that normalises: its rack's own, or the mean of all."""
        return self.outer.moments

    @property
    def bound(self) -> float:
        """The largest lead between workers of different racks; in a rack it is 0."""
        return self.outer.bound

    @property
    def spec(self) -> str:
        """``hier:INNER/OUTER``, each level's own spec."""
        return f"{self.name}:{self.inner.spec}/{self.outer.spec}"

    def start(self, *, clock: int = 0) -> PolicyMachine:
        """Start the outer policy's machine: racks keep the rules that workers would."""
        return self.outer.start(clock=clock)
