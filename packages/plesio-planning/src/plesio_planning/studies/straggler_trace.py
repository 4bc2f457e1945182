"""Step times that have several causes at once, and who is the slowest how often.

A worker's step takes ``stage × content × slowdown`` times the mean: stages have unequal work (parts of a
model), content varies from step to step (lengths of sequences), and one worker is slow for good (a hot or an old
machine). Traces of real clusters look like that rather than like independent draws (Lin et al. 2025, "Understanding
stragglers in large model training using what-if analysis").
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Table
from plesio_planning.studies.interval import Interval, interval_of
from plesio_planning.studies.order_statistics import LogNormalTimes

PERIODS = (1, 4, 16)
"""Steps between barriers."""

_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedTrace:
    """A trace of several causes.

    Attributes:
        cost_by_causes: E[max] over the mean, with one cause after the other added.
        cost: Cost with all of them; mean of the simulated iterations.
        cost_by_period: The slowest worker's K steps over K means, by K, steps between barriers.
        shuffled_by_period: The same of the same durations in random order: of independent draws from them.
        slowest_shares: Share of the iterations in which each worker is the slowest.
    """

    cost_by_causes: Mapping[str, float]
    cost: Interval
    cost_by_period: Mapping[int, float]
    shuffled_by_period: Mapping[int, float]
    slowest_shares: tuple[float, ...]

    @property
    def slowest_worker(self) -> int:
        """The worker that is the slowest most often."""
        return int(np.argmax(self.slowest_shares))

    @property
    def slowest_share(self) -> float:
        """How often that is."""
        return max(self.slowest_shares)

    def most_often_slowest(self) -> dict[int, float]:
        """Return the workers that are the slowest most often, and how often, in the order of workers."""
        order = sorted(range(len(self.slowest_shares)), key=lambda worker: -self.slowest_shares[worker])
        return {worker: self.slowest_shares[worker] for worker in sorted(order[:_MOST_SHOWN])}

    def tables(self) -> list[Table]:
        """List the cost of each cause, and the savings of fewer barriers, compared with independent draws."""
        causes = [(name, f"{cost:.3f}", f"{100 / cost:.1f} %") for name, cost in self.cost_by_causes.items()]
        periods = [
            (str(period), f"{cost:.3f}", f"{self.shuffled_by_period[period]:.3f}")
            for period, cost in self.cost_by_period.items()
        ]
        return [
            Table(
                title="A trace of several causes, slowest over mean:",
                headers=("causes", "over mean", "efficiency"),
                rows=causes,
            ),
            Table(
                title="The trace with fewer barriers, slowest over mean:",
                headers=("steps between barriers", "as it is", "shuffled"),
                rows=periods,
            ),
        ]


def slowest_sum(times: NDArray[np.float64], *, period: int) -> float:
    """Return the slowest worker's time for one of ``period`` steps between barriers, mean over the rounds.

    Times are (iterations, workers).

    >>> slowest_sum(np.array([[1.0, 3.0], [3.0, 1.0]]), period=2)  # each takes 4 for both
    2.0
    """
    num_rounds = max(len(times) // period, 1)
    rounds = times[: num_rounds * period].reshape(num_rounds, -1, times.shape[1]).mean(axis=1)
    return float(rounds.max(axis=1).mean())


def compose_trace(
    *,
    num_workers: int,
    num_iterations: int,
    slowdown: float,
    content_cv: float,
    stages: tuple[float, ...],
    random: np.random.Generator,
) -> ComposedTrace:
    """Simulate the trace."""
    content = LogNormalTimes(mean_s=1.0, cv=content_cv).draw_s(random, (num_iterations, num_workers))
    stage = np.resize(np.array(stages), num_workers) / np.resize(np.array(stages), num_workers).mean()
    slow = np.ones(num_workers)
    slow[-1] = slowdown
    causes = {"content": content, "+ stages": content * stage, "+ slow worker": content * stage * slow}
    times = causes["+ slow worker"]
    mean = float(times.mean())
    shuffled = random.permuted(times.ravel()).reshape(times.shape)
    return ComposedTrace(
        cost_by_causes={name: float((each.max(axis=1) / each.mean()).mean()) for name, each in causes.items()},
        cost=interval_of(times.max(axis=1) / mean),
        cost_by_period={period: slowest_sum(times, period=period) / mean for period in PERIODS},
        shuffled_by_period={period: slowest_sum(shuffled, period=period) / mean for period in PERIODS},
        slowest_shares=tuple((np.bincount(times.argmax(axis=1), minlength=num_workers) / num_iterations).tolist()),
    )
