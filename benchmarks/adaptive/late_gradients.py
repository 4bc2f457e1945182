"""Which learning rates are stable when N workers take turns at the store, and how far training comes, beside BSP's.

    python benchmarks/adaptive/late_gradients.py

A quadratic, no noise: the theory's own case (`plesio.runtime.server.interleaved`). Each worker trains on what was
there just after its own last update, so gradients are N - 1 updates old. *By arrival* is a step of the stock optimizer
at every update, with an N-th of the rate; *root* the same with decay rates to the power of 1/N.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from plesio.runtime.server.interleaved import InterleavedOptimizer

WORKERS = (2, 4, 8, 16, 32)
ROUNDS = 300
Make = Callable[[list[Tensor], float], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr),
    "momentum 0.9": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
    "Nesterov 0.9": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True),
    "Adam": lambda parameters, lr: torch.optim.Adam(parameters, lr=lr),
    "RMSprop": lambda parameters, lr: torch.optim.RMSprop(parameters, lr=lr),
}
RATES = {"SGD": 0.5, "momentum 0.9": 0.2, "Nesterov 0.9": 0.2, "Adam": 0.01, "RMSprop": 0.01}
RULES = ("by arrival", "root", "parts of a step")


def train(make: Make, curvatures: Tensor, *, rate: float, num_workers: int, rule: str) -> Tensor:
    """``[ROUNDS, dimensions]``: the parameters at the end of each round."""
    parameter = torch.ones_like(curvatures).requires_grad_()
    optimizer = make([parameter], rate)
    if rule == "root":
        for group in optimizer.param_groups:
            group.update({key: group[key] ** (1 / num_workers) for key in ("momentum", "alpha") if group.get(key)})
            if "betas" in group:
                group["betas"] = tuple(beta ** (1 / num_workers) for beta in group["betas"])
    stepper = InterleavedOptimizer(optimizer)
    pulled = [parameter.detach().clone() for _ in range(num_workers)]
    path = []
    share = 1 / num_workers
    for turn in range(ROUNDS * num_workers):
        worker = turn % num_workers
        parameter.grad = curvatures * pulled[worker]
        if rule in ("by arrival", "root"):
            stepper.step(weight=share)
        else:
            stepper.step(weight=share, share=share, age=min(turn, num_workers - 1) * share)
        pulled[worker] = parameter.detach().clone()
        if worker == num_workers - 1:
            path.append(parameter.detach().clone())
    return torch.stack(path)


def largest_stable(make: Make, *, num_workers: int, rule: str) -> float:
    """The largest ``η λ``, within 5 %, at which the parameter goes to its minimum."""
    low, high = 0.01, 8.0
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        path = train(make, torch.ones(1, dtype=torch.float64), rate=middle, num_workers=num_workers, rule=rule).abs()
        shrinks = bool(path.isfinite().all()) and float(path[-20:].max()) < float(path[130:150].max())
        low, high = (middle, high) if shrinks else (low, middle)
    return low


def loss_after(make: Make, *, rate: float, num_workers: int, rule: str) -> float:
    """The loss after half of the rounds, over the first."""
    curvatures = torch.logspace(-2.5, 0, 12, dtype=torch.float64)
    path = train(make, curvatures, rate=rate, num_workers=num_workers, rule=rule)
    return float((path[ROUNDS // 2] ** 2) @ curvatures / curvatures.sum())


def main() -> None:
    """Print both tables."""
    print("Largest stable rate times curvature\n")
    print("| optimizer | BSP | rule | " + " | ".join(f"N = {n}" for n in WORKERS) + " |")
    print("|:--|--:|:--|" + "--:|" * len(WORKERS))
    for name in ("SGD", "momentum 0.9", "Nesterov 0.9"):
        bsp = largest_stable(OPTIMIZERS[name], num_workers=1, rule="by arrival")
        for rule in RULES:
            found = [largest_stable(OPTIMIZERS[name], num_workers=n, rule=rule) for n in WORKERS]
            print(f"| {name} | {bsp:.2f} | {rule} | " + " | ".join(f"{limit:.2f}" for limit in found) + " |")
    print(f"\nLoss after {ROUNDS // 2} rounds over the first, curvatures 0.003 to 1\n")
    print("| optimizer, rate | BSP | rule | " + " | ".join(f"N = {n}" for n in WORKERS) + " |")
    print("|:--|--:|:--|" + "--:|" * len(WORKERS))
    for name, make in OPTIMIZERS.items():
        rate = RATES[name]
        bsp = loss_after(make, rate=rate, num_workers=1, rule="by arrival")
        for rule in RULES:
            losses = [loss_after(make, rate=rate, num_workers=n, rule=rule) for n in WORKERS]
            print(f"| {name}, {rate:g} | {bsp:.1e} | {rule} | " + " | ".join(f"{loss:.1e}" for loss in losses) + " |")


if __name__ == "__main__":
    main()
