"""`plesio lab calibrate`: measure this machine as one task's workers have it."""

import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from plesio.bench.measurements import serve_measurements
from plesio.bench.process_pool import FOR_TRAINING, ProcessPool
from plesio.bench.recipe import TaskSection
from plesio.core.errors import ConfigError, PlesioError
from plesio.cost.calibration import Calibration, SizeCurve
from plesio.runtime.worker.machine import environment

BATCH_FACTORS = (0.25, 0.5, 1, 2, 4)
MODEL_SCALES = (1 / 16, 1 / 4, 1, 4, 16)
ALL_REDUCE_BYTES = tuple(2**power for power in range(12, 25, 2))
GRADIENT_S = 1.0
REPEATS = 40
FEWEST_SIZES = 3
"""That a line is fitted to."""
NUM_SERVERS = 4
NUM_MEASUREMENTS = len(BATCH_FACTORS) + len(MODEL_SCALES) + 3 + len(ALL_REDUCE_BYTES)

OnMeasured = Callable[[str], None]


def calibrate(task: TaskSection, *, num_workers: int, on_measured: OnMeasured = lambda what: None) -> Calibration:
    """Measure step times, memory, all-reduce and store times; takes about a minute, in which nothing else should run.

    Args:
        task: Task of the workers.
        num_workers: Workers that exchange, two or more.
        on_measured: Called with what was measured, `NUM_MEASUREMENTS` times at most.

    Raises:
        ConfigError: The task cannot be trained, or has too few samples for its batch size.
        PlesioError: A measurement failed.
    """
    with ProcessPool(1, serve_measurements, task, preload=FOR_TRAINING) as processes:
        (figures,) = processes.await_ready()
        batch_size = figures["batch_size"]
        batches = sorted({max(1, round(factor * batch_size)) for factor in BATCH_FACTORS})
        batches = [size for size in batches if size <= figures["num_samples"]]
        if batch_size not in batches or len(batches) < FEWEST_SIZES:
            raise ConfigError(
                f"batches of {batch_size} samples cannot be calibrated with the {figures['num_samples']} samples of "
                f"task {figures['name']}: {FEWEST_SIZES} sizes around it are needed; write another --batch-size"
            )
        alone = {}
        for size in batches:
            alone[size] = _first(processes, "gradients", batch_size=size, seconds=GRADIENT_S)
            on_measured(f"gradient of {size} samples")
        exchanges = []
        for scale in MODEL_SCALES:
            exchanges.append(_first(processes, "exchange", scale=scale, repeats=REPEATS))
            on_measured(f"exchange of {exchanges[-1]['num_bytes']:,} bytes")
        spread = _first(processes, "exchange", scale=1, repeats=REPEATS, num_servers=NUM_SERVERS)
        on_measured(f"exchange with {NUM_SERVERS} servers")
        step_s = statistics.median(_first(processes, "steps", repeats=REPEATS)["step_s"])
        on_measured("a step's end")
    with ProcessPool(num_workers, serve_measurements, task, preload=FOR_TRAINING) as processes:
        processes.await_ready()
        together = _ask(processes, "gradients", batch_size=batch_size, seconds=2 * GRADIENT_S)
        on_measured("gradients of all workers at once")
        # the first ones are slower than any later, and count for nothing
        _ask(processes, "all_reduce", num_bytes=ALL_REDUCE_BYTES[0], repeats=REPEATS)
        all_reduces = {}
        for num_bytes in ALL_REDUCE_BYTES:
            all_reduces[num_bytes] = _all_reduce_s(_ask(processes, "all_reduce", num_bytes=num_bytes, repeats=REPEATS))
            on_measured(f"all-reduce of {num_bytes:,} bytes")
    worker = SizeCurve.of({one["num_bytes"]: one["worker_s"] for one in exchanges})
    own = alone[batch_size]["gradient_s"]
    num_cores = len(os.sched_getaffinity(0))
    slowdown = statistics.median(s for one in together for s in one["gradient_s"]) / statistics.median(own)
    return Calibration(
        task=figures["name"],
        batch_size=batch_size,
        num_parameters=figures["num_parameters"],
        num_workers=num_workers,
        num_cores=num_cores,
        cores=min(float(num_cores), num_workers / max(1.0, slowdown)),
        gradient=SizeCurve.of({size: statistics.median(one["gradient_s"]) for size, one in alone.items()}),
        gradient_cv=statistics.stdev(own) / statistics.fmean(own),
        memory=SizeCurve.of({size: one["peak_memory_bytes"] for size, one in alone.items()}),
        step_s=step_s,
        all_reduce=SizeCurve.of(all_reduces),
        worker=worker,
        server=SizeCurve.of({one["num_bytes"]: one["server_s"] for one in exchanges}),
        message_s=max(0.0, spread["worker_s"] - worker.fit.at(spread["num_bytes"])) / (NUM_SERVERS - 1),
        exchange=SizeCurve.of({one["num_bytes"]: statistics.median(one["wall_s"]) for one in exchanges}),
        environment=environment(),
    )


def _ask(processes: ProcessPool, name: str, **arguments: Any) -> list[dict[str, Any]]:
    """Have all processes do a measurement; return the findings of each."""
    answers = {}
    for rank, kind, value in processes.ask((name, arguments)):
        if kind != "done":
            raise PlesioError(f"cannot calibrate: {f'worker {rank} ended with ' if kind == 'ended' else ''}{value}")
        answers[rank] = value
    return [answers[rank] for rank in sorted(answers)]


def _first(processes: ProcessPool, name: str, **arguments: Any) -> dict[str, Any]:
    return _ask(processes, name, **arguments)[0]


def _all_reduce_s(answers: Sequence[dict[str, Any]]) -> float:
    """Median over the repeats, from the moment when the last worker has come to the one when the last has its sum."""
    begun = zip(*(answer["begun_s"] for answer in answers), strict=True)
    ended = zip(*(answer["ended_s"] for answer in answers), strict=True)
    return float(statistics.median(max(last) - max(first) for first, last in zip(begun, ended, strict=True)))
