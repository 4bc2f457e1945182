"""Workers whose models or loops do what most do not: parts that some steps leave out, gradients that are written to."""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import plesio

NUM_STEPS = 6


class Branches(nn.Module):
    """Each rank's step goes through a branch of its own; one branch is nobody's. A parameter has no dimension."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.branches = nn.ModuleList(nn.Linear(3, 1) for _ in range(3))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.branches[branch](x) * self.scale


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * step + rank))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5, weight_decay=0.1)


def used_by(rank: int, *, step: int, from_step: int) -> list[int]:
    """The branches that a rank's step goes through."""
    return [rank] if step >= from_step else [0, 1, 2]


def loss_of(model: Branches, x: torch.Tensor, branches: Sequence[int]) -> torch.Tensor:
    return torch.stack([model(x, branch).square().mean() for branch in branches]).sum()


def branches(*, policy: str, from_step: int = 0) -> dict[str, list[float]]:
    """Every rank trains its own branch from a step on, before it all of them, in as many forward passes."""
    model = Branches()
    optimizer = optimizer_of(model)
    with plesio.join(model, optimizer, policy=policy) as session:
        for step in range(NUM_STEPS):
            branches = used_by(session.rank, step=step, from_step=from_step)
            loss = loss_of(model, batch(step, session.rank), branches)
            loss.backward()
            session.step(loss)
    return {name: tensor.reshape(-1).tolist() for name, tensor in model.state_dict().items()}


def beside(*, policy: str) -> dict[str, list[float]]:
    """Two steps of three compute their loss beside the model's forward pass, as a method of the model does."""
    model = Branches()
    with plesio.join(model, optimizer_of(model), policy=policy) as session:
        for step in range(NUM_STEPS):
            passes = model if step % 3 == 1 else model.forward
            loss = torch.stack([passes(batch(step, session.rank), branch).square().mean() for branch in range(3)]).sum()
            loss.backward()
            session.step(loss)
    return {name: tensor.reshape(-1).tolist() for name, tensor in model.state_dict().items()}


def gradients_of(model: Branches, x: torch.Tensor, *, by: str) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of the model's parameters without a backward pass into them."""
    own = dict(model.named_parameters())
    if by == "autograd":
        return torch.autograd.grad(loss_of(model, x, range(3)), list(own.values()))

    def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
        passes = [torch.func.functional_call(model, values, (x, branch)) for branch in range(3)]
        return torch.stack([found.square().mean() for found in passes]).sum()

    given = {name: value.detach() for name, value in own.items()} if by == "func of copies" else own
    return tuple(torch.func.grad(loss)(given).values())


def written(*, policy: str, by: str) -> dict[str, list[float]]:
    """The script computes the gradients and writes them into the parameters itself."""
    model = Branches()
    with plesio.join(model, optimizer_of(model), policy=policy) as session:
        for step in range(NUM_STEPS):
            for parameter, gradient in zip(
                model.parameters(), gradients_of(model, batch(step, session.rank), by=by), strict=True
            ):
                parameter.grad = gradient.detach()
            session.step()
    return {name: tensor.reshape(-1).tolist() for name, tensor in model.state_dict().items()}


def twice(*, policy: str) -> None:
    """Two losses of one forward pass have a backward pass each."""
    model = nn.Linear(3, 1)
    with plesio.join(model, optimizer_of(model), policy=policy) as session:
        for step in range(NUM_STEPS):
            found = model(batch(step, session.rank))
            found.square().mean().backward(retain_graph=True)
            found.abs().mean().backward()
            session.step()


class Warm(nn.Module):
    """Has parameters that forward leaves out: the loss uses two of them, and one is nobody's."""

    def __init__(self, *, spare: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.body = nn.Linear(3, 2)
        self.temperature = nn.Parameter(torch.tensor(0.5))
        self.weights = nn.Parameter(torch.ones(2))
        self.spare = nn.Linear(3, 2) if spare else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def warm_loss(model: Warm, x: torch.Tensor, *, uses: bool) -> torch.Tensor:
    """A loss that scales what forward returns by parameters of the model; without them, where it does not use them."""
    found = model(x)
    return ((found * model.temperature.exp()).square().mean(0) * model.weights if uses else found.square()).sum()


def warm(*, policy: str, spare: bool = False, part: int = 2, passes: int = 1, from_step: int = 0) -> dict[str, Any]:
    """Parameters beside the forward pass are used by the loss, on the ranks below ``part``, from a step on.

    Args:
        passes: Backward passes of a step; all but the last only accumulate.
    """
    model = Warm(spare=spare)
    with plesio.join(model, optimizer_of(model), policy=policy) as session:
        for step in range(NUM_STEPS):
            uses = session.rank < part and step >= from_step
            for number in range(passes):
                with contextlib.nullcontext() if number == passes - 1 else session.accumulate():
                    loss = warm_loss(model, batch(step + 100 * number, session.rank), uses=uses) / passes
                    loss.backward()
            session.step(loss)
    return {name: tensor.reshape(-1).tolist() for name, tensor in model.state_dict().items()}


def poke(*, policy: str, rank: int, clip: bool) -> Any:
    """One rank writes a NaN into a gradient after the workers have averaged it; with ``clip`` all write to theirs."""
    model = nn.Linear(3, 1)
    with plesio.join(model, optimizer_of(model), policy=policy) as session:
        for step in range(NUM_STEPS):
            loss = model(batch(step, session.rank)).square().mean()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if step == 2 and int(os.environ["RANK"]) == rank:
                assert model.weight.grad is not None
                model.weight.grad[0, 0] = float("nan")
            session.step(loss)
    return [float(p.detach().abs().sum()) for p in model.parameters()]
