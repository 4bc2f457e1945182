"""Real runs of four consistency models to a target, beside `plesio_planning.studies.consistency`.

Processes train on the study's quadratics, without noise, in steps that are made to last drawn times; one of them is
slow for good. An exchange is measured first, by barriers and by the store, with steps that do not vary. The
study's functions then say, for these very draws, when each model is at the target. Behind barriers the step length is
BSP's best; all that use the store have one as well, the best for them together.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.errors import ConfigError
from plesio.core.predictions import Prediction
from plesio.core.results import RunResult
from plesio.core.units import counted, format_seconds
from plesio.core.within import Within
from plesio.cost.step_time import LogNormal
from plesio.runtime.worker.pacing import Pacer
from plesio_planning.measured.quadratics import problem_of, run_quadratics
from plesio_planning.measured.twin import Twin
from plesio_planning.sim.recurrences import order_updates, simulate_barrier, simulate_bound, while_all_run
from plesio_planning.studies.delayed_descent import LateUpdates, descend_in_loss
from plesio_planning.studies.heterogeneous_quadratic import HeterogeneousQuadratic, best_rounds
from plesio_planning.studies.measured import Measured

Array = NDArray[np.float64]

FOUND = ("ratio",)
BOUNDS = (1, 4)
PERIODS = (4, 16)
SEEDS = (0, 1)
CALIBRATION_STEPS = 60
_PATIENCE = 4
"""How many times BSP's steps asynchronous workers get."""
_LOOKS = 20
"""Evaluations on the way to the target, about."""
_SPARE = 1.3
"""Steps of a run over those until the model is at the target."""
_SHARES = np.geomspace(0.2, 1.0, 9)
"""Step lengths of asynchronous workers that are tried, over BSP's best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyInputs:
    """The facts that the models have in common; its attributes are the inputs of `measure`."""

    num_workers: int
    step_s: float
    cv: float
    slowdown: float
    heterogeneity: float
    target: float

    @property
    def options(self) -> dict[str, float]:
        return {"num_dimensions": 4, "heterogeneity": self.heterogeneity, "noise": 0.0}

    @property
    def problem(self) -> HeterogeneousQuadratic:
        return problem_of(num_workers=self.num_workers, **self.options)  # type: ignore[arg-type]

    @property
    def steps(self) -> LogNormal:
        return LogNormal(mean_s=self.step_s, cv=self.cv)

    @property
    def workers(self) -> dict[str, Any]:
        """A recipe's ``[workers]``."""
        slow = [{"rank": self.num_workers - 1, "speed": 1 / self.slowdown}] if self.slowdown != 1 else []
        return {
            "count": self.num_workers,
            "step_time": {"kind": "lognormal", "mean": f"{1e3 * self.step_s:g} ms", "cv": self.cv},
            "unequal": slow,
        }

    def draws_s(self, seed: int, num_steps: int) -> Array:
        """Draw the durations of a run's steps, (workers, steps)."""
        speeds = [1.0] * (self.num_workers - 1) + [1 / self.slowdown]
        pacers = [
            Pacer(step_time=self.steps, speed=speed, seed=seed, worker=worker) for worker, speed in enumerate(speeds)
        ]
        return np.array([[pacer.draw_s(step) for step in range(num_steps)] for pacer in pacers])


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """Models with one step length.

    Attributes:
        times_s: Seconds until the target by policy, for each seed; infinite where it is never there.
        num_steps: Steps of each worker until then, the most of all.
    """

    step: float
    times_s: Mapping[str, Sequence[float]]
    num_steps: float

    @property
    def arriving(self) -> dict[str, float]:
        """Median seconds of the policies that are there in the end, with every seed."""
        medians_s = {policy: statistics.median(times_s) for policy, times_s in self.times_s.items()}
        return {policy: median_s for policy, median_s in medians_s.items() if math.isfinite(max(self.times_s[policy]))}


