"""The needs of consistency models in one situation: seconds from schedules, steps from the descents that follow them.

The head of `plesio_planning.studies.models.consistency` has the theory.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plesio_planning.sim.recurrences import UpdateOrder, order_updates, simulate_barrier, simulate_bound, while_all_run
from plesio_planning.studies.delayed_descent import LateUpdates, descend_in_loss
from plesio_planning.studies.heterogeneous_quadratic import HeterogeneousQuadratic
from plesio_planning.studies.order_statistics import LogNormalTimes

Array = NDArray[np.float64]

FAMILIES = ("BSP", "local SGD", "SSP", "asynchronous")
"""Families from the strictest on; ties go to the first."""

_TIE = 0.01
_PATIENCE = 3
"""How many times BSP's steps asynchronous workers get."""

LEARNING_STEPS = np.geomspace(0.25, 1.25, 10)
"""α of asynchronous workers, over BSP's."""
_NUM_CURVE_POINTS = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A consistency model in one situation.

    Attributes:
        spec: Text, in the form of policies.
        bound: Largest lead in steps; None behind barriers.
        time_s: Seconds until the target; infinite if it is not reached.
        steps: Steps of each worker until then, on average.
        computing_s: Mean seconds that a worker computed.
        mean_staleness: Mean staleness of the updates; 0 behind barriers.
    """

    family: str
    spec: str
    period: int
    bound: float | None
    time_s: float
    steps: float
    computing_s: float
    mean_staleness: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One situation.

    Attributes:
        ratio: Seconds of an exchange over those of a step.
        cv: Coefficient of variation of the steps.
        slowdown: Slow-down of one worker, for good.
        rebalanced_s: Seconds of BSP where workers have as much work as they are fast.
    """

    ratio: float
    cv: float
    slowdown: float
    contenders: tuple[Contender, ...]
    rebalanced_s: float

    def best_of(self, family: str) -> Contender:
        """Return the fastest of one family."""
        return min((each for each in self.contenders if each.family == family), key=lambda each: each.time_s)

    @property
    def winner(self) -> Contender:
        """The fastest; within a hundredth of it, the strictest."""
        bests = [self.best_of(family) for family in FAMILIES]
        limit_s = (1 + _TIE) * min(each.time_s for each in bests)
        return next(each for each in bests if each.time_s <= limit_s)

    @property
    def gain(self) -> float:
        """BSP's time over the winner's."""
        return self.best_of("BSP").time_s / self.winner.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Workers and what they minimise; what each model needs of them.

    Attributes:
        target: Loss above the optimum that is wanted.
        barriers: The best step, and the iterations with it, by period; 1 is BSP.
        learning_steps: Steps of asynchronous workers that are tried.
        overlap: Share of a step behind which an exchange can hide.
        step_s: Mean seconds of a step.
    """

    problem: HeterogeneousQuadratic
    target: float
    bounds: tuple[int, ...]
    barriers: Mapping[int, tuple[float, float]]
    learning_steps: tuple[float, ...]
    overlap: float
    step_s: float
    seed: int

    def cell(self, *, ratio: float, cv: float, slowdown: float) -> Cell:
        """Compare all models where an exchange takes ``ratio`` steps, steps vary by ``cv``, and a worker is slower."""
        times_s, speeds = self._times_s(cv), self._speeds(slowdown)
        exchange_s, slow_s = self._exchange_s(ratio), times_s / speeds
        contenders = [self._barrier(slow_s, exchange_s, period=period) for period in self.barriers]
        contenders += [self._bound(slow_s, exchange_s, bound=bound) for bound in (*self.bounds, math.inf)]
        rebalanced = self._barrier(times_s / speeds.mean(), exchange_s, period=1)
        return Cell(ratio=ratio, cv=cv, slowdown=slowdown, contenders=tuple(contenders), rebalanced_s=rebalanced.time_s)

    def curves(self, cell: Cell) -> dict[str, dict[float, float]]:
        """Return the loss above the optimum by seconds, until the target, of each family's best that gets there."""
        slow_s, exchange_s = self._times_s(cell.cv) / self._speeds(cell.slowdown), self._exchange_s(cell.ratio)
        found = {}
        for family in FAMILIES:
            best = cell.best_of(family)
            if math.isfinite(best.time_s):
                period, bound = best.period, best.bound
                curve = (
                    self._bound_curve(slow_s, exchange_s, bound=bound)
                    if bound is not None
                    else self._barrier_curve(slow_s, exchange_s, period=period)
                )
                found[best.spec] = {time_s: loss for time_s, loss in curve.items() if time_s <= best.time_s}
        return found

    def _times_s(self, cv: float) -> Array:
        """Return the seconds of each step of workers that are equally fast."""
        finite = [number for _, number in self.barriers.values() if math.isfinite(number)]
        most = int(max(_PATIENCE * self.barriers[1][1], *finite))
        random = np.random.default_rng(self.seed)
        return self.step_s * LogNormalTimes(mean_s=1.0, cv=cv).draw_s(random, (len(self.problem.eigenvalues), most))

    def _speeds(self, slowdown: float) -> Array:
        speeds = np.ones((len(self.problem.eigenvalues), 1))
        speeds[-1] = 1 / slowdown
        return speeds

    def _exchange_s(self, ratio: float) -> float:
        return max(ratio - self.overlap, 0.0) * self.step_s

    def _barrier(self, times_s: Array, exchange_s: float, *, period: int) -> Contender:
        steps = self.barriers[period][1]
        never = math.isinf(steps)
        used_s = times_s[:, : times_s.shape[1] if never else int(steps)]
        return Contender(
            family="BSP" if period == 1 else "local SGD",
            spec="bsp" if period == 1 else f"local_sgd:{period}",
            period=period,
            bound=None,
            time_s=math.inf if never else simulate_barrier(used_s, exchange_s=exchange_s, period=period).end_s,
            steps=steps,
            computing_s=float(used_s.sum(axis=1).mean()),
            mean_staleness=0.0,
        )

    def _barrier_curve(self, times_s: Array, exchange_s: float, *, period: int) -> dict[float, float]:
        step, iterations = self.barriers[period]
        num_rounds = int(iterations) // period
        schedule = simulate_barrier(times_s[:, : num_rounds * period], exchange_s=exchange_s, period=period)
        ends_s = np.maximum.accumulate(schedule.finish_s[:, period - 1 :: period].max(axis=0)) + exchange_s
        rounds = np.unique(np.linspace(0, num_rounds, _NUM_CURVE_POINTS).astype(int))
        losses = self.problem.rounds(step=step, period=period).loss(rounds)
        return dict(zip(np.concatenate([[0.0], ends_s])[rounds].tolist(), losses.tolist(), strict=True))

    def _bound_curve(self, times_s: Array, exchange_s: float, *, bound: float) -> dict[float, float]:
        order = self._order(times_s, exchange_s, bound=bound)
        step = min(self.learning_steps, key=lambda each: self._updates(order, step=each))
        losses = self._losses(order, step=step)
        places = np.unique(np.linspace(0, int(self._updates(order, step=step)), _NUM_CURVE_POINTS).astype(int))
        at_s = np.concatenate([[0.0], order.applied_s])[places]
        return dict(zip(at_s.tolist(), losses[places].tolist(), strict=True))

    def _order(self, times_s: Array, exchange_s: float, *, bound: float) -> UpdateOrder:
        schedule = simulate_bound(times_s, bound=bound, exchange_s=exchange_s)
        order = order_updates(schedule, exchange_s=exchange_s)
        return while_all_run(order, schedule, exchange_s=exchange_s)

    def _bound(self, times_s: Array, exchange_s: float, *, bound: float) -> Contender:
        order = self._order(times_s, exchange_s, bound=bound)
        reached = min(self._updates(order, step=step) for step in self.learning_steps)
        never = math.isinf(reached)
        used = slice(None) if never else slice(int(reached))
        by_worker = np.bincount(order.workers[used], minlength=len(times_s))
        computing_s = [times_s[worker, :number].sum() for worker, number in enumerate(by_worker)]
        return Contender(
            family="asynchronous" if math.isinf(bound) else "SSP",
            spec="asp" if math.isinf(bound) else f"ssp:{bound:.0f}",
            period=1,
            bound=bound,
            time_s=math.inf if never else float(order.applied_s[int(reached) - 1]),
            steps=math.inf if never else reached / len(times_s),
            computing_s=float(np.mean(computing_s)),
            mean_staleness=float(order.staleness[used].mean()),
        )

    def _updates(self, order: UpdateOrder, *, step: float) -> float:
        """Count the updates until the expected loss stays at the target or below."""
        losses = self._losses(order, step=step)
        if not len(losses):
            return math.inf
        late = np.flatnonzero(losses > self.target)
        return math.inf if late[-1] == len(losses) - 1 else int(late[-1]) + 1

    def _losses(self, order: UpdateOrder, *, step: float) -> Array:
        """Return the expected loss above the optimum after each number of updates; empty where it grows without end."""
        problem, num_workers = self.problem, len(self.problem.eigenvalues)
        curvature = problem.eigenvalues.mean(axis=0)
        angle = step * curvature * order.staleness.mean() / num_workers
        if angle.max() >= math.pi / 2:
            return np.array([])
        variance = step * problem.noise**2 / (2 * curvature * num_workers) * (1 + np.sin(angle)) / np.cos(angle)
        going = descend_in_loss(
            problem.eigenvalues,
            LateUpdates.of(order.staleness, steps=step / num_workers, workers=order.workers),
            optima=problem.optima,
        )
        kept = np.exp(-2 * step / num_workers * np.outer(np.arange(len(going.loss)), curvature))
        losses: Array = going.loss + 0.5 * ((1 - kept) * variance) @ curvature
        return np.array([]) if going.diverged else losses
