"""Late updates by every class of optimizers against the rule's formulas, written out once more for single numbers."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from plesio.runtime.server.interleaved import InterleavedOptimizer
from plesio.runtime.server.step_rules import STEP_RULES

RATE, EPS, AGE = 0.05, 1e-3, 0.5
UPDATES = 5 * [(0.3, 0.5, 0.3), (0.4, 0.5, 0.2), (-0.7, 0.25, 0.15), (1.3, 0.75, 0.7), (0.2, 0.5, 0.1)]
"""Gradient, share of the round, weight: five times two whole rounds and half a one, which is cut off."""

Scale = Callable[[dict[str, float], float, float], float]
"""D, of the state, the round's mean and the power to which decays are taken; `keep` has the state changed."""


def adam(state: dict[str, float], mean: float, power: float, *, beta: float = 0.8, amsgrad: bool = False) -> float:
    square = state.get("square", 0.0) * beta**power + mean**2 * (1 - beta**power)
    largest = max(square, state.get("largest", 0.0)) if amsgrad else square
    state["square"], state["largest"] = square, largest
    return math.sqrt(largest / (1 - beta ** (state["rounds"] + power))) + EPS


def adamax(state: dict[str, float], mean: float, power: float, *, beta: float = 0.8) -> float:
    state["largest"] = max(abs(mean) + EPS, state.get("largest", 0.0) * beta**power)
    return state["largest"]


def adagrad(state: dict[str, float], mean: float, power: float) -> float:
    state["sum"] = state.get("sum", 0.01) + mean**2 * power
    return math.sqrt(state["sum"]) + EPS


def rmsprop(state: dict[str, float], mean: float, power: float, *, kept: float = 0.7, centred: bool = False) -> float:
    state["square"] = state.get("square", 0.0) * kept**power + mean**2 * (1 - kept**power)
    state["centre"] = state.get("centre", 0.0) * kept**power + mean * (1 - kept**power)
    return math.sqrt(state["square"] - (state["centre"] ** 2 if centred else 0.0)) + EPS


def reference(
    scale: Scale | None = None,
    *,
    decay: float = 0.0,
    dampening: float = 0.0,
    corrected: bool = False,
    coupled: float = 0.0,
    decoupled: float = 0.0,
    lr_decay: float = 0.0,
    sign: float = 1.0,
    smooth: bool = False,
) -> list[float]:
    """The parameter after each update.

    Args:
        scale: By what gradients are divided; None for SGD.
        decay: Of momentum.
        dampening: Of SGD's.
        corrected: Whether the mean begins with its first value, as Adam's, and has no gain.
        coupled: Weight decay in the gradient.
        decoupled: AdamW's.
        lr_decay: Adagrad's.
        sign: -1 where it maximises.
        smooth: Whether momentum divides the direction before it is remembered.
    """
    theta, remembered = 1.0, 0.0
    state: dict[str, float] = {"rounds": 0.0}
    total = share_so_far = age = 0.0
    path: list[float] = []
    length = 1 / (1 - decay)
    gain = 1.0 if corrected else (1 - dampening) * length
    for gradient, share, weight in UPDATES:
        gradient = sign * gradient + coupled * theta
        total, share_so_far = total + share * gradient, share_so_far + share
        mean = total / share_so_far
        rounds = state["rounds"]
        age += (AGE - age) * share / 4
        kept = 1 - 1 / min((1 + 4 * age) * length, max(length, rounds / 3))
        if corrected and rounds < length:
            kept = 1 - (1 - decay) / (1 - decay ** (rounds + 1))
        if scale is None and not decay:
            kept = 0.0
        expected = mean
        if abs(mean) < abs(gradient) * math.sqrt(share):
            expected = gradient * math.sqrt(share)
        divisor = 1.0 if scale is None else scale(dict(state), expected, 1.0)
        remembers = remembered if smooth else remembered / divisor
        rate = RATE * weight / (1 + rounds * lr_decay)
        theta *= 1 - RATE * weight * decoupled
        theta -= rate * ((1 - kept**2) * gain * gradient / divisor + kept**2 * remembers)
        path.append(theta)
        if share_so_far > 0.999 or len(path) % 5 == 0:
            divisor = 1.0 if scale is None else scale(state, mean, share_so_far)
            power = kept**share_so_far
            remembered = power * remembered + (1 - power) * gain * (mean / divisor if smooth else mean)
            state["rounds"] += share_so_far
            total = share_so_far = 0.0
    return path


