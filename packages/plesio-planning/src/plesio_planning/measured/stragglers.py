"""Real processes at a real barrier: steps are made to last drawn times, and a BSP run waits for the slowest of them.

What an exchange takes is measured with steps that do not vary; the rest is the mean of the largest of N draws.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.units import format_seconds
from plesio.core.within import Within
from plesio_planning.measured.quadratics import run_quadratics
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.measured import Measured
from plesio_planning.studies.order_statistics import GammaTimes, LogNormalTimes

__all__ = ["FOUND", "measure", "measure_barriers"]

FOUND = ("exchange_s",)
Distribution = Literal["lognormal", "gamma"]

NUM_WORKERS = (2, 4, 8)
CVS = (0.5,)
NUM_STEPS = 120
MEAN_S = 0.02


def measure(
    twin: Twin,
    /,
    *,
    num_workers: Annotated[int, Within(2, 8)] = 8,
    distribution: Distribution = "lognormal",
    compute_s: Annotated[float, Within(0.01, 0.2)] = MEAN_S,
    cv: Annotated[float, Within(0.05, 1)] = 0.5,
    num_steps: Annotated[int, Within(20, 1000)] = NUM_STEPS,
) -> Measured:
    """Measure two, four and eight processes whose steps vary by half; takes about a minute.

    Args:
        twin: Keeps what is measured.
        num_workers: The most processes; half as many and a quarter are measured, too.
        distribution: Distribution of the steps.
        compute_s: Mean step.
        cv: Coefficient of variation of the steps.
        num_steps: Steps of each worker.
    """
    counts = sorted({max(2, round(num_workers / part)) for part in (1, 2, 4)})
    return measure_barriers(
        on_step=twin.say,
        num_workers=counts,
        cvs=(cv,),
        num_steps=num_steps,
        mean_s=compute_s,
        distribution=distribution,
    )


def measure_barriers(
    *,
    on_step: Callable[[str], None],
    num_workers: Sequence[int] = NUM_WORKERS,
    cvs: Sequence[float] = CVS,
    num_steps: int = NUM_STEPS,
    mean_s: float = MEAN_S,
    distribution: Distribution = "lognormal",
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        num_workers: How many processes.
        cvs: Coefficients of variation of a step.
        num_steps: Steps of each worker.
        mean_s: Mean step.
        distribution: Distribution of the steps.
    """
    times = LogNormalTimes if distribution == "lognormal" else GammaTimes
    predictions = []
    costs: dict[float, dict[int, tuple[float, float]]] = {cv: {} for cv in cvs}
    for count in num_workers:

        def step_s(step_time: dict[str, Any], count: int = count) -> float:
            (run,) = run_quadratics(
                ["bsp"],
                options={"learning_rate": 0.1},
                workers={"count": count, "step_time": {"mean": f"{1e3 * mean_s:g} ms", **step_time}},
                num_steps=num_steps,
                evaluate_every=num_steps,
                seeds=(0,),
                on_step=lambda _: on_step(f"{count} workers, {step_time['kind']} steps, cv {step_time.get('cv', 0):g}"),
            )
            return run.wall_s / num_steps

        exchange_s = step_s({"kind": "constant"}) - mean_s
        for cv in cvs:
            measured_s = step_s({"kind": distribution, "cv": cv})
            slowest_s = times(mean_s=mean_s, cv=cv).expected_s(rank=count, of=count)
            costs[cv][count] = (slowest_s / mean_s, (measured_s - exchange_s) / mean_s)
            predictions.append(
                Prediction(
                    setting={"workers": str(count), "cv": f"{cv:g}"},
                    quantity="seconds of an iteration",
                    scale="relative",
                    predicted=slowest_s + exchange_s,
                    measured=measured_s,
                    baseline=mean_s + exchange_s,
                )
            )
    error = statistics.median(abs(one.error) for one in predictions)
    baseline = statistics.median(abs(one.baseline_error) for one in predictions)
    return Measured(
        study="stragglers",
        finding=f"Iterations are off by {100 * error:.1f} % (median); the mean step instead of the slowest worker's "
        f"would be off by {100 * baseline:.0f} %.",
        setting=f"BSP by real processes, {num_steps} iterations each; steps {format_seconds(mean_s)}, {distribution}. "
        "An exchange is what an iteration with constant steps takes beyond them, for each number of workers.",
        predictions=tuple(predictions),
        charts=(_chart(costs),),
    )


def _chart(costs: Mapping[float, Mapping[int, tuple[float, float]]]) -> LineChart:
    """The slowest worker over the mean, by coefficient of variation and number of workers: modelled and measured."""
    series = []
    for cv, by_count in costs.items():
        group, counts = f"cv {cv:g}", list(by_count)
        modelled, measured = zip(*by_count.values(), strict=True)
        series.append(Series(name=f"{group}, modelled", group=group, x=counts, y=list(modelled)))
        series.append(Series(name=f"{group}, measured", group=group, x=counts, y=list(measured), style="points"))
    return LineChart(
        slug="measured",
        title="Real workers wait for the slowest as long as the integral says",
        caption="Slowest worker's time over the mean, by number of workers.",
        x=Axis(title="workers", log=True),
        y=Axis(title="time over mean"),
        series=series,
    )
