"""The schedules' learning on one cut: accuracy over samples, and over the time that their stages take.

Every run is a real one in the virtual world, on the digits of scikit-learn. A synchronous schedule's numbers are those
of plain training with the mean of m micro-batches, so schedules of equal m share one run, each with its own time.
"""

import functools
import statistics
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any

import torch
from cases import DECOUPLED, OUR_1F1B, OUR_GPIPE, SEQUENTIAL, TWO_BW, Case
from modelled import NO_LINK, between_hosts, pacer_of
from networks import Shape
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)
from torch.utils.data import DataLoader

import plesio
from plesio.core.results import RunResult
from plesio.protocol.figures import RunInfo
from plesio.runtime.worlds.virtual import simulate
from plesio.tasks import load_task

MICRO_BATCH = 8
TARGET = 0.96
LEARNED = (SEQUENTIAL, OUR_GPIPE, OUR_1F1B, TWO_BW, *DECOUPLED)
"""One of each kind of numbers."""
RATES = (0.003125, 0.00625, 0.0125, 0.025, 0.05, 0.1)
"""Step sizes that are tried, for updates of one micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One run.

    Attributes:
        samples: At each evaluation.
        accuracies: There, on the digits that were held out.
        seconds: Virtual, there.
    """

    samples: tuple[int, ...]
    accuracies: tuple[float, ...]
    seconds: tuple[float, ...]

    def to_target(self, target: float) -> float | None:
        """Seconds until the accuracy first was ``target``; None if it never was."""
        reached = [at for at, accuracy in zip(self.seconds, self.accuracies, strict=True) if accuracy >= target]
        return reached[0] if reached else None


def network(seed: int) -> list[nn.Module]:
    torch.manual_seed(seed)
    return [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()),
        nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()),
        nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()),
        nn.Sequential(nn.Linear(64, 10)),
    ]


def learn(case: Case, *, rate: float, seed: int, epochs: int) -> Curve:
    """Train the four stages, of 20 ms each.

    Args:
        case: A grid's schedule.
        rate: Step size.
        seed: Of the weights and the order of the samples.
        epochs: Passes over the data.
    """
    task, shape = load_task("digits"), Shape(stages=4)
    samples = epochs * len(task.train_set())  # type: ignore[arg-type]

    def accuracy(grid: Any) -> float:
        return float(task.metric(grid.model))

    def work(job: Any) -> RunResult:
        torch.set_num_threads(1)
        options = plesio.JoinOptions(
            pacer=pacer_of(shape, job.place.rank, job), info=RunInfo(seed=seed), snapshot_every=samples // (2 * epochs)
        )
        make = functools.partial(torch.optim.SGD, lr=rate)
        with plesio.grid(
            network(seed), make, F.cross_entropy, setting=case.grid(shape.stages), options=options
        ) as grid:
            loader = DataLoader(task.train_set(), batch_size=MICRO_BATCH, shuffle=True, drop_last=True)
            for images, labels in grid.shard(loader, samples=samples):
                grid.step(images, labels)
            grid.finish(lambda: accuracy(grid))
            return grid.report()

    with redirect_stderr(StringIO()):  # where it was cut is known
        result = simulate(work, num_workers=4, cluster=between_hosts(4, NO_LINK)).values()[0]
    assert result is not None
    points = result.evaluations
    return Curve(
        samples=tuple(point.samples for point in points),
        accuracies=tuple(point.metric for point in points),
        seconds=tuple(point.at_s for point in points),
    )


def tune(case: Case, *, epochs: int, rates: Sequence[float] = RATES) -> float:
    """Find the step size of the best mean accuracy over a run, on a seed that is not reported."""
    factor = min(4.0, case.micro_batches(4) ** 0.5)  # larger updates are less noisy

    def quality(rate: float) -> float:
        return statistics.fmean(learn(case, rate=rate, seed=1000, epochs=epochs).accuracies)

    return max((rate * factor for rate in rates), key=quality)


def learn_all(*, seeds: Sequence[int], epochs: int, cases: Sequence[Case] = LEARNED) -> Mapping[Case, Any]:
    """By case, its step size and its curves."""
    found = {}
    for case in cases:
        rate = tune(case, epochs=epochs)
        found[case] = {"rate": rate, "curves": [learn(case, rate=rate, seed=seed, epochs=epochs) for seed in seeds]}
    return found
