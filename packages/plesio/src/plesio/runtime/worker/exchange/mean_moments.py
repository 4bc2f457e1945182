"""The state of Adam and its kin, where workers step on their own: as if their gradients were the mean of all.

Such an optimizer divides by the root of v, a mean of squared gradients. Under BSP these are of the mean gradient of N
workers, s² + σ²/N with signal s and noise σ of a worker's batch, number by number. For a worker's own gradient g they
are s² + σ²: local steps come out too short where noise is large, by up to the root of N, and so do synchronous ones
afterwards, since v forgets in a thousand steps. One share for all of v does not mend that, for noise is large in one
number and small in another. But a worker can estimate by itself what the mean gradient's square would be. With m a mean
over time of its own gradients, of which a step keeps κ,

    E g² = s² + σ²,     E m² = s² + λ σ²     with λ = (1 - κ) / (1 + κ)
    a g² + b m² = s² + σ²/N  in the mean,    with b = (1 - 1/N) / (1 - λ), a = 1 - b

and so v <- β v + (1 - β) (a g² + b m²). κ is 0.9 up to 19 workers, of which b is 1, and above so much that it stays 1;
but 0.95 at most, because signals change: beyond 39 workers v is that of 39. The optimizer's own step adds (1 - β) g²;
what is too much of it is taken off v before, so that the step itself has it right.

And *momentum*: each worker's follows its own noisy gradients, which lead it away from the others. When they have met,
their mean progress D over steps of the rates η gives the mean gradient, and nothing more need be sent: each goes on
with the m, and the momentum, with which its own steps would have come to D,

    -D / Σ η = m / (sqrt(v̂) + ε)

If D is known only d steps after they met, their steps since are kept: m has forgotten all but β^d of what it was then,
m', so it becomes m + β^d (-D / Σ η (sqrt(v̂) + ε) - m').

If the workers of a rack step together, then each rack steps on its own, and N is the number of racks. All of this is
number by number, so a rank of an island does it with its own part, and N is the number of islands.

0/1 Adam (Lu et al. 2022, "Maximizing communication efficiency for large-scale training via 0/1 Adam") freezes v for
local steps, for the same reason, and sends momentum; local AMSGrad (Chen et al. 2020, "Toward communication efficient
adaptive gradient method") sends v. Measurements are in docs/log.md, section 58.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from plesio.runtime.worker.exchange.local_part import local_part

LEAST_KEPT, MOST_KEPT = 0.9, 0.95
"""κ, the share of the mean over time that a step keeps: its least and its most."""

_MEAN = "mean"
"""The name of m beside those of the optimizer's momenta."""
_MOMENTA = (_MEAN, "exp_avg", "momentum_buffer")
Group = dict[str, Any]
State = dict[str, Any]


def can_share_moments(optimizer: Optimizer) -> bool:
    """Tell whether it is Adam, AdamW, RMSprop or Adagrad, and nothing but v follows from the squares."""
    groups = optimizer.param_groups
    if isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        return not any(group["amsgrad"] or group["maximize"] for group in groups)
    if isinstance(optimizer, torch.optim.RMSprop):
        return not any(group["centered"] or group["maximize"] for group in groups)
    return isinstance(optimizer, torch.optim.Adagrad) and not any(
        group["lr_decay"] or group["maximize"] for group in groups
    )