def measure(
    twin: Twin,
    seeds: Sequence[int] = SEEDS,
    calibration_steps: int = CALIBRATION_STEPS,
    /,
    *,
    cv: Annotated[float, Within(0, 1)] = 0.5,
    slowdown: Annotated[float, Within(1, 4)] = 2.0,
    compute_s: Annotated[float, Within(0.01, 0.2)] = 0.02,
    num_workers: Annotated[int, Within(2, 6)] = 4,
    bounds: Annotated[tuple[int, ...], Within(1, 64, most=3)] = BOUNDS,
    periods: Annotated[tuple[int, ...], Within(2, 64, most=3)] = PERIODS,
    heterogeneity: Annotated[float, Within(0, 1)] = 0.1,
    target: Annotated[float, Within(1e-8, 0.1)] = 1e-4,
) -> Measured:
    """Measure BSP, local SGD, SSP and no bound with four processes; takes about a minute."""
    situation = ConsistencyInputs(
        num_workers=num_workers, step_s=compute_s, cv=cv, slowdown=slowdown, heterogeneity=heterogeneity, target=target
    )
    exchanges_s = _exchanges_s(situation, calibration_steps, on_step=twin.say)
    # step sizes are the models', so that each policy runs at its best predicted one
    barriers = _barriers(situation, (1, *periods), exchange_s=exchanges_s["bsp"], seeds=seeds)
    stores = _stores(situation, (*bounds, math.inf), bsp=barriers, exchange_s=exchanges_s["asp"], seeds=seeds)
    modelled_s = barriers.arriving | stores.arriving
    runs: dict[str, list[RunResult]] = {}
    for models in (barriers, stores):
        runs |= run_quadratics(
            list(models.arriving),
            options={"learning_rate": models.step, **situation.options},
            workers=situation.workers,
            num_steps=math.ceil(_SPARE * models.num_steps),
            evaluate_every=max(1, round(models.num_steps / _LOOKS)),
            seeds=seeds,
            on_step=twin.say,
        )
    for policy, found in runs.items():
        twin.predict(
            "time to the target (s)",
            {"policy": policy},
            predicted=modelled_s[policy],
            measured=statistics.median(time_to(target, run) for run in found),
            # the simplest guess: all policies take BSP's time
            baseline=modelled_s["bsp"],
        )
    fastest = min(twin.predictions, key=lambda one: one.measured)
    chosen = min(twin.predictions, key=lambda one: one.predicted)
    return twin.measured(
        "consistency",
        finding=f"{fastest.setting['policy']} is at the target first, after {format_seconds(fastest.measured)}, and "
        f"the model says {chosen.setting['policy']}; it is off by {twin.off():.0f} % (median).",
        setting=f"{num_workers} processes, steps of {format_seconds(compute_s)} (lognormal, coefficient of variation "
        f"{cv:g}), one worker {slowdown:g} times slower; {counted(len(seeds), 'run')} of each policy, medians. An "
        f"exchange takes {format_seconds(exchanges_s['bsp'])} by a barrier and {format_seconds(exchanges_s['asp'])} by "
        "the store. The baseline is BSP's time for all.",
        charts=[_chart(twin.predictions, runs=runs, target=target)],
        rivals="policy",
    )


def _exchanges_s(situation: ConsistencyInputs, num_steps: int, *, on_step: Callable[[str], None]) -> dict[str, float]:
    """Measure the seconds of a step with an exchange beyond a constant step, by a barrier and by the store."""
    runs = run_quadratics(
        ["bsp", "asp"],
        options={"learning_rate": 0.1, **situation.options},
        workers={
            "count": situation.num_workers,
            "step_time": {"kind": "constant", "mean": f"{1e3 * situation.step_s:g} ms"},
        },
        num_steps=num_steps,
        evaluate_every=num_steps,
        seeds=(0,),
        on_step=lambda what: on_step(f"exchanges: {what}"),
    )
    return {policy: max(0.0, run.wall_s / num_steps - situation.step_s) for policy, (run,) in runs.items()}


