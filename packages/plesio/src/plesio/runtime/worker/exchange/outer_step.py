"""The outer step, made of the mean of the ranks' local progress: longer than the progress, and smoothed.

Local steps are short (a share a of the learning rate), so that replicas drift apart by little and the noise of a rank's
own batch, which a mean over the ranks would have removed, is small. Their sum is taken 1/a times, so that training goes
as fast as under BSP. Long steps in the direction of a few samples are noisy in turn, so the direction is the moving
average of the progress by local step:

    u <- m u + (1 - m) D / n,      x <- x + n u / a

with D the mean over the ranks of the sum of n local steps. Two step sizes as in Karimireddy et al. 2020 ("SCAFFOLD",
section 3) and Reddi et al. 2021 ("Adaptive Federated Optimization"); the momentum as in Wang et al. 2020 ("SlowMo"),
whose slow learning rate is (1 - m) / a here. Progress is counted by step, so that u outlives a change of the period.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["OuterStep"]


class OuterStep:
    """Turns mean progress into a step.

    Args:
        inner_rate: a, the share of the learning rate that local steps take.
        momentum: m.
    """

    def __init__(self, *, inner_rate: float, momentum: float) -> None:
        self._factor = 1 / inner_rate
        self._momentum = momentum
        self.velocity: Tensor | None = None
        """The moving average of the progress; None before the first step."""

    def go_on_from(self, velocity: Any, *, device: torch.device) -> None:
        """Take over the velocity of another such step, on this device; older checkpoints have all of the step."""
        if isinstance(velocity, dict):
            velocity = velocity["_velocity"]
        self.velocity = None if velocity is None else velocity.to(device)

    def step(self, progress: Tensor, *, num_steps: int) -> Tensor:
        """Return the step for the mean progress of ``num_steps`` local steps, in the memory of ``progress``."""
        if self._momentum == 0:
            return progress.mul_(self._factor)
        if self.velocity is None:
            self.velocity = torch.zeros_like(progress)
        self.velocity.lerp_(progress / num_steps, 1 - self._momentum)
        return torch.mul(self.velocity, num_steps * self._factor, out=progress)
