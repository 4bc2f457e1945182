"""A link: the latency and the bandwidth that the costs of all messages follow from."""

import math
from dataclasses import dataclass

from plesio.core.errors import ConfigError

_SEGMENT_BYTES = 1448
_FEWEST_SEGMENTS = 4
"""A flow with fewer in flight notices a loss by a timeout alone: it gets no three duplicate acknowledgements."""
_TIMEOUT_S = 0.2
"""The shortest of Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The capacity of a link, in one direction.

    Attributes:
        latency_s: α, seconds that the first byte of a message takes.
        bytes_per_s: B, bandwidth of one direction.
        flows: TCP flows that carry a message, on a link that is shaped and drops packets; 0 loses nothing.
        shared: Transfers that are on such a link at the same time share its bandwidth. Otherwise each has all of it, as
            the accelerators behind an NVSwitch do, while each sends to one other.
    """

    latency_s: float
    bytes_per_s: float
    shared: bool = True
    flows: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < math.inf and 0 < self.bytes_per_s < math.inf):
            raise ConfigError(
                f"a link of {self.latency_s:g} s and {self.bytes_per_s:g} bytes per second is impossible; "
                "write a latency of 0 or more and a bandwidth of more than 0"
            )

    def carried_bytes_per_s(self, num_messages: int) -> float:
        """Return the bandwidth that so many messages at a time get of it, all together."""
        if not self.flows:
            return self.bytes_per_s
        return with_timeouts(self.bytes_per_s, num_flows=self.flows * num_messages)


def with_timeouts(bytes_per_s: float, *, num_flows: int) -> float:
    """Return the bandwidth that ``num_flows`` TCP flows get of a shaped link, where the losers of packets time out.

    ``B / (1 + 4 N M / (R B))`` for N flows of segments of M = 1448 bytes and a timeout R of 0.2 s. A flow's equal part
    of a timeout's bytes is ``R B / N``, and one that is down to four segments cannot retransmit at once but waits for
    the timeout (Morris 1997), so the smaller that part is, the more of the time flows wait. The form is
    ours: it has the right limits, and one number to fit.

    >>> round(with_timeouts(6.25e6, num_flows=64) / 6.25e6, 2), round(with_timeouts(625e6, num_flows=64) / 625e6, 3)
    (0.77, 0.997)
    """
    least_bytes_per_s = _FEWEST_SEGMENTS * num_flows * _SEGMENT_BYTES / _TIMEOUT_S
    return bytes_per_s / (1 + least_bytes_per_s / bytes_per_s)
