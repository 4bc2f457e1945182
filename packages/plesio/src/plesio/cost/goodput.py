"""How long work takes on devices that fail, if its state is written now and then.

Failures, writing and coming back are those of `plesio.cost.reliability` (Daly 2006).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from plesio.core.checks import check_not_negative, check_positive
from plesio.cost.reliability import best_interval_s, check_run_ends, slowdown_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Expected seconds of a run, and what they go into.

    Attributes:
        work_s: Seconds of the run without failures and without states.
        checkpoints_s: Writing states.
        lost_s: Work, and unfinished states, that failures undid.
        restarts_s: Coming back after failures.
        interval_s: Work between two states.
        checkpoint_s: Writing one state.
        restart_s: Coming back once.
        mtbf_s: Mean time between two failures of the whole machine.
    """

    work_s: float
    checkpoints_s: float
    lost_s: float
    restarts_s: float
    interval_s: float
    checkpoint_s: float
    restart_s: float
    mtbf_s: float

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds that are not work, by their cause."""
        return {"checkpoints": self.checkpoints_s, "lost work": self.lost_s, "restarts": self.restarts_s}

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.work_s + sum(self.parts.values())

    @property
    def share(self) -> float:
        """Share of the time that is work which counts: the goodput."""
        return self.work_s / self.total_s

    @property
    def num_failures(self) -> float:
        """Expected."""
        return self.total_s / self.mtbf_s

    @property
    def deviation_s(self) -> float:
        """Standard deviation of the total, as failures come by chance.

        A failure costs R and, as it finds a segment anywhere, a uniform share of ``I + C``; they are a compound Poisson
        process, whose variance is their number times the mean square of one. (Exact for ``I + C`` far below M.)
        """
        segment_s = self.interval_s + self.checkpoint_s
        mean_square = (self.restart_s + segment_s / 2) ** 2 + segment_s**2 / 12
        return math.sqrt(self.num_failures * mean_square)


def expected_goodput(
    work_s: float,
    *,
    checkpoint_s: float,
    restart_s: float,
    mtbf_s: float,
    interval_s: float | None = None,
    remedy: str = "a longer `cluster_mtbf_s`, or a shorter `checkpoint_s` or `restart_s`",
) -> Goodput:
    """Return the expected total of ``work_s``, with the best interval between states if none is given.

    ``remedy`` is advice for a run that would hardly ever end: that is a `ConfigError`, as is an argument out of range.

    >>> run = expected_goodput(30 * 86400, checkpoint_s=60, restart_s=600, mtbf_s=3 * 3600)
    >>> round(run.interval_s / 60), round(run.share, 3), round(run.num_failures)
    (18, 0.85, 282)
    """
    check_positive(work_s=work_s, mtbf_s=mtbf_s, checkpoint_s=checkpoint_s)
    check_not_negative(restart_s=restart_s)
    interval_s = best_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s) if interval_s is None else interval_s
    check_positive(interval_s=interval_s)
    interval_s = min(interval_s, work_s)  # a short run writes its result
    times = {"interval_s": interval_s, "checkpoint_s": checkpoint_s, "mtbf_s": mtbf_s, "restart_s": restart_s}
    check_run_ends(**times, remedy=remedy)
    parts = slowdown_parts(**times)
    return Goodput(
        work_s=work_s,
        checkpoints_s=work_s * parts["writing"],
        lost_s=work_s * parts["lost work"],
        restarts_s=work_s * parts["restarts"],
        interval_s=interval_s,
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
        mtbf_s=mtbf_s,
    )
