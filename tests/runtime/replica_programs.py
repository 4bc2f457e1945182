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
