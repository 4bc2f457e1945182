"""Late updates by every class of optimizers against the rule's formulas, written out once more for single numbers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from plesio.runtime.server.interleaved import InterleavedOptimizer

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


SGD, OPTIM = torch.optim.SGD, torch.optim
CASES: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], list[float]]] = {
    "sgd": (lambda p: SGD(p, RATE, weight_decay=0.3), reference(coupled=0.3)),
    "maximize": (lambda p: SGD(p, RATE, weight_decay=0.3, maximize=True), reference(coupled=0.3, sign=-1.0)),
    "momentum": (
        lambda p: SGD(p, RATE, momentum=0.6, dampening=0.25, weight_decay=0.3),
        reference(decay=0.6, dampening=0.25, coupled=0.3),
    ),
    "adam": (
        lambda p: OPTIM.Adam(p, RATE, betas=(0.6, 0.8), eps=EPS, weight_decay=0.3),
        reference(adam, decay=0.6, corrected=True, coupled=0.3),
    ),
    "amsgrad": (
        lambda p: OPTIM.Adam(p, RATE, betas=(0.6, 0.8), eps=EPS, amsgrad=True),
        reference(lambda *given: adam(*given, amsgrad=True), decay=0.6, corrected=True),
    ),
    "adamw": (
        lambda p: OPTIM.AdamW(p, RATE, betas=(0.6, 0.8), eps=EPS, weight_decay=0.3),
        reference(adam, decay=0.6, corrected=True, decoupled=0.3),
    ),
    "adamax": (
        lambda p: OPTIM.Adamax(p, RATE, betas=(0.6, 0.8), eps=EPS, weight_decay=0.3),
        reference(adamax, decay=0.6, corrected=True, coupled=0.3),
    ),
    "adagrad": (
        lambda p: OPTIM.Adagrad(p, RATE, eps=EPS, lr_decay=0.2, initial_accumulator_value=0.01, weight_decay=0.3),
        reference(adagrad, coupled=0.3, lr_decay=0.2, smooth=True),
    ),
    "rmsprop": (
        lambda p: OPTIM.RMSprop(p, RATE, alpha=0.7, eps=EPS, momentum=0.6, weight_decay=0.3),
        reference(rmsprop, decay=0.6, coupled=0.3, smooth=True),
    ),
    "centred": (
        lambda p: OPTIM.RMSprop(p, RATE, alpha=0.7, eps=EPS, momentum=0.6, centered=True),
        reference(lambda *given: rmsprop(*given, centred=True), decay=0.6, smooth=True),
    ),
}


def moved(make: Callable[[Any], torch.optim.Optimizer]) -> list[float]:
    parameter = torch.ones(1, dtype=torch.float64).requires_grad_()
    stepper = InterleavedOptimizer(make([parameter]))
    path: list[float] = []
    for gradient, share, weight in UPDATES:
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
        stepper.step(weight=weight, share=share, age=AGE)
        path.append(parameter.item())
        if len(path) % 5 == 0:
            stepper.end_round()
    return path


@pytest.mark.parametrize("name", CASES)
def test_late_updates_move_by_the_formula(name: str):
    make, expected = CASES[name]
    assert moved(make) == pytest.approx(expected, rel=1e-9)
