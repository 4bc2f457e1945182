"""Results and figures of made-up runs, to be watched."""

from typing import Any

from plesio.core.results import Evaluation, LossPoint, RunResult, Staleness, WorkerTimes
from plesio.protocol.figures import RunFigures, WorkerFigure
from plesio.watch import Glimpse


def times(worker: int, *, steps: int, compute_s: float, wait_s: float = 0.0, communicate_s: float = 0.0) -> WorkerTimes:
    return WorkerTimes(
        worker=worker, compute_s=compute_s, wait_s=wait_s, communicate_s=communicate_s, steps=steps, samples=8 * steps,
        peak_memory_bytes=0,
    )  # fmt: skip


def a_result(*workers: WorkerTimes, **changes: Any) -> RunResult:
    steps = sum(one.steps for one in workers)
    usual: dict[str, Any] = {
        "policy": "adaptive", "task": "train", "world": "process", "seed": 0, "num_workers": 2, "status": "running",
        "steps": steps, "samples": 8 * steps, "wall_s": 10.0, "samples_per_s": 8 * steps / 10.0, "workers": workers,
        "staleness": Staleness.of({0: 3, 2: 1}), "metric_name": "accuracy",
        "evaluations": (Evaluation(samples=80, at_s=5.0, metric=0.5),),
        "losses": (LossPoint(clock=1, at_s=0.1, loss=2.0), LossPoint(clock=9, at_s=1.0, loss=1.5)),
        "decisions": ({"clock": 20, "before": "bsp", "policy": "local_sgd:4", "reason": "waiting took 30 % of a step",
                       "latest": {"clock": 40, "reason": "waiting took 35 % of a step"}},),
    }  # fmt: skip
    return RunResult(**{**usual, **changes})


def figures_of(result: RunResult, *, lost: tuple[int, ...] = (), silent_s: float = 0.2, **changes: Any) -> RunFigures:
    workers = tuple(
        WorkerFigure(
            worker=one.worker, clock=one.steps, lead=0, live=one.worker not in lost, step_s=0.02, silent_s=silent_s
        )
        for one in result.workers
    )
    usual: dict[str, Any] = {"policy": result.policy, "steps": result.steps, "samples": result.samples,
                             "elapsed_s": result.wall_s, "loss": 1.25, "staleness": 0.5, "in_force": "local_sgd:4",
                             "workers": workers}  # fmt: skip
    return RunFigures(**{**usual, **changes})


def a_glimpse(*workers: WorkerTimes, at_s: float = 0.0, total_samples: int | None = None, **changes: Any) -> Glimpse:
    result = a_result(*workers, **changes)
    return Glimpse(result, figures_of(result, total_samples=total_samples), at_s)
