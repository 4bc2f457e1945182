"""Local SGD by real processes, on the very quadratics of the study: seconds of a step and loss in the end, by K.

The two constants of the time, computing and exchanging, are fitted to the smallest and the largest K; the loss has none
to fit, for the problem is known.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np

from plesio.core.charts import Axis, LineChart
from plesio.core.errors import ConfigError
from plesio.core.results import RunResult
from plesio.core.units import format_seconds
from plesio.core.within import Within
from plesio_planning.measured.quadratics import problem_of, run_quadratics
from plesio_planning.measured.twin import Twin, beside
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.measured import Measured

FOUND = ("compute_s", "exchange_s")

NUM_WORKERS = 2
PERIODS = (1, 2, 4, 8, 16, 32)
NUM_STEPS = 1024
LEARNING_RATE = 0.1
NOISE = 0.05


def measure(
    twin: Twin,
    most_steps: int = NUM_STEPS,
    seeds: Sequence[int] = (0, 1),
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

    A worker's steps are cut to a multiple of twice all numbers of local steps.

    Raises:
        ConfigError: Numbers of local steps that are not three, or that hardly ever end together.
    """
    rising = sorted(set(periods))
    if len(rising) < 3 or math.lcm(*rising) > most_steps // 4:
        raise ConfigError("local steps are measured for three numbers or more that end together; write 1,2,4,8, say")
    options = {
        "num_dimensions": num_dimensions,
        "condition_number": condition_number,
        "hessian_spread": hessian_spread,
        "heterogeneity": heterogeneity,
        "noise": noise,
    }
    together, first, last = math.lcm(*rising), rising[0], rising[-1]
    num_steps = most_steps - most_steps % (2 * together)
    runs = run_quadratics(
        [f"local_sgd:{period}" for period in rising],
        options={"learning_rate": floor_step, **options},
        workers={"count": num_workers},
        num_steps=num_steps,
        evaluate_every=together,
        seeds=seeds,
        on_step=twin.say,
    )
    steps_s = [statistics.median(run.wall_s / num_steps for run in each) for each in runs.values()]
    losses = [statistics.median(map(_late_loss, each)) for each in runs.values()]
    exchange_s = (steps_s[0] - steps_s[-1]) / (1 / first - 1 / last)
    compute_s = steps_s[0] - exchange_s / first
    modelled_s = [compute_s + exchange_s / period for period in rising]
    problem = problem_of(num_workers=num_workers, **options)  # type: ignore[arg-type]
    floors = [problem.rounds(step=floor_step, period=period).floor for period in rising]
    between = list(zip(rising, modelled_s, steps_s, strict=True))[1:-1]
    _predict(twin, "seconds of a step", between, baseline=compute_s + exchange_s)
    _predict(twin, "loss in the end", zip(rising, floors, losses, strict=True), baseline=floors[0])
    return twin.measured(
        "local-sgd",
        finding=f"An exchange takes {format_seconds(exchange_s)} and a step {format_seconds(compute_s)}; between the K "
        f"that this was fitted to, steps are off by {twin.off('seconds of a step'):.1f} % (median), and losses in the "
        f"end, with nothing fitted, by {twin.off('loss in the end'):.1f} %: they rise from {losses[0]:.2g} to "
        f"{losses[-1]:.2g}.",
        setting=f"{num_workers} processes, {num_steps} steps each a step of {floor_step:g}, noise {noise:g}; "
        f"{len(seeds)} run{'s' * (len(seeds) > 1)} for each K, medians; the loss is the mean of the second half's "
        "evaluations. Baselines: no exchange is saved; no drift.",
        rivals="K",
        charts=[
            _loss_chart(rising, floors, losses),
            beside(
                {"": (rising, [1e3 * each for each in modelled_s], [1e3 * each for each in steps_s])},
                slug="measured-time",
                title="A step takes what it computes and a K-th of an exchange",
                caption="Seconds of a step by local steps; the line is fitted to the first and the last point.",
                x=Axis(title="local steps K", log=True),
                y=Axis(title="time of a step (ms)"),
            ),
        ],
    )


def _predict(twin: Twin, quantity: str, rows: Iterable[tuple[int, float, float]], *, baseline: float) -> None:
    for period, predicted, measured in rows:
        twin.predict(quantity, {"K": period}, predicted=predicted, measured=measured, baseline=baseline)


def _loss_chart(periods: Sequence[int], floors: Sequence[float], losses: Sequence[float]) -> LineChart:
    return LineChart(
        slug="measured-loss",
        title="Real workers drift as far as the closed form says",
        caption="Loss above the optimum in the end, by local steps.",
        x=Axis(title="local steps K", log=True),
        y=Axis(title="loss above the optimum", log=True),
        series=lines_of(
            periods, {"modelled": floors}, dashed={"no drift": [floors[0]] * len(periods)}, points={"measured": losses}
        ),
    )


def _late_loss(run: RunResult) -> float:
    losses = [evaluation.metric for evaluation in run.evaluations]
    return float(np.mean(losses[len(losses) // 2 :]))
