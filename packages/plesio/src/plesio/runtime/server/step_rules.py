"""By class of optimizer, an update's share of a round's step, and what a round does to the optimizer's state.

The rule and its reasons are in `interleaved`. Here M is the mean of past gradients, b how much of it is kept at a
round's end, G the gain of the momentum in the long run, ḡ the mean of the round so far. State is kept under torch's own
keys and in torch's own units: SGD's ``momentum_buffer`` is ``G M``, Adam's ``exp_avg`` is ``M (1 - β1^t)``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

__all__ = ["STEP_RULES", "Group", "Past", "State", "StepRule", "memory", "penalised"]

LONGER = 4.0
"""By how many times its own length momentum's memory becomes longer, for every round that gradients are old."""
LARGEST_SHARE = 1 / 3
"""Of the rounds so far, that momentum remembers beyond its own length: what it remembers, it learns late."""
_LONGEST = 1e6
"""Rounds of memory: a momentum of 1 would be without end."""

Group = dict[str, Any]
State = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Past:
    """What decides how long momentum remembers.

    Attributes:
        rounds: Rounds since the parameters came to the store.
        age: Rounds from the pull of parameters to the application of what was computed from them, smoothed.
        means: G M of each parameter whose optimizer has no momentum, and so no place for it.
    """

    rounds: float = 0.0
    age: float = 0.0
    means: dict[Tensor, Tensor] = field(default_factory=dict)


class StepRule(Protocol):
    """What a class of optimizers does with the parts of a round; all without gradients of their own."""

    normalises: ClassVar[bool]
    """Whether `move` looks at the mean of the round."""

    @staticmethod
    def move(
        parameter: Tensor, gradient: Tensor, mean: Tensor, state: State, group: Group, *, weight: float, past: Past
    ) -> None:
        """Move the parameter by the part of the step that is due to one update.

        Args:
            parameter: Moved in place.
            gradient: The update's, as `penalised` gives it.
            mean: ḡ, with this update.
            state: As the last round left it; not changed.
            group: The options.
            weight: The part of a whole step that it is.
            past: How long momentum remembers.
        """
        ...

    @staticmethod
    def advance(parameter: Tensor, mean: Tensor, state: State, group: Group, *, share: float, past: Past) -> None:
        """Take the mean gradient of a round into the state.

        Args:
            parameter: Not changed.
            mean: ḡ.
            state: Changed.
            group: The options.
            share: How much of a round it was: 1, or more where updates are of several steps.
            past: As above.
        """
        ...


def penalised(parameter: Tensor, group: Group) -> Tensor:
    """The parameter's gradient as the optimizer takes it: turned where it maximises, with the coupled weight decay."""
    gradient = parameter.grad
    assert gradient is not None
    if group.get("maximize"):
        gradient = -gradient
    if group.get("weight_decay") and not group.get("decoupled_weight_decay"):
        gradient = gradient.add(parameter, alpha=group["weight_decay"])
    return gradient


def memory(decay: float, *, past: Past) -> float:
    """b: what momentum keeps at a round's end, where the synchronous optimizer keeps ``decay``.

    >>> [round(memory(0.9, past=Past(rounds=rounds, age=1.0)), 4) for rounds in (0, 60, 1000)]
    [0.9, 0.95, 0.98]
    >>> [round(memory(0.0, past=Past(rounds=rounds, age=1.0)), 4) for rounds in (0, 60)]
    [0.0, 0.8]
    """
    own = _own_memory(decay)
    return 1 - 1 / min((1 + LONGER * past.age) * own, max(own, past.rounds * LARGEST_SHARE))


def _own_memory(decay: float) -> float:
    return 1 / max(1 - decay, 1 / _LONGEST)


class SGDRule:
    """SGD with and without momentum, plain, dampened or Nesterov's."""

    normalises: ClassVar[bool] = False

    @staticmethod
    def move(
        parameter: Tensor, gradient: Tensor, mean: Tensor, state: State, group: Group, *, weight: float, past: Past
    ) -> None:
        """``θ <- θ - η weight (G (1 - b²) g + b² buffer)``; without momentum ``θ <- θ - η weight g``."""
        if not group["momentum"]:
            parameter.add_(gradient, alpha=-group["lr"] * weight)
            return
        _move_by(parameter, gradient, state, group, weight=weight, past=past)

    @staticmethod
    def advance(parameter: Tensor, mean: Tensor, state: State, group: Group, *, share: float, past: Past) -> None:
        """``buffer <- b buffer + (1 - b) G ḡ``."""
        if group["momentum"]:
            _advance_buffer(parameter, mean, state, group, share=share, past=past)


def _gain(group: Group) -> float:
    return float(1 - group.get("dampening", 0.0)) * _own_memory(group.get("momentum", 0.0))


