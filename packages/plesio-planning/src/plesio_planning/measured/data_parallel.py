"""Iterations of synchronous data parallelism by number of workers, beside `plesio_planning.studies.data_parallel`.

Each worker is on a host of its own behind a slow link. A step is paced: a small perceptron's real gradient, and then
sleep until the step has taken its time, so that six workers do not want more than two cores can give. Then all of them
all-reduce the gradient and as many bytes more as make up the size. Latency and bandwidth are fitted to all-reduces of
two workers, and predict the iterations of any number.
"""

import time
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import nn

from plesio.core.charts import Axis, Series
from plesio.core.units import format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.collectives import ring_all_reduce_s
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Times, ranks_on_hosts, timed
from plesio_planning.measured.twin import Twin, beside, fit_text, lines_of, where_text
from plesio_planning.studies.measured import Measured

FOUND = ("latency_s",)

MOST_WORKERS = 6
BYTES_PER_S = 25e6
COMPUTE_S = 0.1
GRADIENT_BYTES = 1_000_000
FITTED_BYTES = (20_000, 300_000, 2_000_000)
REPEATS = 15
WIDTH = 64


def measure(
    twin: Twin,
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    repeats: int = REPEATS,
    /,
    *,
    num_workers: Annotated[int, Within(2, 8)] = MOST_WORKERS,
    gradient_bytes: Annotated[float, Within(1e5, 1e7)] = GRADIENT_BYTES,
    forward_s: Annotated[float, Within(1e-3, 1)] = 0.36 * COMPUTE_S,
    backward_s: Annotated[float, Within(1e-3, 1)] = 0.64 * COMPUTE_S,
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure two to six workers with links of 25 MB/s; takes about half a minute.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    counts = sorted({max(2, round(num_workers * share)) for share in (1 / 3, 1 / 2, 2 / 3, 1)})
    compute_s, num_bytes = forward_s + backward_s, int(gradient_bytes)
    with ranks_on_hosts(num_workers, bytes_per_s=bytes_per_s) as ranks:
        links = twin.links(ranks, fitted_bytes, num_ranks=2, repeats=repeats, parts=[range(2)])
        for count in counts:
            twin.say(f"{count} workers")
            found_s = twin.median(
                ranks.times_s(iteration_times, count=count, compute_s=compute_s, num_bytes=num_bytes, repeats=repeats)
            )
            twin.predict(
                "efficiency",
                {"workers": count},
                predicted=compute_s / (compute_s + ring_all_reduce_s(num_bytes, num_ranks=count, link=links.link)),
                measured=compute_s / found_s,
                baseline=1.0,
                scale="points",
            )
    last = twin.predictions[-1]
    return twin.measured(
        "data-parallel",
        finding=f"{num_workers} workers have an efficiency of {100 * last.measured:.1f} %, modelled "
        f"{100 * last.predicted:.1f} %; the model is off by {twin.off():.1f} percentage points (median).",
        setting=f"Gloo ranks of one thread on hosts of their own, {where_text(bytes_per_s)}; steps paced to "
        f"{format_seconds(compute_s)}, then an all-reduce of {format_bytes(num_bytes)}, nothing hidden; medians of "
        f"{repeats}, which vary by {twin.spread:.0f} %. Fitted to 2 workers: {fit_text(links)}. The baseline is "
        "perfect scaling.",
        charts=[
            beside(
                lines_of(twin.predictions, along="workers", times=100),
                title=f"Measured, {num_workers} workers compute {100 * last.measured:.0f} % of the time",
                caption="Weak-scaling efficiency by number of workers.",
                x=Axis(title="workers"),
                y=Axis(title="efficiency (%)"),
                more=[Series(name="perfect scaling", x=counts, y=[100.0] * len(counts), style="dashed")],
            )
        ],
    )


def iteration_times(group: TorchGroup, *, count: int, compute_s: float, num_bytes: int, repeats: int) -> Times:
    """Do the iterations of the first ``count`` workers on their ranks, and nothing on the others."""
    part = group.split([range(count)])
    if part is None:
        return []
    model, inputs = nn.Linear(WIDTH, WIDTH, bias=False), torch.randn(WIDTH, WIDTH)
    tensor = torch.zeros(num_bytes // 4)

    def iteration() -> None:
        until_s = time.monotonic() + compute_s
        model.zero_grad()
        model(inputs).square().mean().backward()
        assert model.weight.grad is not None
        tensor[: WIDTH * WIDTH] = model.weight.grad.flatten()
        time.sleep(max(0.0, until_s - time.monotonic()))
        part.all_reduce(tensor).wait()

    return timed(part, iteration, repeats=repeats)
