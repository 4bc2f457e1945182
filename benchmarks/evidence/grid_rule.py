"""The effect of late gradients on the small transformer, without Plesio's grid: two halves, the first of them late.

    python benchmarks/evidence/grid_rule.py --late 0 1 2 6
    python benchmarks/evidence/grid_rule.py --late 0 2 --beta1 0 --factor 0.3

One process, plain PyTorch: the first half's gradients are those of its weights so many updates ago. 600 updates on 8
windows each, one seed; the task and its rate are those of `grid_learning.py`. Printed is the held-out perplexity.
"""

import argparse
import copy
from typing import Any

import torch
from grid_learning import TASKS

from plesio.tasks.load import load_task

UPDATES, BATCH, SEED = 600, 8, 100


def perplexity(late: int, *, beta1: float, factor: float) -> float:
    task = load_task("stdlib_lm", **TASKS["stdlib_lm"]["options"])
    assert task.chain is not None
    chain = task.chain
    model, whole = task.build(SEED)
    layers = chain.layers(model)
    halves = layers[: len(layers) // 2], layers[len(layers) // 2 :]
    optimizers = [_optimizer(whole, half, beta1=beta1, factor=factor) for half in halves]
    schedules = [task.schedule(optimizer, UPDATES) for optimizer in optimizers]
    data: Any = task.train_set()
    generator = torch.Generator().manual_seed(1)
    order = torch.cat([torch.randperm(len(data), generator=generator) for _ in range(1 + UPDATES * BATCH // len(data))])
    under_way: list[Any] = []
    for number in range(UPDATES):
        x, y = chain.split(list(data[order[number * BATCH : (number + 1) * BATCH]]))
        then = copy.deepcopy(halves[0])
        output = then(x)
        given = output.detach().requires_grad_()
        sent, *gradients = torch.autograd.grad(chain.loss(halves[1](given), y), [given, *halves[1].parameters()])
        _step(halves[1], gradients, optimizers[1], schedules[1])
        under_way.append((then, output, sent))
        if len(under_way) > late:
            then, output, sent = under_way.pop(0)
            found = torch.autograd.grad(output, list(then.parameters()), sent, allow_unused=True)
            _step(halves[0], found, optimizers[0], schedules[0])
    return task.metric(model)


def _step(half: torch.nn.Module, gradients: Any, optimizer: torch.optim.Optimizer, schedule: Any) -> None:
    for weight, gradient in zip(half.parameters(), gradients, strict=True):
        weight.grad = gradient
    optimizer.step()
    schedule.step()


def _optimizer(
    whole: torch.optim.Optimizer, half: torch.nn.Module, *, beta1: float, factor: float
) -> torch.optim.Optimizer:
    own = {id(weight) for weight in half.parameters()}
    groups = [
        {**group, "params": kept, "betas": (beta1, group["betas"][1]), "lr": factor * group["lr"]}
        for group in whole.param_groups
        if (kept := [weight for weight in group["params"] if id(weight) in own])
    ]
    return type(whole)(groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--late", type=int, nargs="+", default=[0, 1, 2, 6], help="updates")
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--factor", type=float, default=1.0, help="of the learning rate")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for late in given.late:
        print(f"{late} updates late: {perplexity(late, beta1=given.beta1, factor=given.factor):.2f}", flush=True)


if __name__ == "__main__":
    main()
