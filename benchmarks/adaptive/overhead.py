"""The cost of adapting: monitoring on the worker and deciding on the server, as shares of a training step.

    python benchmarks/adaptive/overhead.py

Monitoring is what `StepMonitor` does in every step, the sketches of the sampled ones, and the review with the sketch of
the parameters, spread over the steps between two of them. What it adds to a step is the difference between cycles of 32
steps with it and without it, which take turns; in both, the gradient is where a backward pass has left it, in memory
rather than in a cache. Under local SGD, monitoring looks at every parameter's gradient and stands in for the check that
these are finite, which the cycles without it make. Under BSP it looks at DDP's buckets, here one that gradients are
views of, right before DDP's hook divides it: what the look brings into the caches, the division finds there, so the
cycles without it divide too.

Deciding is a review of N workers with all components on, spread over the same steps; it runs in the server's process,
behind the workers' steps.

The criterion is a step of 20 ms: what monitoring adds is at most 0.5 % of that, or of the task's own step where that is
longer. The share of a small task's shorter step is in the table as well.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent.parent))
from plesio.core.clock import MonotonicClock
from plesio.core.trace import TraceWriter
from plesio.policies import Adaptive, Reviewed
from plesio.policies.adaptive.controller import Controller
from plesio.runtime.worker.exchange.exchange import StepProgress
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.meter import Meter
from plesio.runtime.worker.monitor import StepMonitor, WorkerTraits
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worker.timeline import WorkerTimeline
from plesio.tasks.load import load_task
from record import Spread, print_table, print_verdict, save

TASKS = {"digits": {}, "stdlib_lm": {"width": 96, "depth": 2}}
WORKERS = (4, 16, 64)
STEP_MS = 20
WORLD = 4


def timed_s(action: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def monitor_of(config: Adaptive) -> StepMonitor:
    """Make a worker's monitor, with nothing behind it."""
    clock = MonotonicClock()
    timeline = WorkerTimeline(Meter(), TraceWriter(None, header={}, on_failure=print, clock=clock), clock=clock)
    rounds = RoundRecords(0, 4, warn=print)
    return StepMonitor(
        WorkerTraits(0), config=config.review, guard=config.guard, timeline=timeline, rounds=rounds, total_samples=None
    )


def task_shares(name: str, *, rounds: int) -> dict[str, Spread]:
    """Milliseconds of a step, what monitoring adds to it under local SGD and under BSP, and its shares of it."""
    local, bsp = (added_ms(name, rounds=rounds, in_bucket=in_bucket) for in_bucket in (False, True))
    return {
        "step_ms": Spread([step_ms for step_ms, _ in local + bsp]),
        "local_us": Spread([1e3 * more_ms for _, more_ms in local]),
        "bsp_us": Spread([1e3 * more_ms for _, more_ms in bsp]),
        "local": Spread([more_ms / step_ms for step_ms, more_ms in local]),
        "bsp": Spread([more_ms / step_ms for step_ms, more_ms in bsp]),
        "local_20ms": Spread([more_ms / max(step_ms, STEP_MS) for step_ms, more_ms in local]),
        "bsp_20ms": Spread([more_ms / max(step_ms, STEP_MS) for step_ms, more_ms in bsp]),
    }


def added_ms(name: str, *, rounds: int, in_bucket: bool) -> list[tuple[float, float]]:
    """Milliseconds of a step, and of it what monitoring adds, by round: a cycle with it and one without."""
    task = load_task(name, **TASKS[name])
    model, optimizer = task.build(0)
    replica = Replica(model, optimizer)
    bucket = bucket_of(replica) if in_bucket else None
    batches = itertools.chain.from_iterable(
        DataLoader(task.train_set(), batch_size=task.batch_size) for _ in itertools.count()
    )
    policy = Adaptive()
    monitor = monitor_of(policy)
    every, reviews = policy.review.sample_every, policy.review.every
    found = []
    for cycle in range(rounds):
        steps_s = 0.0
        looked_s = {True: 0.0, False: 0.0}
        for watched in (True, False) if cycle % 2 else (False, True):
            for clock in range(every * cycle + 1, every * (cycle + 1) + 1):  # two are sampled, two reviews are sent
                began_s = time.perf_counter()
                loss = task.loss(model, next(batches))
                loss.backward()
                steps_s += time.perf_counter() - began_s
                progress = StepProgress(clock, task.batch_size, None, loss.item(), 0.0)
                began_s = time.perf_counter()
                if watched:
                    monitor.measure(list(replica.gradients()) if bucket is None else [bucket])
                elif bucket is None:
                    replica.gradients_finite()
                if bucket is not None:
                    bucket.div_(WORLD)
                if watched:
                    monitor.step(progress, rate=0.1)
                    if clock % reviews == 0:
                        monitor.take(clock, learning_rate=0.1, parameters=list(replica.parameters.values()))
                looked_s[watched] += time.perf_counter() - began_s
                began_s = time.perf_counter()
                optimizer.step()
                optimizer.zero_grad(set_to_none=bucket is None)
                steps_s += time.perf_counter() - began_s
        found.append((1e3 * steps_s / (2 * every), 1e3 * (looked_s[True] - looked_s[False]) / every))
    return found


