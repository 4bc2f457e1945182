"""What to do with a mean gradient that comes d steps late: apply it as it is, or correct one's own gradient by it.

Plain PyTorch, no Plesio exchange: digits by 8 replicas, batches of 8 each, 16 epochs.

- ``delayed``: after step c every replica steps with the mean gradient of step c - d (Pipe-SGD, Li et al. 2018, equation
  of section 3). All replicas are equal, to the bit.
- ``corrected``: a replica steps with its own gradient at once, and takes it back when the mean of that step has come:
  ``g_c - g_{c-d} + mean_{c-d}`` (delayed gradient averaging, Zhu et al. 2021, equation 3). Replicas differ by their
  last d own gradients; what is evaluated is their mean.

    python benchmarks/adaptive/delayed_gradients.py [--seeds 3] [--quick]

Prints a table and writes benchmarks/results/delayed_gradients.json.
"""

import argparse
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from plesio.tasks import Task, load_task
from plesio.tasks.task import take_batch

sys.path.insert(0, str(Path(__file__).parents[1]))
from record import print_table, print_verdict, save

Way = Literal["delayed", "corrected"]
NUM_REPLICAS, BATCH_SIZE = 8, 8
DELAYS = (1, 2, 4)
Optimize = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimize] = {
    "SGD 0.15": lambda parameters: torch.optim.SGD(parameters, lr=0.15),
    "momentum 0.9, 0.03": lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9),
    "Adam 0.002": lambda parameters: torch.optim.Adam(parameters, lr=0.002),
}


def batches(num_samples: int, *, num_epochs: int, seed: int) -> Iterator[list[list[int]]]:
    """Of every step, one for each replica."""
    order = torch.Generator().manual_seed(seed)
    together = NUM_REPLICAS * BATCH_SIZE
    for _ in range(num_epochs):
        shuffled = torch.randperm(num_samples, generator=order).tolist()
        for begin in range(0, num_samples // together * together, together):
            yield [shuffled[at : at + BATCH_SIZE] for at in range(begin, begin + together, BATCH_SIZE)]


def gradient_of(task: Task, model: nn.Module, batch: Sequence[int]) -> list[Tensor]:
    dataset: Any = task.train_set()
    return list(torch.autograd.grad(task.loss(model, take_batch(dataset, batch)), list(model.parameters())))


def mean_of(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(same)).mean(0) for same in zip(*parts, strict=True)]


def step(optimizer: torch.optim.Optimizer, model: nn.Module, gradient: Sequence[Tensor]) -> None:
    for parameter, part in zip(model.parameters(), gradient, strict=True):
        parameter.grad = part.clone()
    optimizer.step()


def train(way: Way, optimize: Optimize, *, delay: int, seed: int, num_epochs: int) -> tuple[float, float]:
    """Accuracy, and the mean loss of the last 50 steps."""
    task = load_task("digits", num_epochs=num_epochs)
    num_models = NUM_REPLICAS if way == "corrected" else 1
    built = [task.build(seed) for _ in range(num_models)]
    models = [model for model, _ in built]
    optimizers = [optimize(list(model.parameters())) for model in models]
    dataset: Any = task.train_set()
    under_way: deque[list[list[Tensor]]] = deque()
    losses = []
    for of_step in batches(len(dataset), num_epochs=num_epochs, seed=seed):
        with torch.no_grad():
            losses.append(float(task.loss(models[0], take_batch(dataset, of_step[0]))))
        if way == "delayed":  # equal replicas: the mean of their gradients is that of the merged batch
            under_way.append([gradient_of(task, models[0], [index for batch in of_step for index in batch])])
            if len(under_way) > delay:
                step(optimizers[0], models[0], under_way.popleft()[0])
            continue
        own = [gradient_of(task, model, batch) for model, batch in zip(models, of_step, strict=True)]
        under_way.append(own)
        due = under_way.popleft() if len(under_way) > delay else None
        mean = None if due is None else mean_of(due)
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            gradient = own[rank]
            if due is not None and mean is not None:
                gradient = [g - old + m for g, old, m in zip(gradient, due[rank], mean, strict=True)]
            step(optimizer, model, gradient)
    while under_way and way == "delayed":
        step(optimizers[0], models[0], under_way.popleft()[0])
    with torch.no_grad():
        for same in zip(*(model.parameters() for model in models), strict=True):
            same[0].copy_(torch.stack(list(same)).mean(0))
    models[0].eval()
    with torch.no_grad():
        return task.metric(models[0]), statistics.fmean(losses[-50:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each")
    parser.add_argument("--quick", action="store_true", help="does it work?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    num_epochs = 1 if arguments.quick else 16
    num_seeds = 1 if arguments.quick else arguments.seeds
    results: dict[str, dict[str, Any]] = {}
    ways: tuple[Way, ...] = ("delayed", "corrected")
    for name, optimize in OPTIMIZERS.items():
        for way, delay in [("delayed", 0), *((way, delay) for delay in DELAYS for way in ways)]:
            runs = [train(way, optimize, delay=delay, seed=seed, num_epochs=num_epochs) for seed in range(num_seeds)]
            key = "no delay" if delay == 0 else f"{way}:{delay}"
            results.setdefault(name, {})[key] = {
                "accuracy": [accuracy for accuracy, _ in runs],
                "loss": [loss for _, loss in runs],
            }
            print(name, key, results[name][key], flush=True)
    keys = list(results[next(iter(results))])
    rows = [
        [key]
        + [
            f"{100 * statistics.fmean(of[key]['accuracy']):.1f} %, {statistics.fmean(of[key]['loss']):.3f}"
            for of in results.values()
        ]
        for key in keys
    ]
    print_table(f"accuracy and last loss, {num_seeds} seeds", columns=["", *results], rows=rows)
    usual = results["SGD 0.15"]
    met = all(
        statistics.fmean(usual[f"delayed:{delay}"]["accuracy"])
        >= statistics.fmean(usual[f"corrected:{delay}"]["accuracy"]) - 0.005
        for delay in DELAYS
    )
    print_verdict("delayed is within half a point of corrected on digits' own optimizer", met=met)
    if not arguments.quick:
        save("delayed_gradients", settings={"seeds": num_seeds, "replicas": NUM_REPLICAS}, results=results, met=met)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