Make = Callable[..., torch.optim.Optimizer]
ADAM: dict[str, Any] = {"lr": RATE, "betas": (0.6, 0.8), "eps": EPS}
SQUARES: dict[str, Any] = {"lr": RATE, "alpha": 0.7, "eps": EPS}
CASES: dict[str, tuple[Make, dict[str, Any]]] = {
    "sgd": (partial(torch.optim.SGD, lr=RATE), {}),
    "momentum": (partial(torch.optim.SGD, lr=RATE, momentum=0.6, dampening=0.25), {"decay": 0.6, "dampening": 0.25}),
    "nesterov": (partial(torch.optim.SGD, lr=RATE, momentum=0.6, nesterov=True), {"decay": 0.6}),
    "adam": (partial(torch.optim.Adam, **ADAM), {"scale": adam, "decay": 0.6, "corrected": True}),
    "amsgrad": (
        partial(torch.optim.Adam, **ADAM, amsgrad=True),
        {"scale": partial(adam, amsgrad=True), "decay": 0.6, "corrected": True},
    ),
    "adam-decoupled": (
        partial(torch.optim.Adam, **ADAM, decoupled_weight_decay=True),
        {"scale": adam, "decay": 0.6, "corrected": True},
    ),
    "adamw": (partial(torch.optim.AdamW, **ADAM), {"scale": adam, "decay": 0.6, "corrected": True}),
    "adamax": (partial(torch.optim.Adamax, **ADAM), {"scale": adamax, "decay": 0.6, "corrected": True}),
    "adagrad": (
        partial(torch.optim.Adagrad, lr=RATE, eps=EPS, lr_decay=0.2, initial_accumulator_value=0.01),
        {"scale": adagrad, "lr_decay": 0.2, "smooth": True},
    ),
    "rmsprop": (partial(torch.optim.RMSprop, **SQUARES), {"scale": rmsprop, "smooth": True}),
    "rmsprop-momentum": (
        partial(torch.optim.RMSprop, **SQUARES, momentum=0.6),
        {"scale": rmsprop, "decay": 0.6, "smooth": True},
    ),
    "centred": (
        partial(torch.optim.RMSprop, **SQUARES, momentum=0.6, centered=True),
        {"scale": partial(rmsprop, centred=True), "decay": 0.6, "smooth": True},
    ),
}
"""By name, an optimizer and what `reference` needs to know of it."""


def moved(make: Make, **options: Any) -> list[float]:
    parameter = torch.ones(1, dtype=torch.float64).requires_grad_()
    stepper = InterleavedOptimizer(make([parameter], **options))
    path: list[float] = []
    for gradient, share, weight in UPDATES:
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        stepper.step(weight=weight, share=share, age=AGE)
        path.append(parameter.item())
        if len(path) % 5 == 0:
            stepper.end_round()
    return path


def test_every_class_with_a_rule_has_a_case():
    assert {type(make([torch.ones(1)])) for make, _ in CASES.values()} == set(STEP_RULES)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("name", CASES)
def test_late_updates_move_by_the_formula(name: str, weight_decay: float, maximize: bool):
    make, known = CASES[name]
    decay = {"decoupled" if name in ("adamw", "adam-decoupled") else "coupled": weight_decay}
    expected = reference(**known, **decay, sign=-1.0 if maximize else 1.0)
    assert moved(make, weight_decay=weight_decay, maximize=maximize) == pytest.approx(expected, rel=1e-9)
