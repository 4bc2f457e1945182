"""Real processes at a real barrier: steps are made to last drawn times, and a BSP run waits for the slowest of them.

An exchange is measured with steps that do not vary; the rest is the mean of the largest of N draws.
"""

from typing import Annotated, Any, Literal

from plesio.core.charts import Axis
from plesio.core.units import format_seconds
from plesio.core.within import Within
from plesio_planning.measured.quadratics import run_quadratics
from plesio_planning.measured.twin import Twin, beside, median_off
from plesio_planning.studies.measured import Measured
from plesio_planning.studies.order_statistics import GammaTimes, LogNormalTimes

FOUND = ("exchange_s",)
NUM_STEPS = 120
MEAN_S = 0.02


def measure(
    twin: Twin,
    /,
    *,
    num_workers: Annotated[int, Within(2, 8)] = 8,
    distribution: Literal["lognormal", "gamma"] = "lognormal",
    compute_s: Annotated[float, Within(0.01, 0.2)] = MEAN_S,
    cv: Annotated[float, Within(0.05, 1)] = 0.5,
    num_steps: Annotated[int, Within(20, 1000)] = NUM_STEPS,
) -> Measured:
    """Measure two, four and eight processes whose steps vary by half; takes about a minute."""
    times = (LogNormalTimes if distribution == "lognormal" else GammaTimes)(mean_s=compute_s, cv=cv)

    def step_s(count: int, step_time: dict[str, Any]) -> float:
        """Return the seconds of an iteration of so many workers."""
        said = f"{count} workers, {step_time['kind']} steps, cv {step_time.get('cv', 0):g}"
        runs = run_quadratics(
            ["bsp"],
            options={"learning_rate": 0.1},
            workers={"count": count, "step_time": {"mean": f"{1e3 * compute_s:g} ms", **step_time}},
            num_steps=num_steps,
            evaluate_every=num_steps,
            seeds=(0,),
            on_step=lambda _: twin.say(said),
        )
        return runs["bsp"][0].wall_s / num_steps

    counts = sorted({max(2, round(num_workers / part)) for part in (1, 2, 4)})
    modelled, measured = [], []
    for count in counts:
        # constant steps leave the exchange
        exchange_s = step_s(count, {"kind": "constant"}) - compute_s
        measured_s = step_s(count, {"kind": distribution, "cv": cv})
        slowest_s = times.expected_s(rank=count, of=count)
        modelled.append(slowest_s / compute_s)
        measured.append((measured_s - exchange_s) / compute_s)
        twin.predict(
            "seconds of an iteration",
            {"workers": count, "cv": f"{cv:g}"},
            predicted=slowest_s + exchange_s,
            measured=measured_s,
            baseline=compute_s + exchange_s,
        )
    return twin.measured(
        "stragglers",
        finding=f"Iterations are off by {twin.off():.1f} % (median); the mean step instead of the slowest worker's "
        f"would be off by {median_off(twin.predictions, baseline=True):.0f} %.",
        setting=f"BSP by real processes, {num_steps} iterations each; steps {format_seconds(compute_s)}, "
        f"{distribution}. An exchange is what an iteration with constant steps takes beyond them, for each number of "
        "workers.",
        charts=[
            beside(
                {f"cv {cv:g}": (counts, modelled, measured)},
                title="Real workers wait for the slowest as long as the integral says",
                caption="Slowest worker's time over the mean, by number of workers.",
                x=Axis(title="workers", log=True),
                y=Axis(title="time over mean"),
            )
        ],
    )
