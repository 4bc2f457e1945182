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


def drift(*, policy: str, what: str) -> float:
    """Rank 1 does something to its replica, or to its rate, that rank 0 does not."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    with plesio.join(model, optimizer, policy=policy) as session:
        for step in range(4):
            loss = model(torch.full((2, 3), float(step + session.rank))).square().mean() / 50
            loss.backward()
            if session.rank == 1 and what == "gradient":
                model.bias.grad = torch.ones(1)
            session.step(loss)
            if session.rank == 1 and step == 3 and what == "rate":
                optimizer.param_groups[0]["lr"] = 0.05
            if session.rank == 1 and step == 3 and what == "bias":
                with torch.no_grad():
                    model.bias.add_(1)
            if session.rank == 1 and step == 3 and what == "rounding":
                with torch.no_grad():
                    model.bias.copy_(torch.nextafter(model.bias, torch.full_like(model.bias, torch.inf)))
        session.evaluate(lambda: 0.0)
        if session.rank == 1 and what == "end":
            with torch.no_grad():
                model.bias.add_(1)
    if what == "end":
        assert session.rank > 0 or any(
            '"bias" differs on workers 0 and 1 at' in line for line in session.report().fallbacks
        )
    if what == "rounding":
        assert session.rank > 0 or any("by rounding after step 4" in line for line in session.report().fallbacks)
    return float(model.weight.detach().sum())


def freeze(*, policy: str) -> list[float]:
    """A parameter is frozen in the middle of the run, on all workers."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with plesio.join(model, optimizer, policy=policy) as session:
        for step in range(6):
            loss = model(torch.full((2, 3), float(step + session.rank))).square().mean() / 50
            loss.backward()
            session.step(loss)
            if step == 2:
                model.bias.requires_grad_(False)
        session.evaluate(lambda: 0.0)
    return [float(model.weight.detach().sum()), float(model.bias.detach())]


def unlike_rates(*, policy: str, alike: bool) -> list[str]:
    """After each evaluation rank 1's rate is halved, or that of all; returns the lines on rates."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with plesio.join(model, optimizer, policy=policy) as session:
        for _ in range(2):
            for step in range(4):
                loss = model(torch.full((2, 3), float(step + session.rank))).square().mean() / 50
                loss.backward()
                session.step(loss)
            session.evaluate(lambda: 0.0)
            if alike or session.rank == 1:
                schedule.step()
        for _ in range(2):
            model(torch.ones(2, 3)).square().mean().backward()
            session.step()
    return [line for line in session.report().fallbacks if "has the learning rate" in line]
