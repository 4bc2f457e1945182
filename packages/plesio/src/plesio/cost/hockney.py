"""The Hockney model of communication, which all costs of `plesio.cost` are stated in.

A message of S bytes takes α + S/B: *latency* α, paid once a message, and *bandwidth* B (Hockney 1994). Links are full
duplex and a rank has one port: at any time it sends one message and receives one (Thakur, Rabenseifner & Gropp
2005). Adding numbers up costs nothing; where it does, it is part of the measured B.

It follows for every algorithm: with 0 bytes the latencies remain, as in a barrier, and one rank has no partner and is
done in no time.
"""

import math

from plesio.core.errors import ConfigError
from plesio.cost.link import Link


def check_message(num_bytes: float) -> None:
    """Raise `ConfigError` unless the model has a time for this message: a finite number of bytes, 0 or more."""
    if not 0 <= num_bytes < math.inf:
        raise ConfigError(f"a message of {num_bytes} bytes; write 0 or more")


def check_ranks(num_ranks: int) -> None:
    """Raise `ConfigError` if there is no rank."""
    if num_ranks < 1:
        raise ConfigError(f"{num_ranks} ranks; write 1 or more")


def levels(num_ranks: int) -> int:
    """Return ⌈log₂ n⌉, exactly: rounds until n know what one rank knows, each telling one other in a round.

    >>> [levels(num_ranks) for num_ranks in (1, 2, 3, 4, 5, 256)]
    [0, 1, 2, 2, 3, 8]
    """
    return (num_ranks - 1).bit_length()


def point_to_point_s(num_bytes: float, *, link: Link) -> float:
    """Return the seconds for one message: ``α + S/B`` (Hockney 1994).

    >>> point_to_point_s(1e6, link=Link(latency_s=50e-6, bytes_per_s=125e6))
    0.00805
    """
    check_message(num_bytes)
    return link.latency_s + num_bytes / link.bytes_per_s
