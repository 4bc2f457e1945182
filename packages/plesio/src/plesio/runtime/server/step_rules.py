"""By class of optimizer, an update's share of a round's step, and what a round does to the optimizer's state.

The rule and its reasons are in `interleaved`. Here M is the mean of past gradients, b how much of it is kept at a
round's end, G the gain of the momentum in the long run, ḡ the mean of the round so far, and D what gradients are
divided by. State is kept under torch's own keys and in torch's own units: SGD's ``momentum_buffer`` is ``G M``, Adam's
``exp_avg`` is ``M (1 - β1^t)``.

torch's own functions (`torch.optim.adam.adam` and its like) make whole steps, which advance the state, so they serve
whole rounds alone. A part of a round reads the state as it will be and leaves it as it is.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

LONGER = 4.0
"""By how many times its own length momentum's memory becomes longer, for every round that gradients are old."""
LARGEST_SHARE = 1 / 3
"""Share of the rounds so far that momentum may remember beyond its own length: what it remembers, it learns late."""
_LONGEST = 1e6
"""Rounds of memory: a momentum of 1 would be without end."""

Group = dict[str, Any]
State = dict[str, Any]
Scale = Callable[[Tensor, State, Group, float], tuple[Tensor, dict[str, Tensor]]]
"""D and the moments that it is made of, after so many rounds with this mean; the state is not changed."""


