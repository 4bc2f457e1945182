"""What one worker of a comparison does: train the recipe's task, run after run, in one process."""

import math
import os
import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from plesio.bench.recipe import Recipe
from plesio.core.clock import MonotonicClock
from plesio.core.errors import PlesioError
from plesio.runtime.environment import Place
from plesio.runtime.job import Job
from plesio.runtime.job_handle import JobHandle
from plesio.runtime.join import join
from plesio.runtime.ledger import RunInfo
from plesio.tasks.check import check_task
from plesio.tasks.load import load_task
from plesio.tasks.task import Task

__all__ = ["Assignment", "serve_runs", "train"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One run: its policy's spec, its seed, and the folder for its traces."""

    policy: str
    seed: int
    folder: Path


def recipe_task(recipe: Recipe) -> Task:
    """The recipe's task, with the recipe's batch size and target."""
    task = load_task(recipe.task.name, **recipe.task.options)
    changes: dict[str, Any] = {}
    if recipe.task.batch_size is not None:
        changes["batch_size"] = recipe.task.batch_size
    if recipe.run.target is not None:
        changes["target"] = recipe.run.target
    return replace(task, **changes)


def train(recipe: Recipe, task: Task, assignment: Assignment, *, job: JobHandle | None) -> dict[str, Any] | None:
    """Do one run; returns its result as JSON values on rank 0, None elsewhere."""
    place = job.place if job is not None else Place.alone()
    own = task.for_worker(place.rank, place.num_workers)
    model, optimizer = own.build(assignment.seed)
    # Every worker has its own streams of random numbers (dropout, augmentation), repeatable from the run's seed.
    stream = assignment.seed * 1_000_003 + place.rank
    torch.manual_seed(stream)
    np.random.seed(stream % 2**32)
    random.seed(stream)
    data = own.train_set()
    num_samples = _length(data)
    budget = recipe.budget_samples(num_samples)
    info = RunInfo(
        task=task.name,
        seed=assignment.seed,
        metric_name=task.metric_name,
        metric_goal=task.metric_goal,
        target=task.target,
    )
    session = join(
        model,
        optimizer,
        policy=assignment.policy,
        trace=assignment.folder,
        num_servers=recipe.run.servers,
        snapshot_every=recipe.run.evaluate_every or num_samples,
        pacer=recipe.workers.pacer(
            place.rank, seed=assignment.seed, clock=MonotonicClock() if job is None else job.clock
        ),
        info=info,
        job=job,
    )
    with session:
        num_steps = max(1, math.ceil(budget / (own.batch_size * place.num_workers)))
        schedule = own.schedule(optimizer, num_steps)
        for batch in session.shard(DataLoader(data, batch_size=own.batch_size), samples=budget):
            loss = own.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            session.step(loss)
            if schedule is not None and session.clock < num_steps:
                schedule.step()
        session.finish(lambda: own.metric(model))
    return session.report().to_json() if place.rank == 0 else None


def _length(data: Any) -> int:
    return len(data)


def serve_runs(recipe: Recipe, environment: Mapping[str, str], commands: Connection) -> None:
    """Entry of a worker process: say how many samples an epoch has, then do runs until told to stop.

    Args:
        recipe: What to train.
        environment: torchrun's variables.
        commands: Receives an `Assignment` for each run, None to stop; sends ("ready", samples of an epoch), then for
            each run ("done", result or None) or ("failed", sentence).
    """
    os.environ.update(environment)
    # Ctrl-C reaches this process too; the comparison decides what it means and says so with SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    torch.set_num_threads(1)
    place = Place.from_environment()
    try:
        task = recipe_task(recipe)
        if place is None or place.rank == 0:
            check_task(task)
        commands.send(("ready", _length(task.train_set())))
        job = None if place is None else Job(place)
        try:
            while (assignment := commands.recv()) is not None:
                try:
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


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
