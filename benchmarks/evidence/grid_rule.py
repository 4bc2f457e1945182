"""Adam with late gradients on a small transformer, without Plesio's grid: why it fails, and what mends it.

    python benchmarks/evidence/grid_rule.py plain turned ahead both      # of four stages, 6, 4, 2 and 0 updates late
    python benchmarks/evidence/grid_rule.py plain --delay 0 --sharpness
    python benchmarks/evidence/grid_rule.py limits

One process, plain PyTorch: a gradient is that at one point, whose parts are the stages' weights of so many updates ago.
``turned`` steps late stages in the eigenbasis of their gradients, ``ahead`` takes gradients at weights ahead, ``both``
is the grid's rule. Printed is the held-out perplexity. The network is half as wide as in `grid_learning.py`, windows
are of 32 bytes, and there are 400 updates on 8 of them: a task to develop on.

``limits`` prints the largest stable learning rate times curvature (K) of a quadratic, by delay, β1 and how far ahead;
``--sharpness`` the K of the training, every 100 updates.
"""

import argparse
import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plesio.bench.grid_trainer import optimizer_of_stage
from plesio.runtime.grid.late_steps import LateSteps
from plesio.tasks.load import load_task
from plesio.tasks.stdlib_lm import read_corpus
from plesio.tasks.task import Task

OPTIONS = {"depth": 4, "width": 32, "context": 32, "corpus_bytes": 600_000, "tied": False}
ENDS = (0, 2, 3, 4, 6)
UPDATES, BATCH = 400, 8
VARIANTS = ("plain", "turned", "ahead", "both")


class Stage:
    """One stage's weights of the last updates; its layers have those that a gradient is taken at."""

    def __init__(
        self, layers: nn.Module, whole: torch.optim.Optimizer, task: Task, *, variant: str, delay: int
    ) -> None:
        self.at = dict(layers.named_parameters())
        self.optimizer = optimizer_of_stage(whole, self.at.values())
        self.schedule = task.schedule(self.optimizer, UPDATES)
        self.steps = LateSteps(self.optimizer, self.at, delay=delay if variant in ("turned", "both") else 0)
        self.looks_ahead = variant in ("ahead", "both")
        self.delay = delay
        self.live = {name: weight.detach().clone() for name, weight in self.at.items()}
        self.due = deque([self.live] * (delay + 1), maxlen=delay + 1)

    @torch.no_grad()
    def put(self, weights: dict[str, Tensor]) -> None:
        """Give the layers these weights."""
        for name, weight in self.at.items():
            weight.copy_(weights[name])

    def update(self) -> None:
        """Step the newest weights with the gradient of the oldest that are due."""
        before = self.live
        self.put(before)
        self.steps.step()
        self.schedule.step()
        self.live = {name: weight.detach().clone() for name, weight in self.at.items()}
        far = self.delay if self.looks_ahead else 0
        self.due.append({name: weight + far * (weight - before[name]) for name, weight in self.live.items()})