class MeanMoments:
    """Keeps an optimizer's state, in local steps, what it would be if it had seen the mean gradient of all.

    Args:
        optimizer: One that `can_share_moments`, with dense gradients. Its steps are observed until `close`.
        num_replicas: N, those that step on their own: workers, or racks.
        behind: Whether steps are made between the beginning of a meeting and its end.
    """

    def __init__(self, optimizer: Optimizer, *, num_replicas: int, behind: bool = False) -> None:
        self._optimizer = optimizer
        self._kept = min(MOST_KEPT, max(LEAST_KEPT, (num_replicas - 1) / (num_replicas + 1)))
        own_noise = (1 - self._kept) / (1 + self._kept)
        self._of_mean = min(1.0, (1 - 1 / num_replicas) / (1 - own_noise))
        """b."""
        self._means: dict[Tensor, Tensor] = {}
        """m of each parameter."""
        self._rates = [0.0] * len(optimizer.param_groups)
        """Sum of each group's rates since the last meeting was begun."""
        self._rates_met = self._rates
        """Up to then, since the one before."""
        self._behind = behind
        self._num_since = 0
        """Steps since the last meeting was begun."""
        self._then: dict[tuple[Tensor, str], Tensor] = {}
        """A parameter's momenta as they were then, by their names; empty where no step can follow."""
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def close(self) -> None:
        self._hook.remove()

    @torch.no_grad()
    def _before_step(self, *_: object) -> None:
        """Take in the gradients that are there, which the optimizer is about to step with."""
        self._num_since += 1
        for number, group in enumerate(self._optimizer.param_groups):
            self._rates[number] += float(group["lr"])
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            gradients = _penalised(parameters, group)
            means = [self._mean(one, gradient, group) for one, gradient in zip(parameters, gradients, strict=True)]
            torch._foreach_lerp_(means, gradients, 1 - self._kept)
            key, kept = _squares(group)
            states = [self._state(parameter) for parameter in parameters]
            if not all(key in state for state in states):
                continue  # a first step of all makes v of the gradient itself
            part = self._of_mean * ((1 - kept) / kept if kept else 1.0)
            squares = [state[key] for state in states]
            torch._foreach_addcmul_(squares, gradients, gradients, -part)
            torch._foreach_addcmul_(squares, means, means, part)

    def begun(self) -> None:
        """Begin a meeting: the progress up to here is averaged."""
        self._rates_met, self._rates = self._rates, [0.0] * len(self._rates)
        self._num_since = 0
        if self._behind:
            self._then = {
                (parameter, key): momentum.clone()
                for parameter, mean in self._means.items()
                for key, momentum in {**self._state(parameter), _MEAN: mean}.items()
                if key in _MOMENTA
            }

    @torch.no_grad()
    def met(self, progress_of: Mapping[Tensor, Tensor]) -> None:
        """Go on with the mean's momentum; ``progress_of`` has D by parameter, up to when the meeting was begun."""
        for group, rate in zip(self._optimizer.param_groups, self._rates_met, strict=True):
            for parameter in group["params"]:
                if not rate or parameter not in progress_of or parameter not in self._means:
                    continue
                state = self._state(parameter)
                direction = progress_of[parameter] / -rate
                if group.get("decoupled_weight_decay"):
                    direction.sub_(local_part(parameter), alpha=group["weight_decay"])
                if "momentum_buffer" in state:
                    self._go_on(parameter, "momentum_buffer", direction, kept=group["momentum"])
                    direction.mul_(1 - group["momentum"])
                mean = direction.mul_(_divisor(state, group))
                self._go_on(parameter, _MEAN, mean, kept=self._kept)
                if "exp_avg" in state:
                    kept = group["betas"][0]
                    corrected = 1 - kept ** (float(state["step"]) - self._num_since)
                    self._go_on(parameter, "exp_avg", mean * corrected, kept=kept)

    def _go_on(self, parameter: Tensor, key: str, mean: Tensor, *, kept: float) -> None:
        """Let a momentum go on from ``mean`` instead of what it was when the meeting was begun."""
        momentum = self._means[parameter] if key == _MEAN else self._state(parameter)[key]
        then = self._then.get((parameter, key))
        if self._num_since and then is not None:
            momentum.add_(mean.sub(then), alpha=kept**self._num_since)
        else:
            momentum.copy_(mean)

    def _state(self, parameter: Tensor) -> State:
        """Return the optimizer's state of what is here of the parameter."""
        state = self._optimizer.state.get(parameter) or {}
        return {key: local_part(value) if isinstance(value, Tensor) else value for key, value in state.items()}

    def _mean(self, parameter: Tensor, gradient: Tensor, group: Group) -> Tensor:
        """Update and return the parameter's m, which begins with Adam's momentum or else with its first gradient."""
        if parameter not in self._means:
            state = self._state(parameter)
            begins = gradient
            if "exp_avg" in state and group["betas"][0]:
                begins = state["exp_avg"] / (1 - group["betas"][0] ** float(state["step"]))
            self._means[parameter] = begins.clone()
        return self._means[parameter]


def _penalised(parameters: Sequence[Tensor], group: Group) -> list[Tensor]:
    """Return the gradients as the optimizer takes them: with the coupled weight decay."""
    gradients = [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if group["weight_decay"] and not group.get("decoupled_weight_decay"):
        return list(torch._foreach_add(gradients, [local_part(one) for one in parameters], alpha=group["weight_decay"]))
    return gradients


def _squares(group: Group) -> tuple[str, float]:
    """Return the key of v in a parameter's state, and the share of it that a step keeps; 0 for Adagrad, which sums."""
    if "betas" in group:
        return "exp_avg_sq", group["betas"][1]
    return ("square_avg", group["alpha"]) if "alpha" in group else ("sum", 0.0)


def _divisor(state: State, group: Group) -> Tensor:
    """Compute sqrt(v̂) + ε."""
    key, kept = _squares(group)
    correction = 1 - kept ** float(state["step"]) if "betas" in group else 1.0
    root: Tensor = (state[key] / correction).sqrt_().add_(group["eps"])
    return root
