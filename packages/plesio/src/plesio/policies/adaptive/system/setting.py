"""Settings: period and delay, or a bound, with the policy and the step sizes that belong to them.

Under a setting workers step by themselves, or by racks (`plesio.policies.adaptive.system.topology`).

Local steps are short, and their mean is extrapolated, if that is stable (`LocalSGD.inner_rate`): a rate that was tuned
for the mean of all batches is too high for the batch of one worker, but the mean of all workers allows longer moves
than a single worker does (docs/log.md, section 17).

It is stable if the momentum of the user's optimizer has died away within a period; otherwise the two momenta amplify
each other. So the step sizes depend on the period in units of the optimizer's memory, 1/(1 - β) steps (`step_sizes`).
With these, training on a quadratic tolerates the same rate as under BSP, which the tests try for all settings. For the
same reason a delay is at most half a period. A rack's step has full length: its batch is that of many workers, and
racks are few.

Where local steps keep the mean's moments, they have full length as well, and what they come to is less than BSP would:
the parts that differ cancel out in the mean. After the beginning of a run, while its learning rate falls, an outer
momentum makes up for it: transformers then end 3 to 4 % lower than without (docs/log.md, section 107).
"""

import enum
import functools
import math
from dataclasses import dataclass, field

from plesio.policies.bsp import BSP
from plesio.policies.compression import NO_COMPRESSION, Compression, PowerSgd, Qsgd
from plesio.policies.diloco import DiLoCo
from plesio.policies.hierarchical import Hierarchical
from plesio.policies.local_sgd import LocalSGD
from plesio.policies.policy import MomentsKind
from plesio.policies.ssp import SSP

OUTER_RATE, OUTER_MOMENTUM = 0.9, 0.5
"""The outer steps of DiLoCo, where local steps keep the mean's moments and the beginning of the run is over."""


def step_sizes(period: int, *, memory: float) -> tuple[float, float]:
    """Return inner rate and momentum of local SGD.

    Args:
        period: H, in steps.
        memory: Steps that the optimizer's own momentum averages over: 1 without, 10 with 0.9.

    >>> step_sizes(8, memory=1.0), step_sizes(16, memory=10.0), step_sizes(8, memory=10.0)
    ((0.25, 0.5), (0.5, 0.4), (1.0, 0.0))
    """
    if period >= 3 * memory:
        return 0.25, 0.5
    return (0.5, 0.4) if period >= memory else (1.0, 0.0)


class Sent(enum.IntEnum):
    """Compression of an exchange, in ascending order of loss.

    `ROUNDED` costs training least of all compressions: rounded at random to 255 levels, a number is right in the mean,
    and training is the same within its scatter (docs/log.md, section 14). It sends a quarter of the bytes on any number
    of ranks. `COARSE`, to 15 levels, sends half of that. It is without feedback: the residual would be sent in full
    at each change.

    `LOW_RANK` sends less still of large matrices. The rest is added to the next gradient (error feedback), so it is
    late and not lost.

    >>> [sent.compression.spec for sent in Sent]
    ['none', 'qsgd:8', 'qsgd:4', 'powersgd:4']
    """

    FULL = 0
    ROUNDED = 1
    COARSE = 2
    LOW_RANK = 3

    @property
    def compression(self) -> Compression:
        return _COMPRESSIONS[self]


