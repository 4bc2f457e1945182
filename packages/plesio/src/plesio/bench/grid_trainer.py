"""A worker of a comparison under a grid: it trains a stage of the recipe's task."""

import inspect
import math
from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from plesio.bench.assignment import Assignment, checkpoints_of, info_of, seed_streams
from plesio.bench.recipe import Recipe
from plesio.core.clock import MonotonicClock
from plesio.core.errors import TaskError
from plesio.policies.grid import GridSetting
from plesio.runtime.grid.cutting import units_of
from plesio.runtime.grid.join_grid import grid
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.job_handle import JobHandle
from plesio.runtime.worker.pacing import Pacer
from plesio.tasks.check import check_chain
from plesio.tasks.task import Task


def check_for_grids(recipe: Recipe, task: Task) -> None:
    """Pass when the recipe's grids, if there are any, can cut the task's network.

    Raises:
        TaskError: It is no chain of layers, or one that is too short.
    """
    if not recipe.grids:
        return
    check_chain(task)
    assert task.chain is not None, "checked"
    num_layers = len(units_of(task.chain.layers(task.build(0)[0])))
    for setting in recipe.grids:
        if setting.stages > num_layers:
            raise TaskError(
                f'task "{task.name}": its network has {num_layers} layers with weights, and {setting.spec} needs '
                f"{setting.stages}, one a stage at least; write fewer stages"
            )


def optimizer_of_stage(whole: Optimizer, weights: Iterable[nn.Parameter]) -> Optimizer:
    """Make an optimizer of the kind of the ``whole`` network's, with the same options for each weight of a stage.

    Raises:
        TaskError: It has none of the weights.
    """
    own = {id(weight) for weight in weights}
    groups: list[dict[str, Any]] = []
    for group in whole.param_groups:
        kept = [weight for weight in group["params"] if id(weight) in own]
        if kept:
            groups.append({**group, "params": kept})
    if not groups:
        raise TaskError("a stage has no weights that the task's optimizer steps; write fewer stages")
    # options are in the groups; what a constructor wants besides are those that it has no default for
    wanted = inspect.signature(type(whole)).parameters
    return type(whole)(groups, **{name: value for name, value in whole.defaults.items() if name in wanted})


def train_in_grid(
    recipe: Recipe,
    task: Task,
    assignment: Assignment,
    *,
    job: JobHandle | None,
    began_s: float | None = None,
    pacer: Pacer | None = None,
) -> dict[str, Any] | None:
    """Do one run; returns its result as JSON values on the worker that collects, None elsewhere.

    The task's batch size is a micro-batch's, and its schedule goes over a stage's updates. Arguments are those of
    `plesio.bench.trainer.train`.
    """
    setting = GridSetting.parse(assignment.policy)
    place = job.place if job is not None else WorkerPlace.alone()
    own = task.for_worker(place.rank // setting.stages % setting.groups, setting.groups)  # who joins is one of them
    chain = own.chain
    assert chain is not None, "`check_for_grids` was asked"
    model, optimizer = own.build(assignment.seed)
    seed_streams(assignment.seed, place.rank)
    data: Any = own.train_set()
    budget = recipe.budget_samples(len(data))
    num_updates = max(1, math.ceil(budget / (own.batch_size * setting.groups * setting.micro_batches)))
    clock = MonotonicClock() if job is None else job.clock
    paced = recipe.workers.pacer(place.rank, seed=assignment.seed, clock=clock, began_s=began_s)
    session = grid(
        chain.layers(model),
        lambda weights: optimizer_of_stage(optimizer, weights),
        chain.loss,
        setting=setting,
        scheduler_factory=lambda own_optimizer: own.schedule(own_optimizer, num_updates),
        trace=assignment.folder,
        **checkpoints_of(recipe, assignment),
        options=JoinOptions(
            snapshot_every=recipe.run.evaluate_every or len(data),
            pacer=pacer if paced is None else paced,
            info=info_of(task, seed=assignment.seed),
            job=job,
        ),
    )
    with session:
        for batch in session.shard(
            DataLoader(data, batch_size=own.batch_size, shuffle=True), samples=assignment.samples(budget)
        ):
            session.step(*chain.split(batch))
        session.finish(lambda: own.metric(model))
    return session.report().to_json() if session.state_dict() is not None else None
