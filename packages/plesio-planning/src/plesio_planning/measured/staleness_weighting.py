"""Weightings in a real asynchronous run: how many updates take the loss to a tenth.

Four processes share a store; their steps vary, and one is slower. The staleness of the updates is measured in the
unweighted run, and with that distribution the study's mechanism (`studies.delayed_descent`) says what each
weighting does. Updates that a cut-off refuses are not counted, here and there.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.results import RunResult
from plesio.core.within import Within
from plesio.policies.weighting import parse_weighting
from plesio_planning.measured.quadratics import LIKE_WORKERS, problem_of, run_quadratics
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.delayed_descent import LateUpdates, descend_in_loss
from plesio_planning.studies.heterogeneous_quadratic import HeterogeneousQuadratic
from plesio_planning.studies.measured import Measured

FOUND = ("max_staleness", "shares")

Array = NDArray[np.float64]

NUM_WORKERS = 4
WEIGHTINGS = ("none", "inverse", "exp:0.3", "cap:3")
"""The first two are measured whatever is asked."""
NUM_STEPS = 150
LEARNING_RATE = 0.8
STEP_MS = 8
CV = 0.5
SLOW_SPEED = 0.5
NUM_DRAWS = 20


def measure(
    twin: Twin,
    num_steps: int = NUM_STEPS,
    seeds: Sequence[int] = (0,),
    /,
    *,
    weightings: Annotated[tuple[str, ...], Within(most=6)] = WEIGHTINGS[2:],
    condition_number: Annotated[float, Within(1, 100)] = 10.0,
    num_dimensions: Annotated[int, Within(2, 100)] = 10,
) -> Measured:
    """Measure four weightings with four processes; takes about half a minute."""
    chosen = tuple(dict.fromkeys((*WEIGHTINGS[:2], *weightings)))
    options = {"condition_number": condition_number, "num_dimensions": num_dimensions, **LIKE_WORKERS}
    runs = run_quadratics(
        ["asp" if text == "none" else f"asp,weight={text}" for text in chosen],
        options={"learning_rate": LEARNING_RATE, **options},
        workers={
            "count": NUM_WORKERS,
            "step_time": {"kind": "lognormal", "mean": f"{STEP_MS} ms", "cv": CV},
            "unequal": [{"rank": NUM_WORKERS - 1, "speed": SLOW_SPEED}],
        },
        num_steps=num_steps,
        evaluate_every=max(num_steps // 20, 1),
        seeds=seeds,
        on_step=twin.say,
    )
    curves = {text: list(map(_curve, each)) for text, each in zip(chosen, runs.values(), strict=True)}
    counts = _counts(runs["asp"])
    problem, num_updates = problem_of(num_workers=NUM_WORKERS, **options), num_steps * NUM_WORKERS  # type: ignore[arg-type]
    fresh = _tenth(_modelled(problem, np.array([1.0]), "none", num_updates=num_updates))
    series = []
    for text in chosen:
        modelled = _modelled(problem, counts, text, num_updates=num_updates)
        series.append(Series(name=text, x=list(modelled), y=list(modelled.values())))
        twin.predict(
            "updates to a tenth of the loss",
            {"weighting": text},
            predicted=_tenth(modelled),
            measured=statistics.median(map(_tenth, curves[text])),
            baseline=fresh,
        )
    points = [point for each in curves.values() for point in each[0].items()]
    series.append(Series(name="measured", x=[x for x, _ in points], y=[y for _, y in points], style="points"))
    mean = float(counts @ np.arange(len(counts)) / counts.sum())
    slowest = max(twin.predictions, key=lambda one: one.measured)
    fastest = min(twin.predictions, key=lambda one: one.measured)
    return twin.measured(
        "staleness-weighting",
        finding=f"With the measured staleness ({mean:.2f} updates on average, {len(counts) - 1} at most) the model is "
        f"off by {twin.off():.1f} % (median): at one step for all, {fastest.setting['weighting']} takes "
        f"{fastest.measured:.0f} updates to a tenth of the loss and {slowest.setting['weighting']} "
        f"{slowest.measured:.0f}.",
        setting=f"{NUM_WORKERS} processes and a store, steps of {STEP_MS} ms (lognormal, coefficient of variation "
        f"{CV:g}), one worker at {SLOW_SPEED:g} of the speed; {num_steps} steps each of {LEARNING_RATE:g}; "
        f"{len(seeds)} run{'s' * (len(seeds) > 1)} for each weighting. The baseline has neither staleness nor weights.",
        rivals="weighting",
        charts=[_losses(series), _staleness(counts, mean=mean)],
    )


def _losses(series: Sequence[Series]) -> LineChart:
    return LineChart(
        slug="measured",
        title="Weighting by staleness is a smaller step, as the model says",
        caption="Loss above the optimum by updates that were applied; lines are modelled.",
        x=Axis(title="updates"),
        y=Axis(title="loss above the optimum", log=True),
        series=series,
    )


def _staleness(counts: Array, *, mean: float) -> LineChart:
    shares = (100 * counts / counts.sum()).tolist()
    return LineChart(
        slug="measured-staleness",
        title=f"Updates are {mean:.1f} updates stale on average",
        caption="Share of updates by staleness, as measured in the unweighted run.",
        x=Axis(title="staleness (updates)"),
        y=Axis(title="updates (%)"),
        series=[Series(name="measured", x=range(len(counts)), y=shares, style="points")],
    )


def _counts(runs: Sequence[RunResult]) -> Array:
    """Count updates by staleness, over all runs."""
    longest = max(len(run.staleness.counts) for run in runs)
    counts = np.zeros(longest)
    for run in runs:
        counts[: len(run.staleness.counts)] += run.staleness.counts
    return counts


def _modelled(problem: HeterogeneousQuadratic, counts: Array, weighting: str, *, num_updates: int) -> dict[int, float]:
    """Return the loss by updates: geometric mean over draws of the staleness."""
    weigh = parse_weighting(weighting)
    weights = np.array([weigh(tau) for tau in range(len(counts))])
    applied = np.where(weights > 0, counts, 0.0)
    curvature = problem.eigenvalues.mean(axis=0)
    random = np.random.default_rng(0)
    logs = np.zeros(num_updates + 1)
    for _ in range(NUM_DRAWS):
        delays = random.choice(len(counts), size=num_updates, p=applied / applied.sum())
        updates = LateUpdates.of(delays, steps=LEARNING_RATE / NUM_WORKERS * weights[delays])
        logs += np.log(descend_in_loss(curvature, updates).loss) / NUM_DRAWS
    return dict(enumerate(np.exp(logs).tolist()))


def _curve(run: RunResult) -> dict[int, float]:
    """Loss by updates that were applied; the last evaluation is at the run's end, whose samples count refused ones."""
    *during, end = run.evaluations
    return {each.samples: each.metric for each in during} | {sum(run.staleness.counts): end.metric}


def _tenth(losses: dict[int, float]) -> float:
    """Return the updates that divide the loss by ten, between a quarter of the run and its end."""
    last = max(losses)
    first = min(losses, key=lambda number: abs(number - last / 4))
    return (last - first) / math.log10(losses[first] / losses[last])