_COMPRESSIONS = {
    Sent.FULL: NO_COMPRESSION,
    Sent.ROUNDED: Qsgd(bits=8),
    Sent.COARSE: Qsgd(bits=4),
    Sent.LOW_RANK: PowerSgd(rank=4),
}
ROUNDINGS = (Sent.ROUNDED, Sent.COARSE)
ROUNDED_SHARE, COARSE_SHARE = (
    sent.compression.payload_bits(2**20) / Sent.FULL.compression.payload_bits(2**20) for sent in ROUNDINGS
)
"""Bytes of a rounded exchange, as a share of those in full."""


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """A period and a delay, ordered by slack; step sizes do not count in comparisons.

    On the store it is SSP with a ``bound``, 0 elsewhere, and an exchange a step. The slack is then 1: a worker gets the
    others' steps one step late, except those of a straggler, which may come s + 1 steps late and are few. By racks the
    same holds for racks, each of which is one worker to the store.

    ``sent`` is the compression. In low rank all workers step together, and yet the slack is 1 too: a part of every
    gradient comes some steps late. With ``by_racks`` the workers of a rack step together; slack and compression are
    then between racks.

    >>> Setting(slack=0, period=1, delay=0).spec, Setting.of(period=8, delay=4).spec, Setting.on_the_store(7).spec
    ('bsp', 'local_sgd:8,delay=4', 'ssp:7')
    >>> Setting.of(period=8, delay=4, by_racks=True).spec
    'hier:bsp/local_sgd:8,delay=4'
    >>> IN_LOW_RANK.spec, IN_LOW_RANK.slack
    ('bsp,compress=powersgd:4', 1)
    >>> Setting.of(period=8, delay=0, by_racks=True, sent=Sent.ROUNDED).spec
    'hier:bsp/local_sgd:8,compress=qsgd:8'
    >>> COARSE_STEPS.spec, COARSE_STEPS.slack
    ('bsp,compress=qsgd:4', 1)
    >>> Setting.on_the_store(3, by_racks=True).spec
    'hier:bsp/ssp:3'
    """

    slack: int
    period: int
    delay: int
    bound: int = 0
    sent: Sent = Sent.FULL
    by_racks: bool = False
    inner_rate: float = field(default=1.0, compare=False)
    momentum: float = field(default=0.0, compare=False)
    moments: MomentsKind = field(default="own", compare=False)
    has_outer: bool = field(default=False, compare=False)

    @classmethod
    def of(
        cls,
        *,
        period: int,
        delay: int,
        memory: float = math.inf,
        sent: Sent = Sent.FULL,
        by_racks: bool = False,
        moments: MomentsKind = "own",
        has_outer: bool = False,
    ) -> "Setting":
        """Make the setting with its slack, H + d - 1, and its `step_sizes`: by default those of plain averaging.

        Coarse exchanges have a slack of 1 at least: they need a trial, and are left before the end. Outer steps are
        for whole local steps with the mean's moments.
        """
        inner_rate, momentum = step_sizes(period, memory=math.inf if by_racks else memory)
        return cls(
            slack=max(period + delay - 1, int(sent is Sent.COARSE)),
            period=period,
            delay=delay,
            sent=sent,
            by_racks=by_racks,
            inner_rate=inner_rate,
            momentum=momentum,
            moments=moments,
            has_outer=has_outer and moments == "mean" and period > 1 and not (by_racks or momentum),
        )

    @classmethod
    def on_the_store(cls, bound: int, *, by_racks: bool = False) -> "Setting":
        """Make SSP with this bound, between racks or between single workers."""
        return cls(slack=1, period=1, delay=0, bound=bound, by_racks=by_racks)

    @property
    def on_store(self) -> bool:
        return self.bound > 0

    @property
    def steps_together(self) -> bool:
        """True if all workers make every step with the mean of their gradients."""
        return self.period == 1 and self.delay == 0 and not self.on_store

    @property
    def is_strict(self) -> bool:
        """True if it counts as without slack: all step together, or step by themselves with the mean's moments.

        Transformers' ends were alike at any period (docs/log.md, section 104).
        """
        return self.slack == 0 or (self.period > 1 and self.delay == 0 and self.moments == "mean")

    @property
    def policy(self) -> BSP | DiLoCo | Hierarchical | LocalSGD | SSP:
        if self.on_store:
            ssp = SSP(bound=self.bound, period=self.period)
            return Hierarchical(outer=ssp) if self.by_racks else ssp
        compression = self.sent.compression
        if self.by_racks:
            return Hierarchical(
                outer=LocalSGD(period=self.period, delay=self.delay, moments=self.moments, compression=compression)
            )
        if self.steps_together:
            return BSP(compression=compression)
        if self.has_outer:
            return DiLoCo(
                local_steps=self.period,
                outer_lr=OUTER_RATE,
                outer_momentum=OUTER_MOMENTUM,
                delay=self.delay,
                moments=self.moments,
                compression=compression,
            )
        return LocalSGD(
            period=self.period,
            delay=self.delay,
            inner_rate=self.inner_rate,
            momentum=self.momentum,
            moments=self.moments,
            compression=compression,
        )

    @property
    def spec(self) -> str:
        return self.policy.spec


SYNCHRONOUS = Setting(slack=0, period=1, delay=0)
ROUNDED_STEPS = Setting(slack=0, period=1, delay=0, sent=Sent.ROUNDED)
IN_LOW_RANK = Setting(slack=1, period=1, delay=0, sent=Sent.LOW_RANK)
"""BSP in low rank, without local steps: gradients of single batches are nearer to low rank than the sum of many steps,
and the rest of an average would be late by whole periods."""
COARSE_STEPS = Setting.of(period=1, delay=0, sent=Sent.COARSE)
"""BSP in 4 bits. At a transformer's end 18 steps in 8 bits were worth more than 42 in 4, in as many seconds."""


ON_THE_STORE = tuple(Setting.on_the_store(bound) for bound in (3, 7, 15))
"""SSP with an exchange a step: with longer periods it learns later, and local SGD with a delay hides slow links better
(docs/log.md, section 16; docs/evidence.md)."""
RACKS_ON_THE_STORE = tuple(Setting.on_the_store(setting.bound, by_racks=True) for setting in ON_THE_STORE)
"""The same bounds between racks."""


def _delays(period: int, *, moments: MomentsKind) -> set[int]:
    return {0} if moments == "mean" else {0, max(1, period // 2)}


@functools.lru_cache(maxsize=4)
def ladder(
    largest_period: int, *, memory: float, rounded: bool = False, moments: MomentsKind = "own", has_outer: bool = False
) -> tuple[Setting, ...]:
    """Return the settings on the collective: least slack first, and at equal slack full exchanges before rounded ones.

    Each period comes without a delay and with half of it as delay, 1 with 1. Rounded exchanges have none, which was not
    tried. Nor have local steps with the mean's moments: a transformer that is 2 to 4 steps behind learns less than one
    that meets half as often (docs/log.md, section 98).
    """
    periods = [2**k for k in range(int(math.log2(largest_period)) + 1)]
    make = functools.partial(Setting.of, memory=memory, moments=moments, has_outer=has_outer)
    settings = {make(period=h, delay=d) for h in periods for d in _delays(h, moments=moments)}
    if rounded:
        settings |= {make(period=h, delay=0, sent=sent) for h in periods for sent in ROUNDINGS}
    return tuple(sorted(settings))


@functools.cache
def settings_by_racks(
    largest_period: int, *, rounded: bool = False, moments: MomentsKind = "own"
) -> tuple[Setting, ...]:
    """Return the settings by racks, least slack first: periods from 2, without and with half of them as delay.

    Period 1 is left out: between two merges there must be a step that shows the time of an exchange within the rack.
    Rounded exchanges and the moments of the mean gradient allow no delay, as on the `ladder`.
    """
    periods = [2**k for k in range(1, int(math.log2(largest_period)) + 1)]
    return tuple(
        sorted(
            Setting.of(period=h, delay=d, by_racks=True, sent=Sent.ROUNDED if rounded else Sent.FULL, moments=moments)
            for h in periods
            for d in ((0,) if rounded else _delays(h, moments=moments))
        )
    )
