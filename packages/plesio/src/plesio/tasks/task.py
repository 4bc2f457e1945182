"""The description of a task: a model, its data, its loss, its metric and its optimizer, as plain callables.

A harness trains any `Task` without knowing what it is about. Two promises are kept here for every task, so that the
callables inside need not care: building is seeded and leaves torch's random state as it was, and the metric is taken
in evaluation mode without gradients and leaves the model's modes as they were.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, TensorDataset, default_collate

from plesio.core.arguments import check_fields
from plesio.core.errors import TaskError
from plesio.core.share_metric import target_problem
from plesio.core.within import AT_LEAST_1
from plesio.tasks.chain import Chain

Build = Callable[[int], tuple[nn.Module, Optimizer]]


def no_schedule(optimizer: Optimizer, num_steps: int) -> None:
    """Leave the learning rate as the optimizer was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything a harness needs to train one model, and nothing about how it is trained.

    Attributes:
        name: Name in results and reports.
        build: ``build(seed)`` gives a fresh ``(model, optimizer)``. Called with torch seeded by ``seed``; equal seeds
            give equal parameters, and torch's global random state is afterwards what it was before.
        train_set: ``train_set()`` gives the map-style training data; a `TensorDataset` is the fastest. Items are
            addressed by index, and equal calls give equal items in equal order.
        loss: ``loss(model, batch)`` gives the scalar mean loss of a batch, as `take_batch` makes them.
        metric: ``metric(model)`` gives the figure of merit on held-out data as a float. Called in evaluation mode
            without gradients; each module's mode is afterwards what it was before.
        metric_name: Kind of the metric: ``accuracy``, ``perplexity``, ``suboptimality`` ...
        metric_goal: Whether a larger (``max``) or a smaller (``min``) metric is better.
        batch_size: Samples in one step of one worker.
        num_epochs: Passes over the training data, all workers together, in an ordinary run.
        target: The metric whose first reaching is timed, or None.
        schedule: ``schedule(optimizer, num_steps)`` gives the learning-rate schedule over that many steps, or None.
        per_worker: ``per_worker(worker, num_workers)`` gives the task as one worker sees it, when workers differ in
            their data; used through `for_worker`.
        chain: How the network is a chain of layers, which a grid needs; None where it is none.

    Raises:
        TaskError: A size below one, an unknown goal, an empty name, a field that should be callable and is not, or a
            target of an accuracy that is not between 0 and 1.
    """

    name: str
    build: Build
    train_set: Callable[[], Dataset[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    metric: Callable[[nn.Module], float]
    metric_name: str
    metric_goal: Literal["max", "min"]
    batch_size: Annotated[int, AT_LEAST_1]
    num_epochs: Annotated[int, AT_LEAST_1]
    target: float | None = None
    schedule: Callable[[Optimizer, int], LRScheduler | None] = no_schedule
    per_worker: "Callable[[int, int], Task] | None" = None
    chain: Chain | None = None

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise TaskError(f"a task's name is a text that is not empty; this one is {self.name!r}")
        check_fields(self, f'task "{self.name}": ', error=TaskError)
        if problem := target_problem(self.metric_name, self.target):
            raise TaskError(f'task "{self.name}": {problem}')
        # dataclasses.replace() comes here again with the guards already on; a second one would be harmless but slow.
        if not isinstance(self.build, _SeededBuild):
            object.__setattr__(self, "build", _SeededBuild(self.build))
        if not isinstance(self.metric, _GuardedMetric):
            object.__setattr__(self, "metric", _GuardedMetric(self.metric))

    def for_worker(self, worker: int, num_workers: int) -> "Task":
        """Return the task that worker ``worker`` of ``num_workers`` trains: this one, unless its workers differ.

        Raises:
            TaskError: ``worker`` is not in ``range(num_workers)``.
        """
        if not 0 <= worker < num_workers:
            raise TaskError(f'task "{self.name}": there is no worker {worker} among {num_workers} (0 is the first)')
        return self if self.per_worker is None else self.per_worker(worker, num_workers)


@dataclass(frozen=True, slots=True)
class _SeededBuild:
    build: Build

    def __call__(self, seed: int) -> tuple[nn.Module, Optimizer]:
        with seeded(seed):
            return self.build(seed)


@dataclass(frozen=True, slots=True)
class _GuardedMetric:
    metric: Callable[[nn.Module], float]

    def __call__(self, model: nn.Module) -> float:
        with evaluation_mode(model):
            return float(self.metric(model))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Start torch's random numbers from ``seed``; afterwards they go on as if nothing had been drawn.

    A GPU that has not been used yet stays untouched: asking for its random state would start it.
    """
    gpu_in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if gpu_in_use else range(0)
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode and record no gradient; afterwards each module's mode is back.

    Modules that the user froze by ``module.eval()`` inside a training model are still frozen afterwards.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def take_batch(dataset: Dataset[Any], indices: Sequence[int]) -> Any:
    """Return the samples at ``indices`` as one batch, equal to what a `DataLoader` would collate from them.

    A `TensorDataset` is indexed once for the whole batch, which is some ten times faster than item by item.

    >>> squares = TensorDataset(torch.arange(4), torch.arange(4) ** 2)
    >>> take_batch(squares, [3, 1])
    [tensor([3, 1]), tensor([9, 1])]
    """
    if type(dataset) is TensorDataset:  # a subclass may change what an item is
        return list(dataset[torch.as_tensor(indices, dtype=torch.long)])
    return default_collate([dataset[index] for index in indices])
