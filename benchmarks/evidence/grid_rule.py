"""Adam with late gradients on a small transformer, without Plesio's grid: why it fails, and what mends it.

    python benchmarks/evidence/grid_rule.py plain predicted                      # stages 6, 4, 2 and 0 updates late
    python benchmarks/evidence/grid_rule.py plain predicted --micro-batches 8    # at most one update late
    python benchmarks/evidence/grid_rule.py plain --delay 0 --sharpness
    python benchmarks/evidence/grid_rule.py limits

One process, plain PyTorch: a gradient is that at one point, whose parts are the stages' weights of so many
micro-batches ago. ``predicted`` is the grid's rule. Printed is the held-out perplexity. The network is half as wide as
in `grid_learning.py`, windows are of 32 bytes, and there are 400 updates on 8 of them: a task to develop on.

``limits`` prints the largest stable learning rate times curvature (κ) of a quadratic, by the delay in updates, β1 and
how far ahead; ``--sharpness`` the κ of the training, every 100 updates.
"""

import argparse
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from plesio.bench.grid_trainer import optimizer_of_stage
from plesio.policies.grid import GridSetting
from plesio.runtime.grid.weight_prediction import WeightPrediction
from plesio.tasks.load import load_task
from plesio.tasks.stdlib_lm import read_corpus
from plesio.tasks.task import Task

OPTIONS = {"depth": 4, "width": 32, "context": 32, "corpus_bytes": 600_000, "tied": False}
ENDS = (0, 2, 3, 4, 6)
UPDATES, BATCH = 400, 8
VARIANTS = ("plain", "predicted")


class Stage:
    """One stage's weights of the last updates; its layers have those that a gradient is taken at."""

    def __init__(self, layers: nn.Module, whole: torch.optim.Optimizer, task: Task, *, ahead: int) -> None:
        self.at = dict(layers.named_parameters())
        self.optimizer = optimizer_of_stage(whole, self.at.values())
        self.schedule = task.schedule(self.optimizer, UPDATES)
        self.prediction = WeightPrediction(self.optimizer, self.at, num_updates=ahead)
        self.live = {name: weight.detach().clone() for name, weight in self.at.items()}
        self.versions = [self.live]

    @torch.no_grad()
    def put(self, weights: dict[str, Tensor]) -> None:
        """Give the layers these weights."""
        for name, weight in self.at.items():
            weight.copy_(weights[name])

    def update(self) -> None:
        """Step the newest weights with the gradient that the layers have."""
        self.put(self.live)
        self.prediction.step()
        self.schedule.step()
        self.live = {name: weight.detach().clone() for name, weight in self.at.items()}
        self.versions.append({name: weight.detach().clone() for name, weight in self.prediction.predicted().items()})


def perplexity(setting: GridSetting, *, predicted: bool, rate: float, seed: int, sharpness: bool) -> float:
    task = load_task("stdlib_lm", **OPTIONS, learning_rate=rate)
    assert task.chain is not None
    model, whole = task.build(seed)
    layers = task.chain.layers(model)
    stages = [
        Stage(layers[begin:end], whole, task, ahead=late if predicted else 0)
        for (begin, end), late in zip(itertools.pairwise(ENDS), setting.updates_late, strict=True)
    ]
    data: Any = task.train_set()
    generator = torch.Generator().manual_seed(seed * 7 + 1)
    order = torch.cat([torch.randperm(len(data), generator=generator) for _ in range(1 + UPDATES * BATCH // len(data))])
    count = setting.micro_batches
    micro_batches = order[: UPDATES * BATCH].view(UPDATES * count, BATCH // count)

    def versions(number: int) -> list[int]:
        return [max(0, number - delay) // count for delay in setting.delays]

    for update in range(UPDATES):
        numbers = range(update * count, (update + 1) * count)
        for at, alike in itertools.groupby(numbers, versions):  # those with the same weights go together
            for stage, version in zip(stages, at, strict=True):
                stage.put(stage.versions[version])
            samples = micro_batches[list(alike)].flatten()
            (task.loss(model, list(data[samples])) * (len(samples) / BATCH)).backward()
        for stage in stages:
            stage.update()
        if sharpness and update % 100 == 99:
            print(f"  κ after {update + 1} updates: {largest(model, task, data, stages):.2f}", flush=True)
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


def limit(delay: float, *, beta1: float, ahead: float) -> float:
    """Return the largest stable κ of ``w - κ m``, ``m = β1 m + (1-β1) ŵ``, ŵ being ``w + ahead Δ`` of updates ago.

    A delay between two whole numbers is a mean of gradients with either.
    """
    whole = math.floor(delay)

    def grows(k: float) -> bool:
        # z^(d+1) (z-1)(z-β) + κ (1-β) Σ share z^(d-late) (z (1 + a) - a) z = 0, d being the longest delay
        powers = np.zeros(whole + 4)
        powers[:3] = 1, -(1 + beta1), beta1
        for late, share in ((whole, 1 - delay + whole), (whole + 1, delay - whole)):
            powers[late + 1 : late + 3] += k * (1 - beta1) * share * np.array([1 + ahead, -ahead])
        return bool(np.abs(np.roots(powers)).max() > 1 + 1e-9)

    low, high = 1e-4, 1e3
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if grows(middle) else (middle, high)
    return low


def show_limits() -> None:
    for delay in (0, 0.375, 0.75, 1, 1.5, 2, 4, 6):
        for beta1 in (0.9, 0.95, 0.99):
            found = [f"{limit(delay, beta1=beta1, ahead=share * math.ceil(delay)):8.3f}" for share in (0, 1, 1.5)]
            print(f"{delay:5} late, β1 {beta1:4}: {' '.join(found)}   at 0, 1 and 1.5 times the longest delay ahead")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", choices=(*VARIANTS, "limits"))
    parser.add_argument("--delay", type=int, default=2, help="micro-batches, for each stage behind")
    parser.add_argument("--micro-batches", type=int, default=1, help="of an update")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--sharpness", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for what in given.what:
        if what == "limits":
            show_limits()
            continue
        setting = GridSetting(stages=len(ENDS) - 1, delay=given.delay, micro_batches=given.micro_batches)
        found = perplexity(
            setting, predicted=what == "predicted", rate=given.rate, seed=given.seed, sharpness=given.sharpness
        )
        print(f"{setting.spec}, {what}, seed {given.seed}: {found:.2f}", flush=True)


if __name__ == "__main__":
    main()
