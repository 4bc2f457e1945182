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

``adam``. The steps of torch's Adam with that gradient (Reddi et al. 2021, "Adaptive Federated Optimization"), for which
v is the mean of past progress, and w that of its squares:

    v <- m^s v + (1 - m^s) D/s,    w <- b^s w + (1 - b^s) (D/s)²,    x <- x + s η v' / (sqrt(w') + ε)

with v' and w' corrected for their beginning at 0. In all of them s = n/H. It is 1, but where a checkpoint, a change or
the end of the run cuts a round short: then what is left of it moves x by its share of the momentum. What had been kept
back and is sent by itself, with s = 0, moves x by no momentum; Adam allows nothing to be kept back.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from plesio.policies.outer_rule import OUTER_BETA2, OUTER_EPSILON, OuterRule


class OuterStep:
    """Turns mean progress into a step."""

    def __init__(self, rule: OuterRule) -> None:
        self._rule = rule
        self.velocity: Tensor | None = None
        """u or v; None before the first step."""
        self._square: Tensor | None = None
        """w, of Adam alone."""
        self._rounds = 0.0
        """Rounds that Adam has had."""

    def state(self) -> list[Any]:
        """Return what outlives the exchange: the velocity, and what Adam has beside it."""
        return [self.velocity, self._square, self._rounds]

    def go_on_from(self, state: Sequence[Any], *, device: torch.device) -> None:
        """Take over the state of another such step, on this device."""
        velocity, square, self._rounds = state
        self.velocity = None if velocity is None else velocity.to(device)
        self._square = None if square is None else square.to(device)

    def step(self, progress: Tensor, *, num_steps: int) -> Tensor:
        """Return the step for the mean progress of ``num_steps`` local steps, in the memory of ``progress``."""
        rule = self._rule
        if rule.kind == "adam":
            return self._adam(progress, share=num_steps / rule.num_steps)
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

    def _adam(self, progress: Tensor, *, share: float) -> Tensor:
        assert share > 0, "nothing is kept back"
        if self.velocity is None or self._square is None:
            self.velocity, self._square = torch.zeros_like(progress), torch.zeros_like(progress)
        kept, kept_square = self._rule.momentum**share, OUTER_BETA2**share
        gradient = progress / share
        self._rounds += share
        self.velocity.lerp_(gradient, 1 - kept)
        self._square.mul_(kept_square).addcmul_(gradient, gradient, value=1 - kept_square)
        correction = 1 - self._rule.momentum**self._rounds
        root = self._square.sqrt().div_(math.sqrt(1 - OUTER_BETA2**self._rounds)).add_(OUTER_EPSILON)
        return torch.div(self.velocity, root, out=progress).mul_(share * self._rule.rate / correction)


def outer_optimizer(rule: OuterRule, inner: Optimizer) -> Optimizer:
    """Make torch's own optimizer of a rule, as the store's servers step it, for what ``inner`` has in its groups."""
    groups = [{"params": group["params"]} for group in inner.param_groups]
    made: Optimizer
    if rule.kind == "adam":
        made = torch.optim.Adam(groups, lr=rule.rate, betas=(rule.momentum, OUTER_BETA2), eps=OUTER_EPSILON)
    else:
        nesterov = rule.kind == "nesterov" and rule.momentum > 0
        made = torch.optim.SGD(groups, lr=rule.rate, momentum=rule.momentum, nesterov=nesterov)
    vars(made)["of_session"] = True  # so that it is not taken for another one of the script's
    return made
