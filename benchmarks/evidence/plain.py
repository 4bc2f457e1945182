"""Plain single-process training of a family's problem with the global batch: what rates and targets are fixed by.

No policy is run here, and nothing of Plesio trains: torch's optimizer, torch's schedule, one batch after the other.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from families import Problem
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from plesio.tasks.task import evaluation_mode, seeded

__all__ = ["NUM_EVALUATIONS", "OPTIMIZERS", "SCHEDULES", "Curve", "make_schedule", "points_of", "train_plain"]

NUM_EVALUATIONS = 40
"""In a run, plain or under a policy."""
FLOOR = -100.0
"""Points of a model whose outputs are not finite."""

OPTIMIZERS: Mapping[str, tuple[Callable[..., Optimizer], float]] = {
    "sgd": (torch.optim.SGD, 0.1),
    "momentum": (lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9), 0.02),
    "nesterov": (lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True), 0.02),
    "adam": (torch.optim.Adam, 0.004),
    "adamw": (torch.optim.AdamW, 0.004),
    "adagrad": (torch.optim.Adagrad, 0.03),
    "rmsprop": (torch.optim.RMSprop, 0.002),
}
"""How each is made from parameters and ``lr``, and the rate at which its sweep begins."""


def _cosine(share: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, share)))


SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "cosine": _cosine,
    "warm-up": lambda share: share / 0.1 if share < 0.1 else _cosine((share - 0.1) / 0.9),
    "step": lambda share: 0.1 if share >= 0.75 else 0.3 if share >= 0.5 else 1.0,
}
"""The rate relative to its peak, by the share of the run that is over. The warm-up is a tenth, a cosine follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of a run's evaluations, by samples trained on; the first is before any."""

    samples: tuple[int, ...]
    points: tuple[float, ...]


def make_schedule(name: str, optimizer: Optimizer, *, num_steps: int) -> LambdaLR:
    """Make the schedule of this name over ``num_steps``; the first step's rate is above zero."""
    return LambdaLR(optimizer, lambda step: SCHEDULES[name]((step + 1) / (num_steps + 1)))


def points_of(problem: Problem, model: nn.Module) -> float:
    """Return the metric now, or FLOOR where it is not finite."""
    with evaluation_mode(model):
        points = problem.points(model)
    return points if math.isfinite(points) else FLOOR


def train_plain(
    problem: Problem, *, optimizer: str, rate: float, schedule: str, batch_size: int, num_steps: int, seed: int
) -> Curve:
    """Train in this process; a run whose loss is no longer finite has FLOOR from there on."""
    with seeded(seed):
        model = problem.build()
    make, _ = OPTIMIZERS[optimizer]
    steps = make(model.parameters(), lr=rate)
    rates = make_schedule(schedule, steps, num_steps=num_steps)
    due = {round(num_steps * number / NUM_EVALUATIONS) for number in range(1, NUM_EVALUATIONS + 1)}
    samples, points = [0], [points_of(problem, model)]
    finite = True
    for number, rows in enumerate(_batches(problem, batch_size, num_steps=num_steps, seed=seed), start=1):
        if finite:
            loss = problem.loss(model, [tensor[rows] for tensor in problem.train])
            steps.zero_grad(set_to_none=True)
            loss.backward()
            steps.step()
            rates.step()
        if number in due:
            finite = finite and math.isfinite(loss.item())
            samples.append(number * batch_size)
            points.append(points_of(problem, model) if finite else FLOOR)
    return Curve(samples=tuple(samples), points=tuple(points))


def _batches(problem: Problem, batch_size: int, *, num_steps: int, seed: int) -> Iterator[Tensor]:
    """Rows of each step: every sample once before any comes again."""
    random = torch.Generator().manual_seed(seed)
    left = torch.empty(0, dtype=torch.long)
    for _ in range(num_steps):
        while len(left) < batch_size:
            left = torch.cat([left, torch.randperm(problem.num_samples, generator=random)])
        yield left[:batch_size]
        left = left[batch_size:]
