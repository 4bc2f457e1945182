"""How often a cluster fails, and how often a run that is on it should save its state.

Failures come independently at a constant rate, M seconds apart on average. A run computes for I, writes its state for
C, and so on; at a failure it loses what came after the last state, needs R to come back, and fails while it writes or
comes back as it does at other times. Then a segment of I + C takes ``M e^(R/M) (e^((I+C)/M) - 1)`` on average (Daly
2006), and the best I, in which R has no part, solves ``-ln(1 - I/M) - I/M = C/M``. Young (1974) and Daly (2006)
give closed forms near it.

I of this time is work and C writing. Coming back takes ``1 - e^(-R/M)`` of all the time: failures come at rate 1/M at
all times alike, and after each ``M (1 - e^(-R/M))`` pass on average until the state is back or the next one comes. The
rest was lost. A state that counts only w after it was taken makes a failure cost w more, lost.

Throughout, ``interval_s`` is I, ``checkpoint_s`` C, ``restart_s`` R and ``mtbf_s`` M, all in seconds. All functions
raise `ConfigError` where an argument is out of range.

Limits: failures that come in bursts, states written while the run goes on, and failures that are
noticed late.
"""

import math
import sys

from plesio.core.checks import check_count, check_not_negative, check_positive
from plesio.core.errors import ArgumentError
from plesio.core.extras import require
from plesio.core.units import format_seconds

MOST_SLOWDOWN = 100.0
"""Seconds that a second of work may take; a run that takes longer is no plan."""
_UNCOUNTABLE = 1e9
"""A slowdown from here on is only said to be more: its digits mean nothing."""
_MOST_EXPONENT = 600.0
"""Far enough below the 709 at which no float holds e^x."""


def cluster_mtbf_s(*, part_mtbf_s: float, num_parts: int) -> float:
    """Return the seconds between two failures of any of n parts, each of which fails every M on its own: ``M / n``.

    A part is a host, or a device; the run cannot go on without any.

    >>> round(cluster_mtbf_s(part_mtbf_s=5 * 365 * 86400, num_parts=1000) / 3600, 1)
    43.8
    """
    check_positive(part_mtbf_s=part_mtbf_s)
    check_count(num_parts=num_parts)
    return part_mtbf_s / num_parts


def young_interval_s(*, checkpoint_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between two states: ``√(2CM)`` (Young 1974), the best for C much shorter than M.

    >>> round(young_interval_s(checkpoint_s=12 * 60, mtbf_s=18 * 3600) / 60, 3)
    160.997
    """
    check_positive(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(*, checkpoint_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between two states (Daly 2006): the first terms of the best interval's series.

    ``√(2CM) (1 + √(C/2M)/3 + (C/2M)/9) - C``, and M from ``C = 2M`` on.

    >>> round(daly_interval_s(checkpoint_s=5 * 60, mtbf_s=21 * 3600) / 60, 2)
    108.94
    """
    young_s = young_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    ratio = checkpoint_s / (2 * mtbf_s)
    return young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s if ratio < 1 else mtbf_s


def best_interval_s(*, checkpoint_s: float, mtbf_s: float) -> float:
    """Return the seconds of work between two states that make `expected_slowdown` least, exactly.

    >>> round(best_interval_s(checkpoint_s=5 * 60, mtbf_s=21 * 3600) / 60, 2)
    108.94
    """
    check_positive(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    require("sim", "The best interval")
    from scipy.optimize import brentq  # a quarter of a second, which those who ask nothing need not wait

    most = 1 - sys.float_info.epsilon

    def too_long(part: float) -> float:
        return -math.log1p(-part) - part - checkpoint_s / mtbf_s

    return mtbf_s * (float(brentq(too_long, 0.0, most, xtol=sys.float_info.min)) if too_long(most) > 0 else 1.0)


def expected_slowdown(*, interval_s: float, checkpoint_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Return the seconds that a second of work takes on average: ``M e^(R/M) (e^((I+C)/M) - 1) / I`` (Daly 2006).

    Infinity where that is above e^600.

    >>> round(expected_slowdown(interval_s=108.94 * 60, checkpoint_s=5 * 60, mtbf_s=21 * 3600) - 1, 5)
    0.09464
    """
    times = {"interval_s": interval_s, "checkpoint_s": checkpoint_s, "mtbf_s": mtbf_s, "restart_s": restart_s}
    return 1 + math.fsum(slowdown_parts(**times).values())


def slowdown_parts(
    *, interval_s: float, checkpoint_s: float, mtbf_s: float, restart_s: float = 0.0, lag_s: float = 0.0
) -> dict[str, float]:
    """Split the seconds that a second of work takes, besides that second, by their cause.

    >>> parts = slowdown_parts(interval_s=6000, checkpoint_s=60, mtbf_s=60_000, restart_s=600)
    >>> {name: round(share, 4) for name, share in parts.items()}
    {'writing': 0.01, 'lost work': 0.0528, 'restarts': 0.0107}

    ``lag_s`` is w, seconds from when a state is taken until it counts, and no more than I.
    """
    check_positive(interval_s=interval_s, mtbf_s=mtbf_s)
    check_not_negative(checkpoint_s=checkpoint_s, restart_s=restart_s, lag_s=lag_s)
    segment_s = interval_s + checkpoint_s
    if restart_s + lag_s + segment_s > _MOST_EXPONENT * mtbf_s:
        until_it_counts_s = coming_back_s = math.inf
    else:
        until_it_counts_s = mtbf_s * math.exp(lag_s / mtbf_s) * math.expm1(segment_s / mtbf_s)
        coming_back_s = math.expm1(restart_s / mtbf_s) * until_it_counts_s
    return {
        "writing": checkpoint_s / interval_s,
        "lost work": (until_it_counts_s - segment_s) / interval_s,
        "restarts": coming_back_s / interval_s,
    }


def _times(slowdown: float) -> str:
    return f"{slowdown:.3g} times" if slowdown < _UNCOUNTABLE else "more than a billion times"


def check_run_ends(
    *,
    interval_s: float,
    checkpoint_s: float,
    mtbf_s: float,
    restart_s: float = 0.0,
    remedy: str = "a longer `cluster_mtbf_s`, or a shorter `checkpoint_s`, `restart_s` or `checkpoint_interval_s`",
) -> None:
    """Raise `ConfigError` if a run takes over `MOST_SLOWDOWN` times its work; ``remedy`` says what to write then."""
    slowdown = expected_slowdown(interval_s=interval_s, checkpoint_s=checkpoint_s, mtbf_s=mtbf_s, restart_s=restart_s)
    if slowdown > MOST_SLOWDOWN:
        raise ArgumentError(
            f"failures are {format_seconds(mtbf_s)} apart, states {format_seconds(interval_s)} of work; to write one "
            f"takes {format_seconds(checkpoint_s)}, to come back {format_seconds(restart_s)}, so the run would hardly "
            f"ever end ({_times(slowdown)} its work); write {remedy}"
        )
