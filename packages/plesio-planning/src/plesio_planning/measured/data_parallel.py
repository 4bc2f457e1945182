"""Iterations of synchronous data parallelism by number of workers, beside `plesio_planning.studies.data_parallel`.

Each worker is on a host of its own behind a slow link. A step is paced: a small perceptron's real gradient, and then
sleep until the step has taken its time, so that six workers do not want more than two cores can give. Then all of them
all-reduce the gradient and as many bytes more as make up the size. Latency and bandwidth are fitted to all-reduces of
two workers, and predict the iterations of any number.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import torch
from torch import nn

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.collectives import ring_all_reduce_s
from plesio.cost.fit import AlphaBeta
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Ranks, fitted_links, ranks_on_hosts, slowest_s, timed
from plesio_planning.studies.measured import Measured

__all__ = ["FOUND", "measure", "measure_data_parallel"]

FOUND = ("latency_s",)

COUNTS = (2, 3, 4, 6)
BYTES_PER_S = 25e6
COMPUTE_S = 0.1
GRADIENT_BYTES = 1_000_000
FITTED_BYTES = (20_000, 300_000, 2_000_000)
REPEATS = 15
WIDTH = 64


def measure(
    on_step: Callable[[str], None],
    /,
    *,
    num_workers: Annotated[int, Within(2, 8)] = COUNTS[-1],
    gradient_bytes: Annotated[float, Within(1e5, 1e7)] = GRADIENT_BYTES,
    forward_s: Annotated[float, Within(1e-3, 1)] = 0.36 * COMPUTE_S,
    backward_s: Annotated[float, Within(1e-3, 1)] = 0.64 * COMPUTE_S,
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure two to six workers with links of 25 MB/s; takes about half a minute.

    Args:
        on_step: Is told what is being measured.
        num_workers: The most workers; fewer are measured, too.
        gradient_bytes: Bytes that a step reduces.
        forward_s: With the next, what a step computes.
        backward_s: With the last.
        bytes_per_s: Bandwidth that links are set to.
    """
    counts = sorted({max(2, round(num_workers * share)) for share in (1 / 3, 1 / 2, 2 / 3, 1)})
    return measure_data_parallel(
        on_step=on_step,
        counts=counts,
        compute_s=forward_s + backward_s,
        gradient_bytes=int(gradient_bytes),
        bytes_per_s=bytes_per_s,
    )


def measure_data_parallel(
    *,
    on_step: Callable[[str], None],
    counts: Sequence[int] = COUNTS,
    compute_s: float = COMPUTE_S,
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    repeats: int = REPEATS,
    gradient_bytes: int = GRADIENT_BYTES,
    bytes_per_s: float = BYTES_PER_S,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        counts: Numbers of workers, rising.
        compute_s: That a step computes.
        fitted_bytes: Sizes that latency and bandwidth are fitted to; three or more.
        repeats: Repetitions of each number of workers.
        gradient_bytes: Bytes that a step reduces.
        bytes_per_s: Bandwidth that links are set to.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    measured_s: dict[int, list[float]] = {}
    with ranks_on_hosts(counts[-1], bytes_per_s=bytes_per_s) as ranks:
        links = _links(ranks, fitted_bytes, repeats=repeats, on_step=on_step)
        for count in counts:
            on_step(f"{count} workers")
            answers = ranks.run(
                iteration_times, count=count, compute_s=compute_s, num_bytes=gradient_bytes, repeats=repeats
            )
            measured_s[count] = slowest_s([answer for answer in answers if answer])
    medians_s = {count: statistics.median(times) for count, times in measured_s.items()}
    modelled_s = {
        count: compute_s + ring_all_reduce_s(gradient_bytes, num_ranks=count, link=links.link) for count in counts
    }
    predictions = tuple(
        Prediction(
            setting={"workers": str(count)},
            quantity="efficiency",
            scale="points",
            predicted=compute_s / modelled_s[count],
            measured=compute_s / duration_s,
            baseline=1.0,
        )
        for count, duration_s in medians_s.items()
    )
    error = statistics.median(abs(one.error) for one in predictions)
    last = predictions[-1]
    spread = statistics.median(statistics.stdev(times) / statistics.median(times) for times in measured_s.values())
    return Measured(
        study="data-parallel",
        finding=f"{counts[-1]} workers have an efficiency of {100 * last.measured:.1f} %, modelled "
        f"{100 * last.predicted:.1f} %; the model is off by {error:.1f} percentage points (median).",
        setting=f"Gloo ranks of one thread on hosts of their own, links of {format_bandwidth(bytes_per_s)}; steps "
        f"paced to {format_seconds(compute_s)}, then an all-reduce of {format_bytes(gradient_bytes)}, nothing hidden; "
        f"medians of {repeats}, which vary by {100 * spread:.0f} %. Fitted to 2 workers: "
        f"{format_seconds(links.latency_s)}, {format_bandwidth(links.bytes_per_s)}. The baseline is perfect scaling.",
        predictions=predictions,
        charts=(_chart(predictions, modelled_s),),
    )


def _links(ranks: Ranks, fitted_bytes: Sequence[int], *, repeats: int, on_step: Callable[[str], None]) -> AlphaBeta:
    def times_s(size: int) -> list[float]:
        on_step(f"an all-reduce of {format_bytes(size)}")
        answers = ranks.run(iteration_times, count=2, compute_s=0.0, num_bytes=size, repeats=repeats)
        return slowest_s([answer for answer in answers if answer])

    return fitted_links(fitted_bytes, times_s, num_ranks=2)


def iteration_times(
    group: TorchGroup, *, count: int, compute_s: float, num_bytes: int, repeats: int
) -> list[tuple[float, float]]:
    """Do the iterations of the first ``count`` workers on their ranks, and nothing on the others."""
    part = group.split([range(count)])
    if part is None:
        return []
    model, inputs = nn.Linear(WIDTH, WIDTH, bias=False), torch.randn(WIDTH, WIDTH)
    tensor = torch.zeros(num_bytes // 4)

    def iteration() -> None:
        until_s = time.monotonic() + compute_s
        if compute_s > 0:
            model.zero_grad()
            model(inputs).square().mean().backward()
            assert model.weight.grad is not None
            tensor[: WIDTH * WIDTH] = model.weight.grad.flatten()
            time.sleep(max(0.0, until_s - time.monotonic()))
        part.all_reduce(tensor).wait()

    return timed(part, iteration, repeats=repeats)


def _chart(predictions: Sequence[Prediction], modelled_s: Mapping[int, float]) -> LineChart:
    counts = list(modelled_s)
    return LineChart(
        slug="measured",
        title=f"Measured, {counts[-1]} workers compute {100 * predictions[-1].measured:.0f} % of the time",
        caption="Weak-scaling efficiency by number of workers.",
        x=Axis(title="workers"),
        y=Axis(title="efficiency (%)"),
        series=[
            Series(name="modelled", x=counts, y=[100 * one.predicted for one in predictions]),
            Series(name="measured", x=counts, y=[100 * one.measured for one in predictions], style="points"),
            Series(name="perfect scaling", x=counts, y=[100.0] * len(counts), style="dashed"),
        ],
    )
