"""Asynchronous runs with gradients that are late by a known number of updates, beside `studies.bounded_staleness`.

Workers whose steps all take the same time take turns at a store, so of τ + 1 of them each update is about τ updates
late. They descend on a quadratic with steps below and above the limit from which on that diverges. How much of the loss
an update leaves is what is measured; where it leaves all of it is the limit. Predicted are the former from the
staleness that the run's updates had, drawn independently, and the latter from these as well, and from τ alone.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Axis
from plesio.core.results import RunResult
from plesio.core.units import counted
from plesio.core.within import Within
from plesio_planning.measured.quadratics import LIKE_WORKERS, problem_of, run_quadratics
from plesio_planning.measured.twin import Line, Twin, beside
from plesio_planning.studies.delayed_descent import LateUpdates, descend_in_loss
from plesio_planning.studies.measured import Measured
from plesio_planning.theory.stability import stability_limit

Array = NDArray[np.float64]

FOUND = ()
LIMIT, LEFT = "limit of the step (1/L)", "loss that an update leaves"
DELAYS = (1, 3, 5)
SHARES = (0.5, 0.8, 1.1, 1.4, 1.7)
"""Steps over the limit."""
NUM_STEPS = 100
STEP_MS = 12
NUM_DRAWS = 10


def measure(
    twin: Twin,
    shares: Sequence[float] = SHARES,
    num_steps: int = NUM_STEPS,
    /,
    *,
    stalenesses: Annotated[tuple[int, ...], Within(1, 7, most=4)] = DELAYS,
    condition_number: Annotated[float, Within(1, 100)] = 1.0,
    num_dimensions: Annotated[int, Within(2, 100)] = 10,
) -> Measured:
    """Measure two, four and six workers that take turns; takes about a minute."""
    options = {"num_dimensions": num_dimensions, "condition_number": condition_number, **LIKE_WORKERS}
    eigenvalues = problem_of(num_workers=1, **options).eigenvalues[0]  # type: ignore[arg-type]
    delays, staleness, lines = sorted(set(stalenesses)), [], {}
    left_by_delay: dict[int, tuple[list[float], list[float]]] = {}
    for delay in delays:
        count, limit = delay + 1, stability_limit(staleness=delay)
        steps = [share * limit for share in shares]
        runs = run_quadratics(
            ["asp"],
            options={"learning_rate": [step * count for step in steps], **options},  # a worker's update is an N-th
            workers={"count": count, "step_time": {"kind": "constant", "mean": f"{STEP_MS} ms"}},
            num_steps=num_steps,
            evaluate_every=max(1, num_steps // 20),
            seeds=range(len(steps)),
            on_step=lambda what, count=count: twin.say(f"{count} workers, {what}"),  # type: ignore[misc]
        )["asp"]
        staleness.append(statistics.fmean(run.staleness.mean for run in runs))
        measured = [left_by_update({each.samples: each.metric for each in run.evaluations}) for run in runs]
        modelled = [
            _modelled(eigenvalues, run, step=step, num_updates=num_steps * count)
            for run, step in zip(runs, steps, strict=True)
        ]
        left_by_delay[delay] = modelled, measured
        # by the limit for constant staleness, and by the run's own staleness
        for how, predicted in (("constant", limit), ("the run's", where_it_leaves_all(steps, modelled))):
            twin.predict(
                LIMIT,
                {"staleness": delay, "taken as": how},
                predicted=predicted,
                measured=where_it_leaves_all(steps, measured),
                baseline=stability_limit(staleness=0),
            )
    for delay, (modelled, measured) in left_by_delay.items():
        for share, predicted, found in zip(shares, modelled, measured, strict=True):
            step, none = share * stability_limit(staleness=delay), np.zeros(num_steps * (delay + 1), np.int64)
            twin.predict(
                LEFT,
                {"staleness": delay, "step over limit": f"{share:g}"},
                predicted=predicted,
                measured=found,
                baseline=left_by_update(_descended(eigenvalues, step=step, delays=none)),
                scale="points",
            )
        growths = ([100 * (left - 1) for left in each] for each in (modelled, measured))
        lines[f"staleness {delay}"] = (shares, *growths)
    return _compared(
        twin,
        lines,  # type: ignore[arg-type]
        setting=f"{', '.join(str(delay + 1) for delay in delays)} processes and a store, no bound, steps of {STEP_MS} "
        f"ms; {counted(num_steps, 'step')} of each, without noise. Updates were "
        f"{', '.join(f'{mean:.2f}' for mean in staleness)} updates late on average. The baseline has no staleness.",
    )


def _compared(twin: Twin, lines: dict[str, Line], *, setting: str) -> Measured:
    limits = twin.rows(LIMIT, **{"taken as": "constant"})
    found = ", ".join(f"{one.measured:.3g} ({one.predicted:.3g})" for one in limits)
    return twin.measured(
        "bounded-staleness",
        finding=f"With a staleness of {', '.join(one.setting['staleness'] for one in limits)} real runs diverge from a "
        f"step of {found} on, the model's limit for constant staleness in brackets, and what an update leaves of the "
        f"loss is off by {twin.off(LEFT):.1f} points (median).",
        setting=setting,
        charts=[
            beside(
                lines,
                title="Real runs begin to diverge where the model says",
                caption="Growth of the loss by an update, by step over the stability limit of its staleness.",
                x=Axis(title="step over the limit"),
                y=Axis(title="growth of the loss (% an update)"),
                marks={"limit": 1.0},
            )
        ],
    )


def left_by_update(losses: dict[int, float]) -> float:
    """Return the share of the loss that an update leaves, from a quarter of the run on; by a line through the logs.

    >>> round(left_by_update({number: 0.9**number for number in range(20)}), 6)
    0.9
    """
    begin = max(losses) / 4
    points = [(number, math.log(loss)) for number, loss in losses.items() if number >= begin and loss > 0]
    x, y = zip(*points, strict=True)
    return math.exp(np.polyfit(x, y, 1)[0])


def where_it_leaves_all(steps: Sequence[float], left: Sequence[float]) -> float:
    """Return the step at which an update leaves the whole loss; on the line through the two next to it.

    >>> where_it_leaves_all([1.0, 2.0, 3.0], [0.5, 0.75, 1.25])
    2.5
    """
    above = next((place for place, share in enumerate(left) if share >= 1), len(left) - 1)
    first = max(above - 1, 0)
    (low, high), (before, after) = steps[first : first + 2], left[first : first + 2]
    return low + (1 - before) / (after - before) * (high - low)


def _modelled(eigenvalues: Array, run: RunResult, *, step: float, num_updates: int) -> float:
    """Model with delays drawn from those of the run; the mean of some draws."""
    counts = np.array(run.staleness.counts, dtype=float)
    random = np.random.default_rng(0)
    found = []
    for _ in range(NUM_DRAWS):
        delays = random.choice(len(counts), size=num_updates, p=counts / counts.sum())
        found.append(left_by_update(_descended(eigenvalues, step=step, delays=delays)))
    return statistics.fmean(found)


def _descended(eigenvalues: Array, *, step: float, delays: NDArray[np.int64]) -> dict[int, float]:
    going = descend_in_loss(eigenvalues, LateUpdates.of(delays, steps=step))
    return dict(enumerate(going.loss.tolist()))
