"""Local SGD by real processes, on the very quadratics of the study: seconds of a step and loss in the end, by K.

The two constants of the time, computing and exchanging, are fitted to the smallest and the largest K; the loss has none
to fit, for the problem is known.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.errors import ConfigError
from plesio.core.predictions import Prediction
from plesio.core.results import RunResult
from plesio.core.units import format_seconds
from plesio.core.within import Within
from plesio_planning.measured.quadratics import problem_of, run_quadratics
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.measured import Measured

__all__ = ["FOUND", "measure", "measure_local_sgd"]

FOUND = ("compute_s", "exchange_s")

NUM_WORKERS = 2
PERIODS = (1, 2, 4, 8, 16, 32)
NUM_STEPS = 1024
LEARNING_RATE = 0.1
NOISE = 0.05


def measure(
    twin: Twin,
    /,
    *,
    periods: Annotated[tuple[int, ...], Within(1, 64, fewest=3, most=8)] = PERIODS,
    num_workers: Annotated[int, Within(2, 4)] = NUM_WORKERS,
    num_dimensions: Annotated[int, Within(2, 100)] = 10,
    condition_number: Annotated[float, Within(1, 100)] = 10.0,
    hessian_spread: Annotated[float, Within(0, 0.9)] = 0.5,
    heterogeneity: Annotated[float, Within(0, 10)] = 0.5,
    noise: Annotated[float, Within(1e-3, 1)] = NOISE,
    floor_step: Annotated[float, Within(0.02, 0.5)] = LEARNING_RATE,
) -> Measured:
    """Measure two processes at six numbers of local steps; takes about a minute.

    Args:
        twin: Keeps what is measured.
        periods: Local steps, three numbers or more.
        num_workers: Processes.
        num_dimensions: Dimensions of the quadratics.
        condition_number: Condition number of their mean.
        hessian_spread: How far workers' eigenvalues are from the mean, a share.
        heterogeneity: Standard deviation of the workers' optima.
        noise: Standard deviation of a gradient's noise.
        floor_step: Step length.

    Raises:
        ConfigError: Numbers of local steps that are not three, or that hardly ever end together.
    """
    rising = sorted(set(periods))
    if len(rising) < 3 or math.lcm(*rising) > NUM_STEPS // 4:
        raise ConfigError("local steps are measured for three numbers or more that end together; write 1,2,4,8, say")
    options = {
        "num_dimensions": num_dimensions,
        "condition_number": condition_number,
        "hessian_spread": hessian_spread,
        "heterogeneity": heterogeneity,
        "noise": noise,
    }
    return measure_local_sgd(
        on_step=twin.say, periods=rising, num_workers=num_workers, learning_rate=floor_step, options=options
    )


def measure_local_sgd(
    *,
    on_step: Callable[[str], None],
    periods: Sequence[int] = PERIODS,
    num_steps: int = NUM_STEPS,
    seeds: Sequence[int] = (0, 1),
    num_workers: int = NUM_WORKERS,
    learning_rate: float = LEARNING_RATE,
    options: Mapping[str, Any] | None = None,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        periods: K, three or more, from the smallest on.
        num_steps: Steps of each worker; it is cut to a multiple of twice all K.
        seeds: One run for each K and seed.
        num_workers: Processes.
        learning_rate: Step length.
        options: Of the quadratics (`problem_of`).
    """
    problem_options = {"noise": NOISE, **(options or {})}
    noise = problem_options["noise"]
    together = math.lcm(*periods)
    num_steps -= num_steps % (2 * together)
    runs = run_quadratics(
        [f"local_sgd:{period}" for period in periods],
        options={"learning_rate": learning_rate, **problem_options},
        workers={"count": num_workers},
        num_steps=num_steps,
        evaluate_every=together,
        seeds=seeds,
        on_step=on_step,
    )
    by_period = {period: runs[place * len(seeds) : (place + 1) * len(seeds)] for place, period in enumerate(periods)}
    steps_s = {
        period: statistics.median(run.wall_s / num_steps for run in of_it) for period, of_it in by_period.items()
    }
    losses = {period: statistics.median(map(_late_loss, of_it)) for period, of_it in by_period.items()}
    first, last = periods[0], periods[-1]
    exchange_s = (steps_s[first] - steps_s[last]) / (1 / first - 1 / last)
    compute_s = steps_s[first] - exchange_s / first
    problem = problem_of(num_workers=num_workers, **problem_options)
    floors = {period: problem.rounds(step=learning_rate, period=period).floor for period in periods}
    times = _step_times({period: steps_s[period] for period in periods[1:-1]}, compute_s, exchange_s)
    ends = _late_losses(losses, floors=floors)
    time_error, loss_error = (statistics.median(abs(one.error) for one in each) for each in (times, ends))
    return Measured(
        study="local-sgd",
        finding=f"An exchange takes {format_seconds(exchange_s)} and a step {format_seconds(compute_s)}; between the K "
        f"that this was fitted to, steps are off by {100 * time_error:.1f} % (median), and losses in the end, with "
        f"nothing fitted, by {100 * loss_error:.1f} %: they rise from {losses[first]:.2g} to {losses[last]:.2g}.",
        setting=f"{num_workers} processes, {num_steps} steps each a step of {learning_rate:g}, noise {noise:g}; "
        f"{len(seeds)} run{'s' * (len(seeds) > 1)} for each K, medians; the loss is the mean of the second half's "
        "evaluations. Baselines: no exchange is saved; no drift.",
        predictions=(*times, *ends),
        rivals="K",
        charts=(
            _loss_chart(losses, floors=floors),
            _time_chart(steps_s, modelled_s={period: compute_s + exchange_s / period for period in periods}),
        ),
    )


