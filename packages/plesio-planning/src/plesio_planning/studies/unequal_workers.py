"""Workers of unequal speed, step after step: who is waited for, and what different ways to share the work take.

A worker's speed is a quantile of its distribution, at a normal number z that wanders: ``z <- ρz + √(1-ρ²)·N(0,1)`` with
``ρ = exp(-1/drift_steps)``, so the distribution stays what it is while its workers change places in it. Each step has a
jitter on top that nobody can plan for.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from plesio.sim.compiled import compiled
from plesio_planning.studies.work_shares import divide, moved

Speeds = NDArray[np.float64]
_PACE_MEMORY = 0.8
"""Share of what is known of a worker's speed that stays when a step has been measured."""


def _wandering_speeds(
    quantile: Callable[[Speeds], Speeds],
    *,
    num_workers: int,
    num_steps: int,
    drift_steps: float,
    rng: np.random.Generator,
) -> Speeds:
    """Draw speeds (workers, steps); infinite ``drift_steps`` keep them."""
    rho = math.exp(-1 / drift_steps)
    z = np.empty((num_workers, num_steps))
    z[:, 0] = rng.standard_normal(num_workers)
    shocks = math.sqrt(1 - rho * rho) * rng.standard_normal((num_workers, num_steps))
    for step in range(1, num_steps):
        z[:, step] = rho * z[:, step - 1] + shocks[:, step]
    return quantile(z)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Balanced:
    """The times of one way to share the work.

    Attributes:
        step_s: Seconds of each step, the slowest worker's.
        slowest: Share of the steps in which each worker was the slowest.
        largest_move: Most samples that a worker's share changed by from one step to the next, where nobody came or
            went.
    """

    name: str
    step_s: tuple[float, ...]
    slowest: tuple[float, ...]
    largest_move: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DriftingRun:
    """Workers whose speeds drift, one of whom leaves before another joins; arrays are (workers, steps).

    Attributes:
        speeds: Speeds of all workers, with the one that joins as the last.
        jitter: Factors on times.
        leaves: Step at which worker 0 leaves, after a third of them.
        joins: Step at which the last worker joins, after two thirds.
    """

    speeds: Speeds
    jitter: NDArray[np.float64]
    present: NDArray[np.bool_]
    leaves: int
    joins: int

    @classmethod
    def drawn(
        cls,
        quantile: Callable[[Speeds], Speeds],
        *,
        num_workers: int,
        num_steps: int,
        drift_steps: float,
        jitter: float,
        rng: np.random.Generator,
    ) -> "DriftingRun":
        """Draw a run that begins with ``num_workers``.

        The quantile makes a speed of a standard normal number. After ``drift_steps`` speeds have forgotten what they
        were. The standard deviation of the logarithm of a step's jitter is ``jitter``.
        """
        speeds = _wandering_speeds(
            quantile, num_workers=num_workers + 1, num_steps=num_steps, drift_steps=drift_steps, rng=rng
        )
        leaves, joins = num_steps // 3, 2 * num_steps // 3
        present = np.ones(speeds.shape, dtype=bool)
        present[0, leaves:] = False
        present[-1, :joins] = False
        noise = np.exp(jitter * rng.standard_normal(speeds.shape))
        return cls(speeds=speeds, jitter=noise, present=present, leaves=leaves, joins=joins)

    def balanced(self, *, total: int, sample_s: float, cap: int, every: int, largest_move: int) -> tuple[Balanced, ...]:
        """Share the work equally; by the first speeds; by those measured, a little at a time; and at will.

        A worker holds at most ``cap`` of the ``total`` samples of a step, or more where the others could not hold all
        without one of them. A little at a time is a change of up to ``largest_move`` samples, after ``every`` steps.
        """
        most_samples = max(cap, -(-total // (len(self.speeds) - 2)))
        shared = partial(self._shared, total=total, sample_s=sample_s, cap=most_samples)
        return (
            shared("equal", proportional=False, every=0, most=total),
            shared("proportional, once", proportional=True, every=0, most=total),
            shared("rebalanced", proportional=True, every=every, most=largest_move),
            shared("rebalanced at will", proportional=True, every=1, most=total),
        )

    def _shared(
        self, name: str, *, total: int, sample_s: float, cap: int, proportional: bool, every: int, most: int
    ) -> Balanced:
        """Share ``total`` samples in every step among those who are there.

        A worker that comes or goes changes the shares at once. Otherwise they are looked at after ``every`` steps, 0
        being once in the beginning, and each changes by ``most`` at a look.
        """
        num_workers, num_steps = self.speeds.shape
        pace = self.speeds[:, 0].copy()
        counts = np.zeros(num_workers, dtype=np.int64)
        times, slowest, largest_move = [], np.zeros(num_workers), 0

        def wanted(here: NDArray[np.bool_]) -> NDArray[np.int64]:
            found = np.zeros(num_workers, dtype=np.int64)
            found[here] = divide(total, pace[here] if proportional else np.ones(int(here.sum())), cap=cap)
            return found

        for step in range(num_steps):
            here = self.present[:, step]
            if step == 0 or (here != self.present[:, step - 1]).any():
                pace = np.where(here & (counts == 0), self.speeds[:, step], pace)
                counts = wanted(here)
            elif every and step % every == 0:
                now = moved(counts, wanted(here), most=most)
                largest_move = max(largest_move, int(np.abs(now - counts).max()))
                counts = now
            took_s = counts * sample_s / self.speeds[:, step] * self.jitter[:, step]
            measured = here & (counts > 0)
            pace[measured] += (1 - _PACE_MEMORY) * (counts[measured] * sample_s / took_s[measured] - pace[measured])
            times.append(float(took_s.max()))
            slowest[took_s.argmax()] += 1
        return Balanced(name=name, step_s=tuple(times), slowest=tuple(slowest / num_steps), largest_move=largest_move)

    def constant_speeds(self, num_steps: int) -> Speeds:
        """Return the first speeds of those that begin, over the jitter of so many steps: (workers, steps)."""
        return self.speeds[:-1, :1] / self.jitter[:-1, :num_steps]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asynchronous:
    """How a descent went in which nobody is further ahead than a bound.

    Attributes:
        bound: Largest lead in steps; infinite for none.
        samples_per_s: All workers', up to the first one's end.
        staleness: Updates by others between the beginning of a step and its own, in the mean.
        to_target_s: Seconds until the loss had fallen so far; NaN if it had not by then.
        at_s: Moments of the curve.
        losses: Losses over the first, as many.
    """

    bound: float
    samples_per_s: float
    staleness: float
    to_target_s: float
    at_s: tuple[float, ...]
    losses: tuple[float, ...]


def asynchronous_descent(
    step_s: Speeds, *, bound: float, batch_size: int, eigenvalues: Speeds, step: float, target: float
) -> Asynchronous:
    """Descend on ``½ Σ λᵢxᵢ²``: each worker's every step applies ``step/N`` times a gradient of when it began.

    ``step_s`` are seconds, (workers, steps); ``bound`` is the largest lead in steps; ``target`` is over the first loss.
    """
    from plesio_planning.sim.recurrences import simulate_bound  # numba: half a second

    num_workers = step_s.shape[0]
    schedule = simulate_bound(step_s, bound=bound)
    begins, finishes = schedule.begin_s.ravel(), schedule.finish_s.ravel()
    order = np.argsort(finishes, kind="stable")
    ends = finishes[order]
    seen = np.searchsorted(ends, begins[order], side="right")
    horizon_s = float(schedule.finish_s[:, -1].min())
    number = int(np.searchsorted(ends, horizon_s, side="right"))
    history = _history(step / num_workers * eigenvalues, seen[:number])
    losses = (history**2) @ eigenvalues / eigenvalues.sum()
    reached = np.flatnonzero(losses[1:] <= target)
    shown = np.unique(np.linspace(0, number, 200).astype(int))
    return Asynchronous(
        bound=bound,
        samples_per_s=number * batch_size / horizon_s,
        staleness=float(np.mean(np.arange(number) - seen[:number])),
        to_target_s=float(ends[reached[0]]) if len(reached) else math.nan,
        at_s=tuple(float(at) for at in np.concatenate([[0.0], ends])[shown]),
        losses=tuple(float(loss) for loss in losses[shown]),
    )


@compiled
def _history(rates: Speeds, seen: NDArray[np.int64]) -> Speeds:
    """Return the rest in each coordinate after each update, (updates + 1, dimensions); ``seen`` are beginnings."""
    history = np.ones((len(seen) + 1, len(rates)))
    for update in range(len(seen)):
        for j in range(len(rates)):
            history[update + 1, j] = history[update, j] - rates[j] * history[seen[update], j]
    return history
