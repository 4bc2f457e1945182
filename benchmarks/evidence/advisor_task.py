"""A drawn scenario as a task of Plesio's, for `advisor.py`: the same problem, rate and schedule in every process."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from families import FAMILIES, Problem
from plain import OPTIMIZERS, make_schedule, points_of
from scenario import Scenario, draw
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset
from tuning import Tuned, tuned

from plesio.tasks import Task

OUT = Path(__file__).parents[2] / "runs" / "evidence" / "advisor"
MOST_WORKERS, MOST_STEPS = 8, 200
"""Smaller than the scenarios of `unseen.py`: here some thirty candidates are measured in each."""
BALLAST_NUMBERS = 2**13
SHARE = 0.8
"""Share at which the curve is still steep: near its end, chance decides when it comes to a level."""


def scenario_of(seed: int) -> Scenario:
    """Return the scenario of a seed, made smaller: workers that are slow stay the last ones."""
    drawn = draw(seed)
    workers = min(drawn.num_workers, MOST_WORKERS)
    return replace(
        drawn,
        num_workers=workers,
        num_steps=min(drawn.num_steps, MOST_STEPS),
        slow_factors=drawn.slow_factors[: workers - 1],
        racks=min(drawn.racks, 2) if workers == MOST_WORKERS else 1,
        link_changes=(),
    )


@functools.cache
def tuned_of(seed: int) -> Tuned:
    """Rate and target, fixed by plain runs in one process; the target is `SHARE` of the rise, however soon."""
    found = tuned(scenario_of(seed), folder=OUT / "tuned")
    return replace(found, target=found.start + SHARE / found.target_share * (found.target - found.start))


def make(*, seed: int) -> Task:
    it, found = scenario_of(seed), tuned_of(seed)
    problem = FAMILIES[it.family].make(it.seed, it.difficulty)

    def build(_: int) -> tuple[nn.Module, Optimizer]:
        model = problem.build()
        model.register_parameter("ballast", nn.Parameter(torch.zeros(BALLAST_NUMBERS)))
        create, _rate = OPTIMIZERS[it.optimizer]
        return model, create(model.parameters(), lr=found.rate)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return problem.loss(model, batch) + 0.0 * model.get_parameter("ballast").sum()

    def per_worker(worker: int, num_workers: int) -> Task:
        return replace(task, train_set=lambda: TensorDataset(*_rows(problem, worker, num_workers)), per_worker=None)

    task = Task(
        name=it.name,
        build=build,
        train_set=lambda: TensorDataset(*problem.train),
        loss=loss,
        metric=lambda model: points_of(problem, model),
        metric_name="points",
        metric_goal="max",
        batch_size=it.batch_size,
        num_epochs=1,
        target=found.target,
        schedule=lambda optimizer, num_steps: make_schedule(it.schedule, optimizer, num_steps=num_steps),
        per_worker=None if problem.rows_of is None else per_worker,
    )
    return task


def _rows(problem: Problem, worker: int, num_workers: int) -> tuple[torch.Tensor, ...]:
    assert problem.rows_of is not None, "asked for"
    rows = problem.rows_of(worker, num_workers)
    return tuple(tensor[rows] for tensor in problem.train)