@dataclass(slots=True, kw_only=True)
class MomentumHistory:
    """The figures that decide how long momentum remembers.

    Attributes:
        rounds: Rounds since the parameters came to the store.
        age: Rounds from the pull of parameters to the application of what was computed from them, smoothed.
        means: G M of each parameter whose optimizer has no momentum, and so no place for it.
    """

    rounds: float = 0.0
    age: float = 0.0
    means: dict[Tensor, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRule:
    """How a class of optimizers takes the parts of a round; all without gradients of their own.

    Attributes:
        scale: What gradients are divided by; None divides by nothing.
        of_gradients: Whether momentum is a mean of gradients, which is divided by D when it is used, as Adam's. Else it
            is one of directions, which have been divided, as SGD's.
    """

    scale: Scale | None = None
    of_gradients: bool = False

    def move(
        self,
        parameter: Tensor,
        gradient: Tensor,
        mean: Tensor,
        state: State,
        group: Group,
        weight: float,
        past: MomentumHistory,
    ) -> None:
        """Move the parameter by the part of the step that is due to one update.

        Momentum of gradients: ``θ <- θ - η weight ((1 - b²) g + b² M) / D``. Momentum of directions:
        ``θ <- θ - η weight (G (1 - b²) g / D + b² buffer)``, and without momentum, for SGD, ``θ <- θ - η weight g``.

        ``mean`` is ḡ, with this update, and ``weight`` the part of a whole step that it is. The state is as the last
        round left it, and stays.
        """
        divisor = None if self.scale is None else self.scale(mean, state, group, 1.0)[0]
        step, rate = float(state.get("step", 0.0)), group["lr"]
        if group.get("decoupled_weight_decay"):
            parameter.mul_(1 - rate * weight * group["weight_decay"])
        # Adam and its kin: a blend of this part's gradient and the mean before it, over one divisor
        if self.of_gradients:
            assert divisor is not None
            kept = _kept_of_mean(state, group, past=past) ** 2
            parameter.addcdiv_(gradient, divisor, value=-rate * weight * (1 - kept))
            if "exp_avg" in state:
                correction = 1 - group["betas"][0] ** step
                parameter.addcdiv_(state["exp_avg"], divisor, value=-rate * weight * kept / correction)
            return
        # without any memory a part of a step is the step times that part
        momentum = group.get("momentum", 0.0)
        size = rate * (weight / (1 + step * group.get("lr_decay", 0.0)))
        if divisor is None and not momentum:
            parameter.add_(gradient, alpha=-size)
            return
        # with momentum, or a mean kept beside: the same blend with the buffer
        kept = memory(momentum, past=past) ** 2
        direction = gradient if divisor is None else gradient / divisor
        parameter.add_(direction, alpha=-size * _gain(group) * (1 - kept))
        buffer = state.get("momentum_buffer") if momentum else past.means.get(parameter)
        if buffer is not None and kept:
            parameter.add_(buffer, alpha=-size * kept)

    def advance(
        self, parameter: Tensor, mean: Tensor, state: State, group: Group, share: float, past: MomentumHistory
    ) -> None:
        """Take the mean gradient of a round into the state.

        Momentum of gradients: ``M <- b M + (1 - b) ḡ``. Of directions: ``buffer <- b buffer + (1 - b) G ḡ / D``.

        ``share`` is how much of a round it was: 1, or more where updates are of several steps.
        """
        direction = mean
        if self.scale is not None:
            divisor, moments = self.scale(mean, state, group, share)
            state.update(moments)
            direction = mean / divisor
        if self.of_gradients:
            _advance_mean(parameter, mean, state, group, share=share, past=past)
        elif self.scale is not None or group["momentum"]:
            _advance_buffer(parameter, direction, state, group, share=share, past=past)
        if self.scale is not None:
            state["step"] = state.get("step", torch.tensor(0.0)) + share


def penalised(parameter: Tensor, group: Group) -> Tensor:
    """Return the parameter's gradient as the optimizer takes it: negated if it maximises, with coupled weight decay."""
    gradient = parameter.grad
    assert gradient is not None
    if group.get("maximize"):
        gradient = -gradient
    if group.get("weight_decay") and not group.get("decoupled_weight_decay"):
        gradient = gradient.add(parameter, alpha=group["weight_decay"])
    return gradient


def memory(decay: float, *, past: MomentumHistory) -> float:
    """Compute b: what momentum keeps at a round's end, where the synchronous optimizer keeps ``decay``.

    >>> [round(memory(0.9, past=MomentumHistory(rounds=rounds, age=1.0)), 4) for rounds in (0, 60, 1000)]
    [0.9, 0.95, 0.98]
    >>> [round(memory(0.0, past=MomentumHistory(rounds=rounds, age=1.0)), 4) for rounds in (0, 60)]
    [0.0, 0.8]
    """
    own = _own_memory(decay)
    return 1 - 1 / min((1 + LONGER * past.age) * own, max(own, past.rounds * LARGEST_SHARE))


def _own_memory(decay: float) -> float:
    return 1 / max(1 - decay, 1 / _LONGEST)


def _gain(group: Group) -> float:
    return float(1 - group.get("dampening", 0.0)) * _own_memory(group.get("momentum", 0.0))


def _advance_buffer(
    parameter: Tensor, direction: Tensor, state: State, group: Group, *, share: float, past: MomentumHistory
) -> None:
    momentum = group.get("momentum", 0.0)
    kept = memory(momentum, past=past) ** share
    buffers: dict[Any, Tensor] = state if momentum else past.means
    key = "momentum_buffer" if momentum else parameter
    if key not in buffers:
        buffers[key] = torch.zeros_like(parameter)
    buffers[key].mul_(kept).add_(direction, alpha=(1 - kept) * _gain(group))


def _kept_of_mean(state: State, group: Group, *, past: MomentumHistory) -> float:
    """Compute B of a mean that begins with its first value, as Adam's corrected one does."""
    beta1, step = group["betas"][0], float(state.get("step", 0.0))
    if step < _own_memory(beta1):
        return float(1 - (1 - beta1) / (1 - beta1 ** (step + 1)))
    return memory(beta1, past=past)


def _advance_mean(
    parameter: Tensor, mean: Tensor, state: State, group: Group, *, share: float, past: MomentumHistory
) -> None:
    beta1, step = group["betas"][0], float(state.get("step", 0.0))
    kept = _kept_of_mean(state, group, past=past) ** share
    before, after = 1 - beta1**step, 1 - beta1 ** (step + share)
    if "exp_avg" not in state:
        state["exp_avg"] = torch.zeros_like(parameter)
    state["exp_avg"].mul_(kept * after / before if before else 0.0).add_(mean, alpha=(1 - kept) * after)


def _blend(before: Tensor | None, value: Tensor, *, kept: float) -> Tensor:
    """Return ``kept before + (1 - kept) value``, in the memory of ``value``."""
    value.mul_(1 - kept)
    return value if before is None else value.add_(before, alpha=kept)


def _adam(mean: Tensor, state: State, group: Group, share: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute ``D = sqrt(v / (1 - β2^t)) + ε`` with ``v <- β2 v + (1 - β2) ḡ²``; AMSGrad: the largest v."""
    beta2, step = group["betas"][1], float(state.get("step", 0.0))
    square = largest = _blend(state.get("exp_avg_sq"), mean.square(), kept=beta2**share)
    moments = {"exp_avg_sq": square}
    if group.get("amsgrad"):
        largest = moments["max_exp_avg_sq"] = torch.maximum(square, state.get("max_exp_avg_sq", square))
    return largest.sqrt().mul_(1 / math.sqrt(1 - beta2 ** (step + share))).add_(group["eps"]), moments


def _adamax(mean: Tensor, state: State, group: Group, share: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute ``D <- max(β2 D, |ḡ| + ε)``."""
    largest = mean.abs().add_(group["eps"])
    if "exp_inf" in state:
        torch.maximum(largest, state["exp_inf"] * group["betas"][1] ** share, out=largest)
    return largest, {"exp_inf": largest}


def _adagrad(mean: Tensor, state: State, group: Group, share: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute ``D = sqrt(sum of ḡ²) + ε``."""
    total = torch.addcmul(state["sum"], mean, mean, value=share)
    return total.sqrt().add_(group["eps"]), {"sum": total}


def _rmsprop(mean: Tensor, state: State, group: Group, share: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute ``D = sqrt(v) + ε`` with ``v <- α v + (1 - α) ḡ²``; centred with the square of the mean of ḡ off."""
    kept = group["alpha"] ** share
    square = _blend(state.get("square_avg"), mean.square(), kept=kept)
    if not group["centered"]:
        return square.sqrt().add_(group["eps"]), {"square_avg": square}
    centre = _blend(state.get("grad_avg"), mean.clone(), kept=kept)
    scatter = torch.addcmul(square, centre, centre, value=-1).clamp_(min=0.0)
    return scatter.sqrt_().add_(group["eps"]), {"square_avg": square, "grad_avg": centre}


STEP_RULES: Mapping[type[torch.optim.Optimizer], StepRule] = {
    torch.optim.SGD: StepRule(),
    torch.optim.Adam: StepRule(scale=_adam, of_gradients=True),
    torch.optim.AdamW: StepRule(scale=_adam, of_gradients=True),
    torch.optim.Adamax: StepRule(scale=_adamax, of_gradients=True),
    torch.optim.Adagrad: StepRule(scale=_adagrad),
    torch.optim.RMSprop: StepRule(scale=_rmsprop),
}
"""The others step as updates come (`interleaved`)."""
