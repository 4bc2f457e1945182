"""Workers whose models are not alike at the start, or that become unlike, or are wrapped."""

import os
from typing import Any

import torch
from torch import nn

import plesio


class Backbone(nn.Module):
    """A frozen layer, a counter, and a head that is trained."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = nn.Linear(3, 4).requires_grad_(False)
        self.head = nn.Linear(4, 1)
        self.register_buffer("table", torch.randint(100, (5,)))
        self.register_buffer("mask", torch.rand(4) < 0.5, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def still(*, policy: str) -> dict[str, Any]:
    """Each rank begins from a seed of its own; returns what no step moves, before and after."""
    model = Backbone(int(os.environ["RANK"]))
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with plesio.join(model, optimizer, policy=policy) as session:
        begun = [t.tolist() for t in (model.backbone.weight, model.backbone.bias, model.table, model.mask)]
        model.table.add_(1)
        for step in range(4):
            loss = model(torch.full((2, 3), float(step))).square().mean()
            loss.backward()
            session.step(loss)
        session.evaluate(lambda: 0.0)
    return {"begun": begun, "ended": model.table.tolist()}


def unlike(*, policy: str, what: str) -> None:
    """Rank 1's optimizer, or what it says of its gradients, is another one."""
    model = nn.Linear(2, 1)
    other = os.environ["RANK"] == "1"
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.2 if other and what == "rate" else 0.1)
    if other and what == "class":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if what == "gradient":
        model(torch.ones(1, 2)).sum().backward()
    if what == "foreign":
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(7))]})
    with plesio.join(model, optimizer, policy=policy):
        pass
