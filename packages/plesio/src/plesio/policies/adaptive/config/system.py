"""The parameters of the system side, and of its settings by racks."""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.within import AT_LEAST_1, PROPER_SHARE, Within
from plesio.policies.fields import check_policy

__all__ = ["SystemConfig", "TopologyConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """The system side's parameters.

    Args:
        gain: Share of the time of a step that a change must promise to save.
        tolerance: Settings this much slower than the best count as equally good.
        price: Share of a step's progress that slack and the store are taken to cost, before anything is measured. On
            the digits a slack of 7 to 23 of 16 workers took 13 to 57 % more epochs than BSP to the same accuracy
            (docs/log.md, section 17).
        memory: Steps of each worker that are remembered.
        largest_period: Longest period to consider.
        balance: Whether slow workers are given smaller shares of the samples.
        compress: Whether what is sent is compressed (`Sent`) where that saves more than slack does.
        store: Whether stages under SSP are considered too; up to four servers then run from the beginning. Only
            where the servers can run the optimizer, and `Session.shard` deals the samples.

    Raises:
        PolicySpecError: A value out of its range.
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
    """How racks are used.

    Args:
        tolerance: Settings by racks this much slower than the best setting count as equally good.
        largest_period: Longest period between racks to consider.

    Raises:
        PolicySpecError: A value out of its range.
    """

    tolerance: Annotated[float, PROPER_SHARE] = 0.1
    largest_period: Annotated[int, Within(2)] = 32

    def __post_init__(self) -> None:
        check_policy(self, "adaptive: topology.")