def perplexity(variant: str, *, delay: int, rate: float, seed: int, sharpness: bool) -> float:
    task = load_task("stdlib_lm", **OPTIONS, learning_rate=rate)
    assert task.chain is not None
    model, whole = task.build(seed)
    layers = task.chain.layers(model)
    late = [delay * (len(ENDS) - 2 - number) for number in range(len(ENDS) - 1)]
    stages = [
        Stage(layers[begin:end], whole, task, variant=variant, delay=one)
        for begin, end, one in zip(ENDS, ENDS[1:], late, strict=False)
    ]
    data: Any = task.train_set()
    generator = torch.Generator().manual_seed(seed * 7 + 1)
    order = torch.cat([torch.randperm(len(data), generator=generator) for _ in range(1 + UPDATES * BATCH // len(data))])
    for number in range(UPDATES):
        for stage in stages:
            stage.put(stage.due[0])
        batch = list(data[order[number * BATCH : (number + 1) * BATCH]])
        task.loss(model, batch).backward()
        for stage in stages:
            stage.update()
        if sharpness and number % 100 == 99:
            print(f"  K after {number + 1} updates: {largest(model, task, data, stages):.2f}", flush=True)
    for stage in stages:
        stage.put(stage.live)
    return held_out(task, model)


@torch.no_grad()
def held_out(task: Task, model: nn.Module) -> float:
    """Return the perplexity on eight times as many windows as the task's own metric, since the network is small."""
    length = OPTIONS["context"]
    windows = read_corpus(OPTIONS["corpus_bytes"]).held_out.unfold(0, length + 1, length)
    chosen = torch.linspace(0, len(windows) - 1, 512).long()
    return math.exp(sum(float(task.loss(model, [windows[part]])) for part in chosen.split(64)) / 8)


def largest(model: nn.Module, task: Task, data: Any, stages: Sequence[Stage]) -> float:
    """Return the learning rate times the largest eigenvalue of ``V^-1/2 H V^-1/2``, by power iteration."""
    weights = list(model.parameters())
    state = {weight: state for stage in stages for weight, state in stage.optimizer.state.items()}
    scales = [
        (state[weight]["exp_avg_sq"] / (1 - 0.95 ** float(state[weight]["step"]))).sqrt().add(1e-8).sqrt()
        for weight in weights
    ]
    for stage in stages:
        stage.put(stage.live)
    start = [weight.detach().clone() for weight in weights]
    generator = torch.Generator().manual_seed(0)
    along = [torch.randn(weight.shape, generator=generator) for weight in weights]
    value = 0.0
    for _ in range(12):
        norm = math.sqrt(sum(float(one.square().sum()) for one in along))
        along = [one / norm for one in along]
        found = []
        for sign in (1e-2, -1e-2):
            with torch.no_grad():
                for weight, begun, one, scale in zip(weights, start, along, scales, strict=True):
                    weight.copy_(begun + sign * one / scale)
            found.append(torch.autograd.grad(task.loss(model, list(data[:64])), weights))
        moved = [(up - down) / 2e-2 / scale for up, down, scale in zip(*found, scales, strict=True)]
        value = sum(float((one * other).sum()) for one, other in zip(along, moved, strict=True))
        along = moved
    return value * stages[0].optimizer.param_groups[0]["lr"]


def limit(delay: int, *, beta1: float, ahead: float) -> float:
    """Return the largest stable K of ``w - K m``, ``m = β1 m + (1-β1) ŵ``, ŵ being ``w + ahead Δ`` of updates ago."""

    def grows(k: float) -> bool:
        # z^d (z-1)(z-β) + K (1-β) z (1 + a (1 - 1/z)) = 0
        powers = np.zeros(delay + 3)
        powers[:3] = 1, -(1 + beta1), beta1
        powers[-2] += k * (1 - beta1) * (1 + ahead)
        powers[-1] -= k * (1 - beta1) * ahead
        return bool(np.abs(np.roots(powers)).max() > 1 + 1e-9)

    low, high = 1e-4, 1e3
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if grows(middle) else (middle, high)
    return low


def show_limits() -> None:
    for delay in (0, 2, 4, 6):
        for beta1 in (0.0, 0.9, 0.95, 0.99):
            found = [f"{limit(delay, beta1=beta1, ahead=share * delay):8.3f}" for share in (0, 1, 1.5, 2)]
            print(f"{delay} late, β1 {beta1:4}: {' '.join(found)}   at 0, 1, 1.5 and 2 delays ahead")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=(*VARIANTS, "limits"))
    parser.add_argument("--delay", type=int, default=2, help="updates, for each stage behind")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--sharpness", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for what in given.what:
        if what == "limits":
            show_limits()
            continue
        found = perplexity(what, delay=given.delay, rate=given.rate, seed=given.seed, sharpness=given.sharpness)
        print(f"{what}, delay {given.delay}, seed {given.seed}: {found:.2f}", flush=True)


if __name__ == "__main__":
    main()
