"""A check of habits: the loop in plain torch, on the batches that the workers were given."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as everyone calls it

from runtime.habits.table import BATCH_SIZE, DATA, Facts, Script, loss_of, net, numbers

Made = tuple[nn.Module, list[torch.optim.Optimizer]]


def as_plain_torch(
    make: Callable[[], Made],
    *,
    batches_per_step: int = 1,
    before_step: Callable[[nn.Module], object] = lambda model: None,
) -> Callable[[Sequence[Facts], Script], None]:
    """Make a check: ``facts["state"]`` is what a loop in plain torch comes to on the batches ``facts["seen"]``.

    Under BSP gradients are averaged in every step, under local SGD parameters in every fourth and at the end. Where
    nobody waits, the loss is less than it was, and every parameter has moved.
    """

    def check(facts: Sequence[Facts], script: Script) -> None:
        begun = make()[0]
        if script.policy == "asp" and not script.alone:
            model = _with_numbers(make()[0], facts[0]["state"])
            assert loss_of(model) < loss_of(begun)
            assert all((a != b).any() for a, b in zip(model.parameters(), begun.parameters(), strict=True))
            return
        replicas, size = [make() for _ in facts], BATCH_SIZE * batches_per_step
        num_steps = len(facts[0]["seen"]) // size
        assert num_steps > 1
        for step in range(num_steps):
            if not script.policy.startswith("local_sgd"):
                _share_buffers([model for model, _ in replicas])
            for (model, _), one in zip(replicas, facts, strict=True):
                for batch in torch.tensor(one["seen"][step * size : (step + 1) * size]).split(BATCH_SIZE):
                    (F.mse_loss(model(DATA.x[batch]), DATA.y[batch]) / batches_per_step).backward()
            _step(replicas, script.policy, before_step, averages=step % 4 == 3 or step == num_steps - 1)
        for (model, _), one in zip(replicas, facts, strict=True):
            assert one["state"] == pytest.approx(numbers(model), rel=1e-4, abs=1e-6)  # float32 sums in another order

    return check


def of_sgd() -> Made:
    """Rank 0's small network with SGD."""
    model = net(0)
    return model, [torch.optim.SGD(model.parameters(), lr=0.05)]


def _step(replicas: Sequence[Made], policy: str, before_step: Callable[[nn.Module], object], *, averages: bool) -> None:
    models, local = [model for model, _ in replicas], policy.startswith("local_sgd")
    if not local:
        _average([[parameter.grad for parameter in model.parameters()] for model in models])
    for model, optimizers in replicas:
        before_step(model)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    if local and averages:
        _average([[t for t in model.state_dict().values() if t.is_floating_point()] for model in models])


def _share_buffers(models: Sequence[nn.Module]) -> None:
    for model in models[1:]:  # before each forward pass, as DDP does
        for buffer, first in zip(model.buffers(), models[0].buffers(), strict=True):
            buffer.copy_(first)


def _average(tensors: Sequence[Sequence[Any]]) -> None:
    for same in zip(*tensors, strict=True):
        mean = torch.stack(same).mean(0)
        for tensor in same:
            tensor.copy_(mean)


def _with_numbers(model: nn.Module, state: Sequence[float]) -> nn.Module:
    tensors = list(model.state_dict().values())
    for tensor, part in zip(tensors, torch.tensor(state).split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))
    return model
