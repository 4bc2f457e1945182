"""What adapting costs: monitoring on the worker and deciding on the server, as shares of a training step.

    python benchmarks/adaptive/overhead.py

Monitoring is what `StepMonitor` does in every step, the sketches of the sampled ones and the review, spread over the
steps between two of them. Under local SGD it looks at every parameter's gradient, and stands in for the check that
these are finite, which every other policy makes: that is taken off. Under BSP it looks at DDP's buckets, here one.
Deciding is a review of N workers with all components on, spread over the same steps; it runs in the server's process,
behind the workers' steps. All are timed in turns with real training steps, in one process.
"""

import argparse
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
from plesio.runtime.exchange.exchange import Progress
from plesio.runtime.exchange.replica import Replica
from plesio.runtime.ledger import Meter
from plesio.runtime.monitor import StepMonitor
from plesio.runtime.rounds import RoundBook
from plesio.runtime.timeline import Timeline
from plesio.tasks.load import load_task
from record import Spread, print_table, print_verdict, save

TASKS = {"digits": {}, "stdlib_lm": {"width": 96, "depth": 2}}
WORKERS = (4, 16, 64)
STEP_MS = 20


def timed_s(action: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    began_s = time.perf_counter()
    action()
    return time.perf_counter() - began_s


def monitor_of(config: Adaptive) -> StepMonitor:
    """A worker's, with nothing behind it."""
    clock = MonotonicClock()
    timeline = Timeline(Meter(), TraceWriter(None, header={}, on_failure=print, clock=clock), clock=clock)
    rounds = RoundBook(0, 4)
    return StepMonitor(
        0, config=config.review, guard=config.guard, timeline=timeline, rounds=rounds, total_samples=None
    )


def task_shares(name: str, *, rounds: int) -> dict[str, Spread]:
    """Milliseconds of a step, and monitoring's share of it under local SGD and under BSP."""
    task = load_task(name, **TASKS[name])
    model, optimizer = task.build(0)
    replica = Replica(model, optimizer)
    batches = iter(DataLoader(task.train_set(), batch_size=task.batch_size))
    policy = Adaptive()
    local, bsp = monitor_of(policy), monitor_of(policy)
    every, reviews = policy.review.sample_every, policy.review.every
    found: dict[str, list[float]] = {"step_ms": [], "local": [], "bsp": []}
    clock = 0
    for _ in range(rounds):
        steps_s = local_s = bsp_s = 0.0
        for _ in range(every):  # a whole cycle: two of its steps are sampled, two reviews are sent
            clock += 1
            batch = next(batches, None)
            if batch is None:
                batches = iter(DataLoader(task.train_set(), batch_size=task.batch_size))
                batch = next(batches)
            began_s = time.perf_counter()
            loss = task.loss(model, batch)
            loss.backward()
            steps_s += time.perf_counter() - began_s
            progress = Progress(clock, task.batch_size, None, 1.0, 0.0)
            bucket = torch.cat([gradient.reshape(-1) for gradient in replica.gradients()])
            for later in range(3):  # in turns: whoever comes first finds a colder cache
                match (clock + later) % 3:
                    case 0:
                        local_s -= timed_s(replica.gradients_finite)
                    case 1:
                        local_s += timed_s(lambda: watch(local, list(replica.gradients()), progress, every=reviews))  # noqa: B023
                    case 2:
                        bsp_s += timed_s(lambda: watch(bsp, [bucket], progress, every=reviews))  # noqa: B023
            began_s = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            steps_s += time.perf_counter() - began_s
        found["step_ms"].append(1e3 * steps_s / every)
        found["local"].append(local_s / steps_s)
        found["bsp"].append(bsp_s / steps_s)
    return {key: Spread(values) for key, values in found.items()}


def watch(monitor: StepMonitor, parts: list[torch.Tensor], progress: Progress, *, every: int) -> None:
    """All that a monitor does in a step."""
    monitor.measure(parts)
    monitor.step(progress)
    if progress.clock % every == 0:
        monitor.take(progress.clock, learning_rate=0.1)


def decide_ms(num_workers: int, *, reviews: int) -> Spread:
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
                exchanges=((float(clock - 4), 0.03),),
            )
        taken.append(timed_s(lambda: controller.decide(found, metric=None)))  # noqa: B023
    return Spread([1e3 * seconds for seconds in taken])


def main() -> None:
    """Print both tables and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12, help="cycles of 32 steps of each task (12)")
    parser.add_argument("--reviews", type=int, default=40, help="decisions of each number of workers (40)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tasks = {name: task_shares(name, rounds=arguments.rounds) for name in TASKS}
    rows = [
        [name, row["step_ms"].text(".2f"), row["local"].text(".2%"), row["bsp"].text(".2%")]
        for name, row in tasks.items()
    ]
    print_table("Monitoring", columns=["task", "step (ms)", "share of it, local SGD", "BSP"], rows=rows)
    decisions = {workers: decide_ms(workers, reviews=arguments.reviews) for workers in WORKERS}
    steps_ms = Adaptive().review.every * STEP_MS
    rows = [
        [str(workers), took.text(".2f"), took.text(".2%", scale=1 / steps_ms)] for workers, took in decisions.items()
    ]
    print_table("Deciding", columns=["workers", "a decision (ms)", "share of 16 steps of 20 ms"], rows=rows)
    monitored = max(row[kind]["median"] for row in tasks.values() for kind in ("local", "bsp")) <= 0.005
    decided = decisions[16]["median"] / steps_ms <= 0.01
    print_verdict("monitoring at most 0.5 % of a step", met=monitored)
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
