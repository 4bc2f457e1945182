"""A link: the latency and the bandwidth that the costs of all messages follow from."""

import math
from dataclasses import dataclass

from plesio.core.errors import ConfigError

__all__ = ["Link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The capacity of a link, in one direction.

    Attributes:
        latency_s: α, seconds that the first byte of a message takes.
        bytes_per_s: B, bandwidth of one direction.
        shared: Transfers that are on such a link at the same time share its bandwidth. Otherwise each has all of it, as
            the accelerators behind an NVSwitch do, while each sends to one other.
    """

    latency_s: float
    bytes_per_s: float
    shared: bool = True

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < math.inf and 0 < self.bytes_per_s < math.inf):
            raise ConfigError(
                f"a link of {self.latency_s} s and {self.bytes_per_s} bytes per second is impossible; "
                "write a latency of 0 or more and a bandwidth of more than 0"
            )
