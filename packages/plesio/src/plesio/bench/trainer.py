"""A worker of a comparison: it trains the recipe's task, run after run, in one process."""

import math
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.utils.data import DataLoader

from plesio.bench.assignment import Assignment, checkpoints_of, info_of, seed_streams
from plesio.bench.grid_trainer import check_for_grids, train_in_grid
from plesio.bench.process_pool import enlisted
from plesio.bench.recipe import Recipe, TaskSection
from plesio.core.clock import MonotonicClock
from plesio.core.errors import ConfigError, PlesioError
from plesio.policies.grid import is_grid
from plesio.runtime.job import Job
from plesio.runtime.join import join
from plesio.runtime.join_options import JoinOptions
from plesio.runtime.worker.environment import WorkerPlace
from plesio.runtime.worker.exchange.fragments import check_fragments
from plesio.runtime.worker.job_handle import JobHandle
from plesio.runtime.worker.pacing import Pacer
from plesio.tasks.check import check_task
from plesio.tasks.load import load_task
from plesio.tasks.task import Task


def recipe_task(recipe: Recipe) -> Task:
    """Return the recipe's task, with the recipe's batch size and target."""
    task = section_task(recipe.task)
    return task if recipe.run.target is None else replace(task, target=recipe.run.target)


def target_of(recipe: Recipe) -> float | None:
    """Return the metric whose first reaching is timed: the recipe's, or its task's own."""
    return recipe.run.target if recipe.task.is_script else recipe_task(recipe).target


def section_task(section: TaskSection) -> Task:
    """Return the task of a recipe's ``[task]``.

    Raises:
        ConfigError: It names a script.
    """
    if section.is_script:
        raise ConfigError(f"{section.script} is a script; a task is needed here, as in {section.script.name}:task")
    task = load_task(section.name, **section.options)
    return task if section.batch_size is None else replace(task, batch_size=section.batch_size)


def train(
    recipe: Recipe,
    task: Task,
    assignment: Assignment,
    *,
    job: JobHandle | None,
    began_s: float | None = None,
    pacer: Pacer | None = None,
) -> dict[str, Any] | None:
    """Do one run; returns its result as JSON values on one worker, None elsewhere.

    Args:
        recipe: Task to train, and the length of the training.
        task: The recipe's.
        assignment: Which run.
        job: The worker's membership; None for one alone.
        began_s: When the run began, on the job's clock; None is when the worker's first step begins.
        pacer: Makes steps take their time if the recipe does not give their duration.
    """
    if is_grid(assignment.policy):
        return train_in_grid(recipe, task, assignment, job=job, began_s=began_s, pacer=pacer)
    place = job.place if job is not None else WorkerPlace.alone()
    own = task.for_worker(place.rank % place.num_workers, place.num_workers)  # who joins takes over from another
    model, optimizer = own.build(assignment.seed)
    seed_streams(assignment.seed, place.rank)
    data = own.train_set()
    num_samples = _length(data)
    budget = recipe.budget_samples(num_samples)
    clock = MonotonicClock() if job is None else job.clock
    paced = recipe.workers.pacer(place.rank, seed=assignment.seed, clock=clock, began_s=began_s)
    session = join(
        model,
        optimizer,
        policy=assignment.policy,
        trace=assignment.folder,
        total_samples=budget,
        **checkpoints_of(recipe, assignment),
        options=JoinOptions(
            num_servers=recipe.run.servers,
            elastic=recipe.run.elastic,
            replicas=recipe.run.replicas,
            snapshot_every=recipe.run.evaluate_every or num_samples,
            pacer=pacer if paced is None else paced,
            info=info_of(task, seed=assignment.seed),
            job=job,
        ),
    )
    with session:
        num_steps = max(1, math.ceil(budget / (own.batch_size * session.num_workers)))
        schedule = own.schedule(optimizer, num_steps)
        if schedule is not None:
            session.register(schedule=schedule)
        for batch in session.shard(
            DataLoader(data, batch_size=own.batch_size, shuffle=True), samples=assignment.samples(budget)
        ):
            loss = own.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            session.step(loss)
            if schedule is not None and session.clock < num_steps:
                schedule.step()
        session.finish(lambda: own.metric(model))
    return session.report().to_json() if place.rank == 0 else None


def check_policies(recipe: Recipe, task: Task) -> None:
    """Raise `ConfigError` if the task's model is too small for one of the recipe's policies."""
    largest = max(recipe.policies, key=lambda policy: policy.fragments, default=None)
    if largest is not None and largest.fragments > 1:
        model, _ = task.build(0)
        check_fragments(largest, num_tensors=sum(p.requires_grad for p in model.parameters()))


def _length(data: Any) -> int:
    return len(data)


def serve_runs(recipe: Recipe, environment: Mapping[str, str], commands: Connection) -> None:
    """Send the samples of an epoch, then do runs until told to stop, as the entry of a worker process.

    Args:
        recipe: Task to train.
        environment: torchrun's variables.
        commands: Receives an `Assignment` for each run, None to stop; sends ("ready", samples of an epoch), then for
            each run ("done", result or None) or ("failed", sentence).
    """
    with enlisted(environment):
        torch.set_num_threads(1)
        place = WorkerPlace.from_environment()
        try:
            task = recipe_task(recipe)
            if place is None or place.rank == 0:
                check_task(task)
                check_for_grids(recipe, task)
                check_policies(recipe, task)
            commands.send(("ready", _length(task.train_set())))
            job: Job | None = None
            try:
                while (assignment := commands.recv()) is not None:
                    try:
                        if job is None and place is not None:
                            job = Job(place)  # not before: who waits for others that have given up cannot be stopped
                        commands.send(("done", train(recipe, task, assignment, job=job)))
                    except (PlesioError, RuntimeError) as error:
                        # the comparison names the run, keeps the others, and starts fresh workers
                        commands.send(("failed", f"{type(error).__name__}: {error}"))
                        break
            finally:
                if job is not None:
                    job.close()
        except PlesioError as error:
            commands.send(("unusable", str(error)))
        except (KeyboardInterrupt, EOFError, BrokenPipeError):
            pass  # told to stop, or the comparison is gone: the session and the job have been closed on the way here
