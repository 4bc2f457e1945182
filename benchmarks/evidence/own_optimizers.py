"""Optimizers that torch does not have, as a script would bring them along."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class FixedLength(Optimizer):
    """Steps of length ``lr`` against the average of gradients, over all parameters; its names are nobody else's."""

    def __init__(self, params: Iterable[Any], lr: float, inertia: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "inertia": inertia})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Make a step."""
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            trails = [self._trail(parameter, group["inertia"]) for parameter in moved]
            length = torch.stack([trail.square().sum() for trail in trails]).sum().sqrt() if trails else 0.0
            for parameter, trail in zip(moved, trails, strict=True):
                parameter.sub_(group["lr"] * trail / (length + 1e-12))

    def _trail(self, parameter: Tensor, inertia: float) -> Tensor:
        state = self.state[parameter]
        trail: Tensor = state.setdefault("trail", torch.zeros_like(parameter))
        return trail.lerp_(parameter.grad, 1 - inertia)


class Lion(Optimizer):
    """Steps by the sign of a momentum between the old and the new one (Chen et al. 2023, algorithm 2)."""

    def __init__(self, params: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Make a step."""
        for group in self.param_groups:
            near, far = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.sub_(group["lr"] * momentum.lerp(parameter.grad, 1 - near).sign_())
                momentum.lerp_(parameter.grad, 1 - far)
