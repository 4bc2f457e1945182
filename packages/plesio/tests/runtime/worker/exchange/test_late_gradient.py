"""A gradient that comes after the step it belongs to."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plesio.runtime.worker.exchange.flat_gradients import FlatGradients, apply_late
from plesio.runtime.worker.exchange.replica import Replica
from support.problems import perceptron

TOLERANCE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
"""float64, a few steps."""


def flat_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_a_late_gradient_does_what_it_does_and_nothing_else(optimizer: str):
    model = perceptron(5, 6)
    make: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.1),
    }
    replica = Replica(model, make[optimizer]())
    flat = FlatGradients(replica)
    for _ in range(3):
        flat.give([torch.ones_like(part) for part in flat.zeros()])
        replica.optimizer.step()
    before, state = flat_of(model), [dict(one) for one in replica.optimizer.state_dict()["state"].values()]
    held = [{key: torch.as_tensor(value).clone() for key, value in one.items()} for one in state]
    apply_late(replica, flat, flat.zeros())
    torch.testing.assert_close(flat_of(model), before, **TOLERANCE)
    [gradient] = flat.zeros()
    gradient += 0.01
    apply_late(replica, flat, [gradient])
    if optimizer != "adamw":
        torch.testing.assert_close(flat_of(model), before - 0.1 * 0.01, **TOLERANCE)
    assert float((flat_of(model) - before).abs().max()) > 1e-5
    for old, new in zip(held, replica.optimizer.state_dict()["state"].values(), strict=True):
        if "step" in old:
            assert new["step"] == old["step"]
        if new.get("momentum_buffer") is not None:
            torch.testing.assert_close(new["momentum_buffer"], old["momentum_buffer"] + 0.01, **TOLERANCE)
