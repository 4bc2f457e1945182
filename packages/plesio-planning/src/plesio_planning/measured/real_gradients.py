"""Gradients of the task ``digits`` as its training goes on, for measurements whose subject is numbers and not times."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from plesio.tasks.load import load_task
from plesio.tasks.task import take_batch


def training_gradients(steps: Collection[int], *, seed: int = 0) -> list[Tensor]:
    """Return the flat gradient of one batch at each of these steps of an ordinary training, in one thread."""
    task = load_task("digits")
    model, optimizer = task.build(seed)
    samples = task.train_set()
    generator = torch.Generator().manual_seed(seed)
    found = []
    for step in range(max(steps) + 1):
        chosen = torch.randint(len(samples), (task.batch_size,), generator=generator)  # type: ignore[arg-type]
        task.loss(model, take_batch(samples, chosen.tolist())).backward()  # type: ignore[no-untyped-call]
        if step in steps:
            found.append(flat_gradient(model))
        optimizer.step()
        optimizer.zero_grad()
    return found


def flat_gradient(model: nn.Module) -> Tensor:
    """Return all gradients one after the other, a copy."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients])


def set_gradient(model: nn.Module, flat: Tensor) -> None:
    """Give each parameter that has a gradient its part of these numbers instead."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    for one, part in zip(parameters, torch.split(flat, [one.numel() for one in parameters]), strict=True):
        one.grad = part.view_as(one)
