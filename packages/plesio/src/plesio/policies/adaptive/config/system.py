"""Parameters of the system side, and of its settings by racks."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import AT_LEAST_1, PROPER_SHARE, Within
from plesio.policies.fields import check_policy

__all__ = ["SystemConfig", "TopologyConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """Limits and weights of the system side's choice.

    Attributes:
        gain: Share of the time of a step that a change must promise to save.
        tolerance: Share by which a setting may be slower than the best and still count as equally good.
        price: Share of a step's progress that slack and the store are assumed to cost before anything is measured. On
            the digits, a slack of 7 to 23 with 16 workers took 13 to 57 % more epochs than BSP to the same accuracy
            (docs/log.md, section 17).
        memory: Steps of each worker that are remembered.
        largest_period: Longest period to consider, in steps.
        balance: True if slow workers get smaller shares of the samples.
        compress: True if messages are compressed (`Sent`) when that saves more than slack does.
        store: True if stages under SSP are considered too; up to four servers then run from the beginning. This needs
            servers that can run the optimizer, and samples dealt by `Session.shard`.
    """

    gain: Annotated[float, PROPER_SHARE] = 0.1
    tolerance: Annotated[float, PROPER_SHARE] = 0.1
    price: Annotated[float, PROPER_SHARE] = 0.15
    memory: Annotated[int, Within(8)] = 32
    largest_period: Annotated[int, AT_LEAST_1] = 32
    balance: bool = True
    compress: bool = True
    store: bool = True

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: system.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyConfig:
    """Use of racks.

    Attributes:
        tolerance: Share by which a setting by racks may be slower than the best setting and still count as equally
            good.
        largest_period: Longest period between racks to consider, in steps.
    """

    tolerance: Annotated[float, PROPER_SHARE] = 0.1
    largest_period: Annotated[int, Within(2)] = 32

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: topology.")
