"""One run of a comparison, and what all trainings of it have in common."""

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plesio.bench.recipe import Recipe
from plesio.protocol.figures import RunInfo
from plesio.runtime.checkpoints.setting import CheckpointSetting
from plesio.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One run.

    Attributes:
        folder: For its traces, and the name of its checkpoints; None for neither.
        until_samples: Samples at which it ends, in the midst of its schedule; None is the recipe's length.
    """

    policy: str
    seed: int
    folder: Path | None
    until_samples: int | None = None

    def samples(self, budget: int) -> int:
        """Return the samples at which it ends, if the recipe's length is ``budget`` samples."""
        return budget if self.until_samples is None else min(budget, self.until_samples)


def run_name(policy: str, *, seed: int) -> str:
    """Name the folder of a run.

    >>> run_name("local_sgd:8,delay=4", seed=0)
    'local_sgd-8-delay-4-seed0'
    """
    return f"{re.sub('[^A-Za-z0-9_.+]+', '-', policy)}-seed{seed}"


def seed_streams(seed: int, rank: int) -> None:
    """Give a worker random numbers of its own (dropout, augmentation), repeatable from the run's seed."""
    stream = seed * 1_000_003 + rank
    torch.manual_seed(stream)
    np.random.seed(stream % 2**32)
    random.seed(stream)


def info_of(task: Task, *, seed: int) -> RunInfo:
    return RunInfo(
        task=task.name,
        seed=seed,
        metric_name=task.metric_name,
        metric_goal=task.metric_goal,
        target=task.target,
    )


def checkpoints_of(recipe: Recipe, assignment: Assignment) -> dict[str, Any]:
    """Return a session's options for checkpoints: each run has a folder of its own, named like that of its traces."""
    if recipe.checkpoint is None or assignment.folder is None:
        return {}
    told = recipe.checkpoint.model_dump()
    return {"checkpoint": told.pop("folder") / assignment.folder.name, **told}


def checkpoint_variables(recipe: Recipe, assignment: Assignment) -> dict[str, str]:
    """Return the environment variables by which the sessions of a script have these checkpoints."""
    told = checkpoints_of(recipe, assignment)
    return CheckpointSetting(folder=told.pop("checkpoint"), **told).environment() if told else {}