def _move_by(parameter: Tensor, direction: Tensor, state: State, group: Group, *, weight: float, past: Past) -> None:
    step, momentum = group["lr"] * weight, group.get("momentum", 0.0)
    kept = memory(momentum, past=past) ** 2
    parameter.add_(direction, alpha=-step * _gain(group) * (1 - kept))
    buffer = state.get("momentum_buffer") if momentum else past.means.get(parameter)
    if buffer is not None and kept:
        parameter.add_(buffer, alpha=-step * kept)


def _advance_buffer(
    parameter: Tensor, direction: Tensor, state: State, group: Group, *, share: float, past: Past
) -> None:
    momentum = group.get("momentum", 0.0)
    kept = memory(momentum, past=past) ** share
    buffer = state.get("momentum_buffer") if momentum else past.means.get(parameter)
    if buffer is None:
        buffer = torch.zeros_like(parameter)
        if momentum:
            state["momentum_buffer"] = buffer
        else:
            past.means[parameter] = buffer
    buffer.mul_(kept).add_(direction, alpha=(1 - kept) * _gain(group))


class AdamRule:
    """Adam and AdamW, with AMSGrad too."""

    normalises: ClassVar[bool] = True

    @staticmethod
    def move(
        parameter: Tensor, gradient: Tensor, mean: Tensor, state: State, group: Group, *, weight: float, past: Past
    ) -> None:
        """``θ <- θ - η weight ((1 - b²) g + b² M) / (sqrt(v̂) + ε)``, with v̂ of ḡ as well."""
        (_, beta2), step = group["betas"], float(state.get("step", 0.0))
        square = mean.square().mul_(1 - beta2)
        if "exp_avg_sq" in state:
            square.add_(state["exp_avg_sq"], alpha=beta2)
        if "max_exp_avg_sq" in state:
            torch.maximum(square, state["max_exp_avg_sq"], out=square)
        scale = square.sqrt_().mul_(1 / math.sqrt(1 - beta2 ** (step + 1))).add_(group["eps"])
        if group.get("decoupled_weight_decay"):
            parameter.mul_(1 - group["lr"] * weight * group["weight_decay"])
        _move_normalised(parameter, gradient, scale, state, group, weight=weight, past=past)

    @staticmethod
    def advance(parameter: Tensor, mean: Tensor, state: State, group: Group, *, share: float, past: Past) -> None:
        """``M <- b M + (1 - b) ḡ`` and ``v <- β2 v + (1 - β2) ḡ²``."""
        if "exp_avg_sq" not in state:
            state["exp_avg_sq"] = torch.zeros_like(parameter)
            if group.get("amsgrad"):
                state["max_exp_avg_sq"] = torch.zeros_like(parameter)
        kept = group["betas"][1] ** share
        state["exp_avg_sq"].mul_(kept).addcmul_(mean, mean, value=1 - kept)
        if group.get("amsgrad"):
            torch.maximum(state["max_exp_avg_sq"], state["exp_avg_sq"], out=state["max_exp_avg_sq"])
        _advance_mean(parameter, mean, state, group, share=share, past=past)


class AdamaxRule:
    """Adamax: Adam with the largest gradient in place of the mean square."""

    normalises: ClassVar[bool] = True

    @staticmethod
    def move(
        parameter: Tensor, gradient: Tensor, mean: Tensor, state: State, group: Group, *, weight: float, past: Past
    ) -> None:
        """``θ <- θ - η weight ((1 - b²) g + b² M) / u``, with u of ḡ as well."""
        scale = mean.abs().add_(group["eps"])
        if "exp_inf" in state:
            torch.maximum(scale, state["exp_inf"] * group["betas"][1], out=scale)
        _move_normalised(parameter, gradient, scale, state, group, weight=weight, past=past)

    @staticmethod
    def advance(parameter: Tensor, mean: Tensor, state: State, group: Group, *, share: float, past: Past) -> None:
        """``M <- b M + (1 - b) ḡ`` and ``u <- max(β2 u, |ḡ| + ε)``."""
        largest = mean.abs().add_(group["eps"])
        if "exp_inf" in state:
            torch.maximum(largest, state["exp_inf"] * group["betas"][1] ** share, out=largest)
        state["exp_inf"] = largest
        _advance_mean(parameter, mean, state, group, share=share, past=past)


def _kept_of_mean(state: State, group: Group, *, past: Past) -> float:
    """B of a mean that begins with its first value, as Adam's corrected one does."""
    beta1, step = group["betas"][0], float(state.get("step", 0.0))
    if step < _own_memory(beta1):
        return float(1 - (1 - beta1) / (1 - beta1 ** (step + 1)))
    return memory(beta1, past=past)


