"""Links whose latency or bandwidth changes while a run goes on, and how long work takes that finds such a change.

Work that is under way at a change is charged in parts: with ``D(t)`` the seconds that all of it would take at the links
of moment t, the part done in a second is ``1 / D(t)``, and it is over when these parts make one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from plesio.core.errors import ConfigError

LinkName = Literal["local", "nic", "uplink"]
LINK_NAMES: tuple[LinkName, ...] = ("local", "nic", "uplink")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """Links of a kind have another latency or bandwidth from a moment on, in both directions.

    Attributes:
        at_s: Seconds since the run's beginning.
        link: Which kind: a host's inside, its interface, or a rack's uplink.
        number: Number of the host, or of the rack for an uplink, that this befalls; None is all.
        latency_s: None leaves it as it is.
        bytes_per_s: None leaves it as it is.
    """

    at_s: float
    link: LinkName
    number: int | None = None
    latency_s: float | None = None
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < math.inf:
            raise ConfigError(f"a change at {self.at_s:g} s; write 0 s or more")
        if self.link not in LINK_NAMES:
            raise ConfigError(f'a change of the link "{self.link}"; write one of {", ".join(LINK_NAMES)}')
        if self.latency_s is None and self.bytes_per_s is None:
            raise ConfigError(f"the change at {self.at_s:g} s changes nothing; write a bandwidth, a latency or both")

    def befalls(self, link: LinkName, number: int) -> bool:
        """Return True if it changes the link of this host or rack."""
        return link == self.link and self.number in (None, number)


def seconds_through_changes(begin_s: float, changes_s: Sequence[float], whole_s: Callable[[float], float]) -> float:
    """Return the seconds of work that begins at ``begin_s``, whatever changes while it is under way.

    ``changes_s`` are in order. ``whole_s`` is called with 0 or one of them: what all of the work takes from then on.

    >>> seconds_through_changes(1.0, [3.0], lambda since_s: 4.0 if since_s < 3.0 else 10.0)  # half of it is slow
    7.0
    """
    since_s, left = 0.0, 1.0
    now_s = begin_s
    for change_s in changes_s:
        if change_s > now_s:
            duration_s = left * whole_s(since_s)
            if now_s + duration_s <= change_s:
                return now_s - begin_s + duration_s
            left *= 1 - (change_s - now_s) / duration_s
            now_s = change_s
        since_s = change_s
    return now_s - begin_s + left * whole_s(since_s)
