"""The outer step, made of the mean of the ranks' local progress: longer or shorter than the progress, and smoothed.

``average``. Local steps are short (a share a of the learning rate), so that replicas drift apart by little and the
noise of a rank's own batch, which a mean over the ranks would have removed, is small. Their sum is taken 1/a times, so
that training goes as fast as under BSP. Long steps in the direction of a few samples are noisy in turn, so the
direction is the moving average of the progress by local step:

    u <- m u + (1 - m) D / n,      x <- x + n u / a

with D the mean over the ranks of the sum of n local steps. Two step sizes as in Karimireddy et al. 2020 ("SCAFFOLD",
section 3) and Reddi et al. 2021 ("Adaptive Federated Optimization"); the momentum as in Wang et al. 2020 ("SlowMo"),
whose slow learning rate is (1 - m) / a here. Progress is counted by step, so that u outlives a change of the period.

``nesterov`` and ``sgd``. The steps of torch's SGD with the gradient -D (Douillard et al. 2023, "DiLoCo"), for rounds of
H steps:

    v <- m^s v + D,    x <- x + η (D + s m v)         nesterov: the new v, sgd: the one before

with s = n/H. It is 1, but where a checkpoint, a change or the end of the run cuts a round short: then what is left of
it moves x by its share of the momentum. What had been kept back and is sent by itself, with s = 0, moves x by no
momentum.
"""

import torch
from torch import Tensor

from plesio.policies.outer_rule import OuterRule

__all__ = ["OuterStep"]


class OuterStep:
    """Turns mean progress into a step."""

    def __init__(self, rule: OuterRule) -> None:
        self._rule = rule
        self.velocity: Tensor | None = None
        """u or v; None before the first step."""

    def go_on_from(self, velocity: Tensor | None, *, device: torch.device) -> None:
        """Take over the velocity of another such step, on this device."""
        self.velocity = None if velocity is None else velocity.to(device)

    def step(self, progress: Tensor, *, num_steps: int) -> Tensor:
        """Return the step for the mean progress of ``num_steps`` local steps, in the memory of ``progress``."""
        rule = self._rule
        if rule.momentum == 0:
            return progress.mul_(rule.rate)
        if self.velocity is None:
            self.velocity = torch.zeros_like(progress)
        if rule.kind == "average":
            num_steps = max(1, num_steps)
            self.velocity.lerp_(progress / num_steps, 1 - rule.momentum)
            return torch.mul(self.velocity, num_steps * rule.rate, out=progress)
        share = num_steps / rule.num_steps
        ahead = self.velocity * (share * rule.momentum) if rule.kind == "sgd" else None
        self.velocity.mul_(rule.momentum**share).add_(progress)
        if ahead is None:
            ahead = self.velocity * (share * rule.momentum)
        return progress.add_(ahead).mul_(rule.rate)
