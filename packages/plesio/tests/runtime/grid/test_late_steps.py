"""Steps of late gradients: what Adam needs, and what is left alone."""

import math
from collections import deque
from typing import Any

import pytest
import torch

from plesio.runtime.grid.late_steps import LateSteps


def descended(*, late: int, made_up_for: bool, size: int = 8, num_updates: int = 400) -> float:
    """Half of ``|R W|²`` after Adam's steps on it, with noisy gradients so many updates late.

    The curvatures, of ``RᵀR``, are from 0.001 to 1, along directions of which none is an axis.
    """
    generator = torch.Generator().manual_seed(0)
    axes, _ = torch.linalg.qr(torch.randn(size, size, generator=generator))
    root = axes @ torch.diag(torch.logspace(-1.5, 0, size)) @ axes.T
    weight = torch.randn(size, size, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_updates)
    steps = LateSteps(optimizer, {"weight": weight}, delay=late if made_up_for else 0)
    due = deque([weight.detach().clone()] * (late + 1), maxlen=late + 1)
    for _ in range(num_updates):
        weight.grad = root @ (root @ due[0] + 0.1 * torch.randn(size, size, generator=generator))
        steps.step()
        schedule.step()
        due.append(steps.ahead()["weight"].detach().clone())
    return float((root @ weight.detach()).square().sum() / 2)


def test_late_adam_learns_what_adam_does_that_is_not_late() -> None:
    in_time = descended(late=0, made_up_for=False)
    assert descended(late=6, made_up_for=False) > 4 * in_time
    assert descended(late=6, made_up_for=True) < in_time


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_and_shapes(dtype: torch.dtype) -> None:
    weights = {
        "kernel": torch.ones(4, 3, 2, 2, dtype=dtype, requires_grad=True),
        "bias": torch.ones(4, dtype=dtype, requires_grad=True),
        "unused": torch.ones(2, 2, dtype=dtype, requires_grad=True),
    }
    steps = LateSteps(torch.optim.AdamW(weights.values(), lr=0.1), weights, delay=2)
    for _ in range(13):
        for name in ("kernel", "bias"):
            weights[name].grad = weights[name].detach().clone()
        steps.step()
    ahead = steps.ahead()
    assert all(ahead[name].isfinite().all() and ahead[name].dtype == dtype for name in weights)
    assert float(ahead["kernel"].abs().max().detach()) < 1
    assert torch.equal(ahead["unused"], torch.ones(2, 2, dtype=dtype)), "no gradient, no step"


def test_a_gradient_that_overflowed_is_no_error_of_the_basis() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    steps = LateSteps(torch.optim.Adam([weight]), {"weight": weight}, delay=1)
    for _ in range(3):
        weight.grad = torch.full((3, 3), math.inf)
        steps.step()
    assert weight.isnan().all()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop])
def test_other_optimizers_are_left_alone(make: Any) -> None:
    found = []
    for delay in (0, 3):
        weight = torch.ones(3, 2, requires_grad=True)
        steps = LateSteps(make([weight], lr=0.1), {"weight": weight}, delay=delay)
        for number in range(4):
            weight.grad = weight.detach() * number
            steps.step()
        assert steps.ahead()["weight"] is weight
        found.append(weight)
    assert torch.equal(*found)