def _move_normalised(
    parameter: Tensor, gradient: Tensor, scale: Tensor, state: State, group: Group, *, weight: float, past: Past
) -> None:
    size, kept = group["lr"] * weight, _kept_of_mean(state, group, past=past) ** 2
    parameter.addcdiv_(gradient, scale, value=-size * (1 - kept))
    if "exp_avg" in state:
        correction = 1 - group["betas"][0] ** float(state["step"])
        parameter.addcdiv_(state["exp_avg"], scale, value=-size * kept / correction)


def _advance_mean(parameter: Tensor, mean: Tensor, state: State, group: Group, *, share: float, past: Past) -> None:
    beta1, step = group["betas"][0], float(state.get("step", 0.0))
    kept = _kept_of_mean(state, group, past=past) ** share
    before, after = 1 - beta1**step, 1 - beta1 ** (step + share)
    if "exp_avg" not in state:
        state["exp_avg"] = torch.zeros_like(parameter)
    state["exp_avg"].mul_(kept * after / before if before else 0.0).add_(mean, alpha=(1 - kept) * after)
    _count(state, share)


class _ScaledRule:
    """As SGD with ``g / D`` in place of the gradient g; what D is, a class of optimizers says."""

    normalises: ClassVar[bool] = True

    @classmethod
    def move(
        cls, parameter: Tensor, gradient: Tensor, mean: Tensor, state: State, group: Group, *, weight: float, past: Past
    ) -> None:
        """SGD's with ``g / D``, with D of ḡ as well; Adagrad's rate decays."""
        slowed = weight / (1 + float(state.get("step", 0.0)) * group.get("lr_decay", 0.0))
        _move_by(parameter, gradient / cls._scale(mean, state, group), state, group, weight=slowed, past=past)

    @classmethod
    def advance(cls, parameter: Tensor, mean: Tensor, state: State, group: Group, *, share: float, past: Past) -> None:
        """D with ḡ, and the mean of directions as SGD's of gradients."""
        direction = mean / cls._take_in(mean, state, group, share=share)
        _advance_buffer(parameter, direction, state, group, share=share, past=past)
        _count(state, share)

    @staticmethod
    def _scale(mean: Tensor, state: State, group: Group) -> Tensor:
        """D as it would be with this mean."""
        raise NotImplementedError

    @staticmethod
    def _take_in(mean: Tensor, state: State, group: Group, *, share: float) -> Tensor:
        """D, which from now on has this mean in it."""
        raise NotImplementedError


class AdagradRule(_ScaledRule):
    """Adagrad: ``D = sqrt(sum of ḡ²) + ε``."""

    @staticmethod
    def _scale(mean: Tensor, state: State, group: Group) -> Tensor:
        scale: Tensor = state["sum"] + mean.square()
        return scale.sqrt_().add_(group["eps"])

    @staticmethod
    def _take_in(mean: Tensor, state: State, group: Group, *, share: float) -> Tensor:
        state["sum"].addcmul_(mean, mean, value=share)
        root: Tensor = state["sum"].sqrt() + group["eps"]
        return root


class RMSpropRule(_ScaledRule):
    """RMSprop, with momentum and centred too: ``D = sqrt(v) + ε`` with ``v <- α v + (1 - α) ḡ²``."""

    @staticmethod
    def _scale(mean: Tensor, state: State, group: Group) -> Tensor:
        return _root(mean, state, group, kept=group["alpha"])

    @staticmethod
    def _take_in(mean: Tensor, state: State, group: Group, *, share: float) -> Tensor:
        kept = group["alpha"] ** share
        root = _root(mean, state, group, kept=kept)
        for key, value in (("square_avg", mean.square()), *((("grad_avg", mean),) if group["centered"] else ())):
            if key not in state:
                state[key] = torch.zeros_like(mean)
            state[key].lerp_(value, 1 - kept)
        return root


def _root(mean: Tensor, state: State, group: Group, *, kept: float) -> Tensor:
    """sqrt(v) + ε, with v as it would be with this mean."""
    square = mean.square().mul_(1 - kept)
    if "square_avg" in state:
        square.add_(state["square_avg"], alpha=kept)
    if group["centered"]:
        centre = mean * (1 - kept)
        if "grad_avg" in state:
            centre.add_(state["grad_avg"], alpha=kept)
        square.addcmul_(centre, centre, value=-1).clamp_(min=0.0)
    return square.sqrt_().add_(group["eps"])


def _count(state: State, share: float) -> None:
    step = state.get("step")
    if step is None:
        state["step"] = torch.tensor(float(share))
    else:
        step += share


STEP_RULES: Mapping[type[torch.optim.Optimizer], type[StepRule]] = {
    torch.optim.SGD: SGDRule,
    torch.optim.Adam: AdamRule,
    torch.optim.AdamW: AdamRule,
    torch.optim.Adamax: AdamaxRule,
    torch.optim.Adagrad: AdagradRule,
    torch.optim.RMSprop: RMSpropRule,
}
"""The others step as updates come (`interleaved`)."""
