"""The numbers of the policy: what each means, its unit, and where it comes from; and its switches.

"Tuned" is on the development scenarios of `benchmarks/evidence/unseen.py` (``--set dev``), which no report uses.
"""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import ABOVE_0, AT_LEAST_0, AT_LEAST_1, PROPER_SHARE, Within
from plesio.policies.fields import check_policy

_SHARE_OR_0 = Within(0, 1, without="high")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """All numbers that can be set.

    Attributes:
        every: Steps between two reviews, and fewer at the beginning and during trials (derived: a review must find the
            mean of as many losses as hide their noise).
        price: Logarithm of a step's progress that a slack of 1 is expected to lose; it grows with slack (tuned).
        doubt: Standard deviation of ``price`` before anything is seen (tuned).
        store_price: Logarithm of a step's progress that a step on the store is expected to lose (tuned).
        store_doubt: Standard deviation of ``store_price`` (tuned).
        momentum_price: Logarithm added to ``store_price`` for each doubling of the workers, if the optimizer has
            momentum, and half of it to ``price`` (tuned).
        caution: Standard deviations below the expected progress at which settings are compared (derived: 84 % of what
            may be is better).
        lost_steps: Count of a lost step beside the lost time (derived: samples are limited, so it is lost to the
            result, too).
        gain: Logarithm of progress a second that a change must promise (tuned).
        warm_up: Reviews without slack at the beginning (tuned).
        begins: Share of the run in which an optimizer that normalises learns how noisy a replica's own steps are, and
            has no outer momentum (tuned).
        finish: Share of the steps that is strict at the end (tuned).
        finish_time: Share of the run's time that the strict end may take at most (tuned).
        trial: Reviews of a trial (tuned).
    """

    every: Annotated[int, Within(4)] = 16
    price: Annotated[float, AT_LEAST_0] = 0.02
    doubt: Annotated[float, ABOVE_0] = 0.01
    store_price: Annotated[float, AT_LEAST_0] = 0.05
    store_doubt: Annotated[float, ABOVE_0] = 0.05
    momentum_price: Annotated[float, AT_LEAST_0] = 0.06
    caution: Annotated[float, AT_LEAST_0] = 1.0
    lost_steps: Annotated[float, AT_LEAST_0] = 1.0
    gain: Annotated[float, AT_LEAST_0] = 0.1
    warm_up: Annotated[int, AT_LEAST_0] = 3
    begins: Annotated[float, _SHARE_OR_0] = 0.25
    finish: Annotated[float, _SHARE_OR_0] = 0.1
    finish_time: Annotated[float, PROPER_SHARE] = 0.25
    trial: Annotated[int, AT_LEAST_1] = 4

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Numbers):
    """The numbers, and what can be switched off.

    Attributes:
        balance: True if slow workers get smaller shares of the samples.
        compress: True if messages may be compressed: 8 bits a number, or low rank.
        store: True if stages under SSP are considered too; up to four servers then run from the beginning. This needs
            servers that can run the optimizer, and samples dealt by `Session.shard`.
        racks: True if the workers of a rack may step together, with slack between racks alone.
        guard: True if divergence is watched for: the answer is BSP, and the last good parameters.
    """

    balance: bool = True
    compress: bool = True
    store: bool = True
    racks: bool = True
    guard: bool = True
