"""Try a task on one batch before any worker starts, and say in one line what is wrong with it."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plesio.core.errors import PlesioError, TaskError
from plesio.tasks.task import Task, evaluation_mode, seeded, take_batch

Result = TypeVar("Result")
_EQUAL_WITHIN = 1e-4
"""Relative difference of two losses that other orders of the same sums may make."""


def check_task(task: Task) -> None:
    """Pass when ``task`` can be built, takes one gradient and yields a metric; leaves torch's random state as it was.

    Costs one batch forward and backward, and one evaluation.

    Raises:
        TaskError: One line about the mistake: a callable that raises or returns something else than `Task` says, a
            model with no trainable parameters, an optimizer of another model, an empty training set.
    """
    with seeded(0):
        model, optimizer = _check_build(task)
        _check_loss(task, model)
        metric = _call(task, "metric(model)", lambda: task.metric(model))
        if metric != metric:
            raise TaskError(f'task "{task.name}": metric(model) is NaN for a freshly built model; return a number')
        schedule = _call(task, "schedule(optimizer, num_steps)", lambda: task.schedule(optimizer, 10))
        if schedule is not None and not isinstance(schedule, LRScheduler):
            raise _wrong_type(task, "schedule(optimizer, num_steps)", schedule, wanted="an LRScheduler or None")


def check_chain(task: Task) -> None:
    """Pass when ``task`` says how its network is a chain of layers, and the chain has the task's loss on a batch.

    Raises `TaskError` otherwise, in one line.
    """
    chain = task.chain
    if chain is None:
        raise TaskError(
            f'task "{task.name}" does not say how its network is a chain of layers, which a grid cuts into stages; '
            "give it a chain=Chain(...)"
        )
    with seeded(0):
        model, _ = task.build(0)
        layers: Any = _call(task, "chain.layers(model)", lambda: chain.layers(model))
        if not isinstance(layers, nn.Sequential):
            raise _wrong_type(task, "chain.layers(model)", layers, wanted="a torch.nn.Sequential")
        if _trainable(model) != _trainable(layers):
            raise TaskError(
                f'task "{task.name}": the parameters of chain.layers(model) are not the model\'s; '
                "put the model's own modules into it, all of them"
            )
        batch = take_batch(task.train_set(), range(min(task.batch_size, len(task.train_set()))))  # type: ignore[arg-type]
        with evaluation_mode(model), evaluation_mode(layers):
            given, wanted = _call(task, "chain.split(batch)", lambda: chain.split(batch))
            found = float(_call(task, "chain.loss(output, y)", lambda: chain.loss(layers(given), wanted)))
            whole = float(task.loss(model, batch))
    if not math.isclose(found, whole, rel_tol=_EQUAL_WITHIN, abs_tol=_EQUAL_WITHIN):
        raise TaskError(
            f'task "{task.name}": its chain has a loss of {found:.6g} on a batch, and loss(model, batch) is '
            f"{whole:.6g}; they must be the same network and loss"
        )


def _trainable(model: nn.Module) -> set[int]:
    return {id(parameter) for parameter in model.parameters() if parameter.requires_grad}


def _check_build(task: Task) -> tuple[nn.Module, Optimizer]:
    built: Any = _call(task, "build(seed)", lambda: task.build(0))
    if not isinstance(built, tuple) or len(built) != 2:
        raise _wrong_type(task, "build(seed)", built, wanted="(model, optimizer)")
    model, optimizer = built
    if not isinstance(model, nn.Module):
        raise _wrong_type(task, "build(seed)", model, wanted="a torch.nn.Module first")
    if not isinstance(optimizer, Optimizer):
        raise _wrong_type(task, "build(seed)", optimizer, wanted="a torch.optim.Optimizer second")
    trainable = _trainable(model)
    if not trainable:
        raise TaskError(
            f'task "{task.name}": the model has no trainable parameters; give it one with requires_grad=True'
        )
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not stepped & trainable:
        raise TaskError(
            f'task "{task.name}": the optimizer steps none of the model\'s trainable parameters; '
            "make it from model.parameters() of the same model"
        )
    return model, optimizer


def _check_loss(task: Task, model: nn.Module) -> None:
    train_set = _call(task, "train_set()", task.train_set)
    if not hasattr(train_set, "__getitem__") or not hasattr(train_set, "__len__"):
        raise _wrong_type(task, "train_set()", train_set, wanted="a map-style Dataset (with a length and items)")
    if len(train_set) == 0:
        raise TaskError(f'task "{task.name}": the training set is empty; train_set() must hold one sample or more')
    indices = range(min(task.batch_size, len(train_set)))
    batch = _call(task, "an item of train_set()", lambda: take_batch(train_set, indices))
    loss: Any = _call(task, "loss(model, batch)", lambda: task.loss(model, batch))
    if not isinstance(loss, Tensor):
        raise _wrong_type(task, "loss(model, batch)", loss, wanted="a scalar tensor")
    if loss.ndim != 0:
        raise TaskError(f'task "{task.name}": loss(model, batch) has shape {tuple(loss.shape)}; reduce it to a scalar')
    if not loss.requires_grad:
        raise TaskError(f'task "{task.name}": loss(model, batch) does not depend on the model\'s trainable parameters')
    if not torch.isfinite(loss):
        raise TaskError(f'task "{task.name}": loss(model, batch) is {loss.item()} for a freshly built model')


def _call(task: Task, what: str, function: Callable[[], Result]) -> Result:
    """Run a callable of the task's; what it raises becomes a `TaskError` that keeps the cause."""
    try:
        return function()
    except PlesioError:
        raise
    except Exception as error:
        raise TaskError(f'task "{task.name}": {what} raised {type(error).__name__}: {error}') from error


def _wrong_type(task: Task, what: str, value: object, *, wanted: str) -> TaskError:
    return TaskError(f'task "{task.name}": {what} returned {type(value).__name__}; return {wanted}')