def _step_times(steps_s: Mapping[int, float], compute_s: float, exchange_s: float) -> tuple[Prediction, ...]:
    """Seconds of a step by K; the baseline saves no exchange."""
    return tuple(
        Prediction(
            setting={"K": str(period)},
            quantity="seconds of a step",
            scale="relative",
            predicted=compute_s + exchange_s / period,
            measured=measured_s,
            baseline=compute_s + exchange_s,
        )
        for period, measured_s in steps_s.items()
    )


def _late_losses(losses: Mapping[int, float], *, floors: Mapping[int, float]) -> tuple[Prediction, ...]:
    """The loss in the end by K; the baseline has no drift."""
    return tuple(
        Prediction(
            setting={"K": str(period)},
            quantity="loss in the end",
            scale="relative",
            predicted=floors[period],
            measured=loss,
            baseline=floors[next(iter(losses))],
        )
        for period, loss in losses.items()
    )


def _loss_chart(losses: Mapping[int, float], *, floors: Mapping[int, float]) -> LineChart:
    periods = list(losses)
    return LineChart(
        slug="measured-loss",
        title="Real workers drift as far as the closed form says",
        caption="Loss above the optimum in the end, by local steps.",
        x=Axis(title="local steps K", log=True),
        y=Axis(title="loss above the optimum", log=True),
        series=[
            Series(name="modelled", x=periods, y=[floors[period] for period in periods]),
            Series(name="no drift", x=periods, y=[floors[periods[0]]] * len(periods), style="dashed"),
            Series(name="measured", x=periods, y=list(losses.values()), style="points"),
        ],
    )


def _time_chart(steps_s: Mapping[int, float], *, modelled_s: Mapping[int, float]) -> LineChart:
    periods = list(steps_s)
    return LineChart(
        slug="measured-time",
        title="A step takes what it computes and a K-th of an exchange",
        caption="Seconds of a step by local steps; the line is fitted to the first and the last point.",
        x=Axis(title="local steps K", log=True),
        y=Axis(title="time of a step (ms)"),
        series=[
            Series(name="modelled", x=periods, y=[1e3 * modelled_s[period] for period in periods]),
            Series(name="measured", x=periods, y=[1e3 * steps_s[period] for period in periods], style="points"),
        ],
    )


def _late_loss(run: RunResult) -> float:
    losses = [evaluation.metric for evaluation in run.evaluations]
    return float(np.mean(losses[len(losses) // 2 :]))
