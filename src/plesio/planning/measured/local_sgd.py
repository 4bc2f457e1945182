"""Local SGD by real processes, on the very quadratics of the study: seconds of a step and loss in the end, by K.

The two constants of the time, computing and exchanging, are fitted to the smallest and the largest K; the loss has none
to fit, for the problem is known.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.results import RunResult
from plesio.core.units import format_seconds
from plesio.planning.measured.quadratics import problem_of, run_quadratics
from plesio.planning.studies.measured import Measured

__all__ = ["measure", "measure_local_sgd"]

NUM_WORKERS = 2
PERIODS = (1, 2, 4, 8, 16, 32)
NUM_STEPS = 1024
LEARNING_RATE = 0.1
NOISE = 0.05


def measure(*, on_step: Callable[[str], None]) -> Measured:
    """Measure two processes at six numbers of local steps; takes about a minute."""
    return measure_local_sgd(on_step=on_step)


def measure_local_sgd(
    *,
    on_step: Callable[[str], None],
    periods: Sequence[int] = PERIODS,
    num_steps: int = NUM_STEPS,
    seeds: Sequence[int] = (0, 1),
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        periods: K, three or more, from the smallest on; powers of two.
        num_steps: Steps of each worker; a multiple of twice the largest K.
        seeds: One run for each K and seed.
    """
    runs = run_quadratics(
        [f"local_sgd:{period}" for period in periods],
        options={"learning_rate": LEARNING_RATE, "noise": NOISE},
        workers={"count": NUM_WORKERS},
        num_steps=num_steps,
        evaluate_every=periods[-1],
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
    problem = problem_of(num_workers=NUM_WORKERS, noise=NOISE)
    floors = {period: problem.rounds(step=LEARNING_RATE, period=period).floor for period in periods}
    times = tuple(
        Prediction(
            setting={"K": str(period)},
            quantity="seconds of a step",
            scale="relative",
            predicted=compute_s + exchange_s / period,
            measured=steps_s[period],
            baseline=compute_s + exchange_s,
        )
        for period in periods[1:-1]
    )
    ends = tuple(
        Prediction(
            setting={"K": str(period)},
            quantity="loss in the end",
            scale="relative",
            predicted=floors[period],
            measured=losses[period],
            baseline=floors[first],
        )
        for period in periods
    )
    time_error, loss_error = (statistics.median(abs(one.error) for one in each) for each in (times, ends))
    return Measured(
        study="local-sgd",
        finding=f"An exchange takes {format_seconds(exchange_s)} and a step {format_seconds(compute_s)}; between the K "
        f"that this was fitted to, steps are off by {100 * time_error:.1f} % (median), and losses in the end, with "
        f"nothing fitted, by {100 * loss_error:.1f} %: they rise from {losses[first]:.2g} to {losses[last]:.2g}.",
        setting=f"{NUM_WORKERS} processes, {num_steps} steps each a step of {LEARNING_RATE:g}, noise {NOISE:g}; "
        f"{len(seeds)} run{'s' * (len(seeds) > 1)} for each K, medians; the loss is the mean of the second half's "
        "evaluations. Baselines: no exchange is saved; no drift.",
        predictions=(*times, *ends),
        charts=(
            _loss_chart(losses, floors=floors),
            _time_chart(steps_s, modelled_s={period: compute_s + exchange_s / period for period in periods}),
        ),
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
