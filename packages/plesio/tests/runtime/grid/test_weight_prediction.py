"""Late gradients at predicted weights: what Adam needs, and what is left alone."""

from collections import deque
from typing import Any

import pytest
import torch

from plesio.runtime.grid.weight_prediction import WeightPrediction


def descended(*, late: int, predicted: bool, size: int = 8, num_updates: int = 400) -> float:
    """Half of ``|R W|²`` after Adam's steps on it, with noisy gradients so many updates late.

    The curvatures, of ``RᵀR``, are from 0.001 to 1, along directions of which none is an axis.
    """
    generator = torch.Generator().manual_seed(0)
    axes, _ = torch.linalg.qr(torch.randn(size, size, generator=generator))
    root = axes @ torch.diag(torch.logspace(-1.5, 0, size)) @ axes.T
    weight = torch.randn(size, size, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_updates)
    prediction = WeightPrediction(optimizer, {"weight": weight}, num_updates=late if predicted else 0)
    due = deque([weight.detach().clone()] * (late + 1), maxlen=late + 1)
    for _ in range(num_updates):
        weight.grad = root @ (root @ due[0] + 0.1 * torch.randn(size, size, generator=generator))
        prediction.step()
        schedule.step()
        due.append(prediction.predicted()["weight"].detach().clone())
    return float((root @ weight.detach()).square().sum() / 2)


def test_adam_one_update_late_learns_what_it_does_in_time_and_six_late_it_does_not() -> None:
    in_time = descended(late=0, predicted=False)
    assert descended(late=1, predicted=False) > 1.3 * in_time
    assert descended(late=1, predicted=True) < 1.1 * in_time
    assert descended(late=6, predicted=False) > 5 * in_time
    assert descended(late=6, predicted=True) > 3 * in_time


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop])
def test_other_optimizers_are_left_alone(make: Any) -> None:
    found = []
    for num_updates in (0, 3):
        weight = torch.ones(3, 2, requires_grad=True)
        prediction = WeightPrediction(make([weight], lr=0.1), {"weight": weight}, num_updates=num_updates)
        for number in range(4):
            weight.grad = weight.detach() * number
            prediction.step()
        assert prediction.predicted()["weight"] is weight
        found.append(weight)
    assert torch.equal(*found)
