"""Trainings of ``digits`` with batches of many sizes, beside `plesio_planning.studies.batch_scaling`.

Two ranks share each batch and average their gradients, as data parallelism does. Each size has the best of a few step
lengths around ``1/(1 + B_noise/B)`` of the longest. The noise scale is measured as in practice: by the lengths
of the ranks' own gradients and of their mean, in the training with the largest batch (McCandlish et al. 2018, appendix
A.1). It predicts how many steps the other sizes need, and the critical batch, which is fitted to the steps as well.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from plesio.core.charts import Axis, LineChart
from plesio.core.errors import PlesioError
from plesio.core.units import counted
from plesio.core.within import Within
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.tasks.load import load_task
from plesio.tasks.task import take_batch
from plesio_planning.measured.ranks import Ranks
from plesio_planning.measured.real_gradients import flat_gradient, set_gradient
from plesio_planning.measured.twin import Twin
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.measured import Measured

FOUND = ("noise_scale",)
NUM_RANKS = 2
BATCHES = (8, 32, 128, 512)
TARGET = 0.1
LONGEST = 0.4
"""Step length of the largest batch around which others are tried."""
FACTORS = (0.5, 1.0, 2.0)
MOST_STEPS = 1200
STEPS = "steps to the target"
_EVALUATED = 400
"""Training samples whose loss is looked at."""
_LOOKS = 3
"""Steps between two looks."""
_WINDOWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTraining:
    """One training.

    Attributes:
        steps: Steps until the loss was at the target; infinite if it never was.
        own_squares: Mean of the squared lengths of the ranks' own gradients, by step.
        mean_squares: Squared length of their mean, by step.
    """

    batch: int
    length: float
    steps: float
    own_squares: tuple[float, ...]
    mean_squares: tuple[float, ...]


def measure(
    twin: Twin,
    factors: Sequence[float] = FACTORS,
    most_steps: int = MOST_STEPS,
    /,
    *,
    batches: Annotated[tuple[int, ...], Within(4, 1024, fewest=3, most=8)] = BATCHES,
    target: Annotated[float, Within(0.05, 0.8)] = TARGET,
    seed: int = 0,
) -> Measured:
    """Measure four batch sizes, rounded up to even numbers; takes about a minute.

    Raises:
        PlesioError: A size does not get to the target.
    """
    # ranks share a batch evenly
    batches = tuple(sorted({size + size % NUM_RANKS for size in batches}))
    with Ranks(NUM_RANKS) as ranks:

        def best_of(batch: int, length: float) -> BatchTraining:
            found = []
            for factor in factors:
                twin.say(f"batches of {batch}, steps of {factor * length:.3g}")
                answers: list[BatchTraining] = ranks.run(
                    train_to, batch=batch, length=factor * length, target=target, most_steps=most_steps, seed=seed
                )
                found.append(answers[0])
            best = min(found, key=lambda one: one.steps)
            if math.isinf(best.steps):
                raise PlesioError(f"batches of {batch} do not get to {target:g} of the loss in {most_steps} steps")
            return best

        # its training also gives the noise scale, from which the others' step lengths follow
        largest = best_of(batches[-1], LONGEST)
        scales = window_scales(largest)
        noise_scale = statistics.fmean(scales)
        trainings = [best_of(batch, largest.length / (1 + noise_scale / batch)) for batch in batches[:-1]]
    steps = {one.batch: one.steps for one in (*trainings, largest)}
    # S_min from the largest batch alone, so that the others are predictions
    least = largest.steps / (1 + noise_scale / largest.batch)
    critical = fitted_critical_batch(steps)
    for batch in batches[:-1]:
        twin.predict(
            STEPS,
            {"batch": batch},
            predicted=least * (1 + noise_scale / batch),
            measured=steps[batch],
            baseline=largest.steps * largest.batch / batch,
        )
    twin.predict(
        "critical batch",
        {"batches": f"{batches[0]} to {batches[-1]}"},
        predicted=noise_scale,
        measured=critical,
        baseline=scales[0],
    )
    return twin.measured(
        "batch-scaling",
        finding=f"Steps fall with the batch as with a critical batch of {critical:.3g}, where the noise scale measured "
        f"on the way says {noise_scale:.3g}; by that steps are off by {twin.off(STEPS):.0f} % (median).",
        setting=f"digits to {target:g} of its first loss, {NUM_RANKS} Gloo ranks that share each batch; the best of "
        f"{counted(len(factors), 'step length')} for each size. Noise scale of the largest batch's training: "
        f"{scales[0]:.3g} in its first eighth, {scales[-1]:.3g} in its last. The baseline of steps is that twice the "
        "batch saves half of them, that of the critical batch the noise scale at the start.",
        charts=[_chart(steps, least=least, noise_scale=noise_scale, critical=critical)],
    )


def train_to(
    group: TorchGroup, *, batch: int, length: float, target: float, most_steps: int, seed: int
) -> BatchTraining:
    """Train until the loss of some samples is at ``target`` times the first, sharing each batch among the ranks."""
    task = load_task("digits")
    model, _ = task.build(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=length)
    samples = task.train_set()
    number = len(samples)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    share = batch // group.size
    looked_at = take_batch(samples, list(range(group.rank, _EVALUATED, group.size)))

    def loss() -> float:
        with torch.no_grad():
            value = task.loss(model, looked_at).detach().reshape(1) / group.size
        group.all_reduce(value).wait()
        return float(value)

    first = before = loss()
    own_squares, mean_squares = [], []
    steps = math.inf
    for step in range(1, most_steps + 1):
        chosen = torch.randint(number, (batch,), generator=generator)[group.rank * share : (group.rank + 1) * share]
        optimizer.zero_grad()
        task.loss(model, take_batch(samples, chosen.tolist())).backward()  # type: ignore[no-untyped-call]
        own = flat_gradient(model) / group.size
        both = torch.cat([own, own.square().sum().reshape(1) * group.size])
        group.all_reduce(both).wait()
        mean = both[:-1]
        own_squares.append(float(both[-1]))
        mean_squares.append(float(mean.square().sum()))
        set_gradient(model, mean)
        optimizer.step()
        if step % _LOOKS == 0:
            now = loss()
            if not now < 10 * first:
                break
            if now <= target * first:
                steps = step - _LOOKS * (1 - math.log(before / (target * first)) / math.log(before / now))
                break
            before = now
    return BatchTraining(
        batch=batch, length=length, steps=steps, own_squares=tuple(own_squares), mean_squares=tuple(mean_squares)
    )


def window_scales(training: BatchTraining) -> list[float]:
    """Return the noise scale in each part of a training; windows whose gradient is nothing but noise are left out.

    ``‖g_B‖²`` is ``‖G‖² + tr Σ/B`` in the mean, which the ranks' own batches and the whole one solve.
    """
    batch, own_batch = training.batch, training.batch / NUM_RANKS
    scales = []
    windows = (np.array_split(squares, _WINDOWS) for squares in (training.own_squares, training.mean_squares))
    for own, mean in zip(*windows, strict=True):
        if not len(own):
            continue
        signal = (batch * mean.mean() - own_batch * own.mean()) / (batch - own_batch)
        trace = (own.mean() - mean.mean()) / (1 / own_batch - 1 / batch)
        if signal > 0:
            scales.append(max(0.0, float(trace / signal)))
    if not scales:
        raise PlesioError("cannot measure: the gradient is nothing but noise; write larger batches")
    return scales


def fitted_critical_batch(steps: Mapping[int, float]) -> float:
    """Fit B of ``S (1 + B/batch)``, with the least relative errors, as the study does.

    >>> round(fitted_critical_batch({10: 30.0, 20: 20.0, 40: 15.0}), 6)
    20.0
    """
    x, y = np.array([1 / batch for batch in steps]), np.array(list(steps.values()))
    slope, least = np.polyfit(x, y, 1, w=1 / y)
    return float(slope / least) if least > 0 else math.inf


def _chart(steps: Mapping[int, float], *, least: float, noise_scale: float, critical: float) -> LineChart:
    batches = list(steps)
    line = np.geomspace(batches[0], batches[-1], 30).tolist()
    halving = [steps[batches[-1]] * batches[-1] / batch for batch in line]
    return LineChart(
        slug="measured",
        title=f"Measured critical batch {critical:.3g}, noise scale {noise_scale:.3g}",
        caption="Steps of a real training to its target by batch; the line is by the noise scale.",
        x=Axis(title="batch (samples)", log=True),
        y=Axis(title="steps", log=True),
        series=[
            *lines_of(line, {"by the noise scale": [least * (1 + noise_scale / batch) for batch in line]}),
            *lines_of(batches, points={"measured": steps.values()}),
            *lines_of(line, dashed={"half the steps for twice the batch": halving}),
        ],
    )