def bucket_of(replica: Replica) -> torch.Tensor:
    """One flat tensor of which all gradients are views from now on, as in DDP."""
    parameters = list(replica.parameters.values())
    bucket = torch.cat([torch.zeros_like(parameter).reshape(-1) for parameter in parameters])
    for parameter, part in zip(parameters, bucket.split([each.numel() for each in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return bucket


def decide_ms(num_workers: int, *, reviews: int, num_racks: int = 1) -> Spread:
    """Milliseconds of a decision on the reviews of so many workers, all components on."""
    policy = Adaptive()
    controller = Controller(policy)
    generator = torch.Generator().manual_seed(num_workers)
    every = policy.review.every
    taken = []
    for number in range(reviews):
        clock = every * (number + 1)
        found = {}
        for worker in range(num_workers):
            seconds = (0.02 + 0.004 * torch.rand(every, generator=generator)).tolist()
            rows = tuple(
                (float(step), 1.0, *torch.randn(policy.review.sketch, generator=generator).tolist())
                for step in range(clock - every + 1, clock + 1)
                if policy.review.samples_at(step)
            )
            found[worker] = Reviewed(
                worker=worker,
                clock=clock,
                samples=(16,) * every,
                compute_s=tuple(seconds),
                blocked_s=(0.03,) * every,
                loss=2.0 * 0.99**number,
                learning_rate=0.1,
                gradients=rows,
                position=tuple(torch.randn(policy.review.sketch, generator=generator).tolist()),
                summed_rate=0.1 * every,
                exchanges=((float(clock - 4), 0.03),),
                rack=worker * num_racks // num_workers,
            )
        taken.append(timed_s(lambda: controller.decide(found, metric=None)))  # noqa: B023
    return Spread([1e3 * seconds for seconds in taken])


def main() -> None:
    """Print both tables and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=24, help="times 32 steps with monitoring and without, for each task (24)"
    )
    parser.add_argument("--reviews", type=int, default=40, help="decisions of each number of workers (40)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tasks = {name: task_shares(name, rounds=arguments.rounds) for name in TASKS}
    rows = [
        [
            f"{name}, {label}",
            row["step_ms"].text(".2f"),
            row[f"{kind}_us"].text(".0f"),
            row[kind].text(".2%"),
            row[f"{kind}_20ms"].text(".2%"),
        ]
        for name, row in tasks.items()
        for kind, label in (("local", "local SGD"), ("bsp", "BSP"))
    ]
    columns = ["task", "step (ms)", "added (us)", "share of it", "of 20 ms at least"]
    print_table("Monitoring", columns=columns, rows=rows)
    decisions = {str(workers): decide_ms(workers, reviews=arguments.reviews) for workers in WORKERS}
    decisions["16 in 2 racks"] = decide_ms(16, reviews=arguments.reviews, num_racks=2)
    steps_ms = Adaptive().review.every * STEP_MS
    rows = [[workers, took.text(".2f"), took.text(".2%", scale=1 / steps_ms)] for workers, took in decisions.items()]
    print_table("Deciding", columns=["workers", "a decision (ms)", "share of 16 steps of 20 ms"], rows=rows)
    monitored = max(row[kind]["median"] for row in tasks.values() for kind in ("local_20ms", "bsp_20ms")) <= 0.005
    decided = decisions["16"]["median"] / steps_ms <= 0.01
    print_verdict("monitoring at most 0.5 % of a step of 20 ms", met=monitored)
    print_verdict("a decision on 16 workers at most 1 % of the steps between two", met=decided)
    settings = {"tasks": TASKS, "rounds": arguments.rounds, "reviews": arguments.reviews}
    save(
        "adaptive_overhead",
        settings=settings,
        results={"tasks": tasks, "decide_ms": decisions},
        met=monitored and decided,
    )


if __name__ == "__main__":
    main()