def _barriers(
    situation: ConsistencyInputs, periods: Sequence[int], *, exchange_s: float, seeds: Sequence[int]
) -> Modelled:
    """Model BSP and local SGD, with BSP's best step length."""
    problem, target = situation.problem, situation.target
    step, _ = best_rounds(problem, period=1, target=target)
    steps = {period: period * problem.rounds(step=step, period=period).rounds_to(target) for period in periods}
    if math.isinf(steps[1]):
        raise ConfigError(f"BSP does not get to a loss of {target:g}; write a larger target")
    times_s = {
        "bsp" if period == 1 else f"local_sgd:{period}": [
            math.inf
            if math.isinf(number)
            else simulate_barrier(situation.draws_s(seed, int(number)), exchange_s=exchange_s, period=period).end_s
            for seed in seeds
        ]
        for period, number in steps.items()
    }
    most = max(number for number in steps.values() if math.isfinite(number))
    return Modelled(step=step, times_s=times_s, num_steps=most)


def _stores(
    situation: ConsistencyInputs, bounds: Sequence[float], *, bsp: Modelled, exchange_s: float, seeds: Sequence[int]
) -> Modelled:
    """Model SSP and no bound, with the step length that is the best for all of them in the mean."""
    draws_s = [situation.draws_s(seed, int(_PATIENCE * bsp.num_steps)) for seed in seeds]
    found = []
    for share in _SHARES.tolist():
        times_s, most = {}, 0.0
        for bound in bounds:
            reached = [
                _reached(situation, each_s, bound, step=share * bsp.step, exchange_s=exchange_s) for each_s in draws_s
            ]
            times_s["asp" if math.isinf(bound) else f"ssp:{bound}"] = [time_s for time_s, _ in reached]
            most = max(most, *(updates / situation.num_workers for _, updates in reached))
        found.append(Modelled(step=share * bsp.step, times_s=times_s, num_steps=most))
    best = min(found, key=lambda one: sum(map(sum, one.times_s.values())))
    if math.isinf(best.num_steps):
        raise ConfigError(f"without barriers nobody gets to a loss of {situation.target:g}; write a larger target")
    return best


def _reached(
    situation: ConsistencyInputs, draws_s: Array, bound: float, *, step: float, exchange_s: float
) -> tuple[float, float]:
    """Return when the loss is at the target for good, and after how many updates; infinite if it is not."""
    problem = situation.problem
    schedule = simulate_bound(draws_s, bound=bound, exchange_s=exchange_s)
    order = while_all_run(order_updates(schedule, exchange_s=exchange_s), schedule, exchange_s=exchange_s)
    going = descend_in_loss(
        problem.eigenvalues,
        LateUpdates.of(order.staleness, steps=step / situation.num_workers, workers=order.workers),
        optima=problem.optima,
    )
    late = np.flatnonzero(going.loss > situation.target)
    if going.diverged or late[-1] == len(going.loss) - 1:
        return math.inf, math.inf
    return float(order.applied_s[late[-1]]), float(late[-1] + 1)


def time_to(target: float, run: RunResult) -> float:
    """Return seconds after which a run's loss stays at the target, between evaluations as if it fell geometrically.

    Infinite if it does not.
    """
    points = [(each.at_s, each.metric) for each in run.evaluations]
    late = max((place for place, (_, loss) in enumerate(points) if loss > target), default=-1)
    if late == len(points) - 1:
        return math.inf
    if late < 0:
        return points[0][0]
    (before_s, above), (after_s, below) = points[late], points[late + 1]
    share = math.log(above / target) / math.log(above / max(below, 1e-300))
    return before_s + share * (after_s - before_s)


def _chart(predictions: Sequence[Prediction], *, runs: Mapping[str, Sequence[RunResult]], target: float) -> LineChart:
    fastest = min(predictions, key=lambda one: one.measured)
    series = []
    for one in predictions:
        policy = one.setting["policy"]
        points = [(each.at_s, each.metric) for each in runs[policy][0].evaluations if each.metric > 0]
        series.append(
            Series(name=f"{policy}, measured", group=policy, x=[x for x, _ in points], y=[y for _, y in points])
        )
        series.append(Series(name=f"{policy}, modelled", group=policy, x=[one.predicted], y=[target], style="points"))
    return LineChart(
        slug="measured",
        title=f"Measured, {fastest.setting['policy']} is at the target first",
        caption=f"Loss above the optimum by time, first runs; points are when the model has it at {target:g}.",
        x=Axis(title="time (s)"),
        y=Axis(title="loss above the optimum", log=True),
        series=series,
    )
