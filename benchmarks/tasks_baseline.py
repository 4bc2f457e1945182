"""Train a task in one process over several seeds and print its metric's mean and spread: what a task can reach alone.

``--staleness`` delays every gradient by that many steps, as asynchronous workers would, without any of their machinery:
it shows which learning rates survive before a single worker is started. An option of the task is written name=value.

    python benchmarks/tasks_baseline.py digits --batch-size 128 --seeds 5
    python benchmarks/tasks_baseline.py digits --batch-size 32 --seeds 3 --staleness 8
    python benchmarks/tasks_baseline.py stdlib_lm --seeds 1 corpus_bytes=1000000
"""

import argparse
import collections
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plesio.cli.simulate import options_table
from plesio.tasks import Task, check_task, load_task
from plesio.tasks.task import take_batch


def train(
    task: Task, *, seed: int, batch_size: int, staleness: int = 0, momentum: float | None = None
) -> dict[str, Any]:
    """Train for the task's epochs; gradients are applied ``staleness`` steps after they were computed."""
    model, optimizer = task.build(seed)
    if momentum is not None:
        for group in optimizer.param_groups:
            group["momentum"] = momentum
    dataset: Any = task.train_set()
    steps_per_epoch = len(dataset) // batch_size
    schedule = task.schedule(optimizer, steps_per_epoch * task.num_epochs)
    order = torch.Generator().manual_seed(seed)
    pending: collections.deque[list[Tensor]] = collections.deque()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    metrics = []
    train_s = 0.0
    for _ in range(task.num_epochs):
        started_s = time.perf_counter()
        shuffled = torch.randperm(len(dataset), generator=order)
        for step in range(steps_per_epoch):
            batch = take_batch(dataset, shuffled[step * batch_size : (step + 1) * batch_size].tolist())
            pending.append(list(torch.autograd.grad(task.loss(model, batch), parameters)))
            if len(pending) > staleness:
                for parameter, gradient in zip(parameters, pending.popleft(), strict=True):
                    parameter.grad = gradient
                optimizer.step()
            if schedule is not None:
                schedule.step()
        train_s += time.perf_counter() - started_s
        metrics.append(task.metric(model))
    return {"seed": seed, "metrics": metrics, "step_s": train_s / (steps_per_epoch * task.num_epochs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", help="a name, module:attribute or file.py:attribute")
    parser.add_argument("options", nargs="*", metavar="name=value", help="options of the task (values as in a recipe)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, help="of one step (default: the task's)")
    parser.add_argument("--staleness", type=int, default=0, help="delay of every gradient, in steps")
    parser.add_argument("--momentum", type=float, help="of the optimizer (default: as the task made it)")
    parser.add_argument("--json", type=Path, help="write the figures of every epoch here")
    arguments = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    task = load_task(arguments.task, **options_table(arguments.options))
    check_task(task)
    batch_size = arguments.batch_size or task.batch_size
    runs = []
    for seed in range(arguments.seeds):
        run = train(task, seed=seed, batch_size=batch_size, staleness=arguments.staleness, momentum=arguments.momentum)
        runs.append(run)
        reached = _first_epoch_at_target(task, run["metrics"])
        print(
            f"seed {seed}: {task.metric_name} {run['metrics'][-1]:.4g}, {reached}, {run['step_s'] * 1e3:.1f} ms a step"
        )
    final = [run["metrics"][-1] for run in runs]
    spread = statistics.stdev(final) if len(final) > 1 else 0.0
    print(
        f"{task.name}, batch {batch_size}, staleness {arguments.staleness}, {task.num_epochs} epochs: "
        f"{task.metric_name} mean {statistics.mean(final):.4g}, standard deviation {spread:.2g} over {len(final)} seeds"
    )
    if arguments.json is not None:
        setting = {
            "task": arguments.task,
            "batch_size": batch_size,
            "staleness": arguments.staleness,
            "momentum": arguments.momentum,
        }
        arguments.json.write_text(json.dumps({**setting, "runs": runs}, indent=1) + "\n", encoding="utf-8")


def _first_epoch_at_target(task: Task, metrics: list[float]) -> str:
    if task.target is None:
        return "no target"
    for epoch, metric in enumerate(metrics, start=1):
        if metric >= task.target if task.metric_goal == "max" else metric <= task.target:
            return f"target {task.target:g} in epoch {epoch}"
    return f"target {task.target:g} not reached"


if __name__ == "__main__":
    main()
