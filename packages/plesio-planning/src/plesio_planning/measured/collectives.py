"""All-reduces of a range of sizes with Gloo, beside `plesio_planning.studies.collectives`.

A ring, which is what Gloo's all-reduce is, and a reduce and a broadcast one after the other, which are binomial trees.
Each rank is on a host of its own with a link of a set bandwidth where this machine has network namespaces for us, and
on its loopback otherwise. Latency and bandwidth are fitted to the ring's times of a few sizes (`plesio.cost.fit`); they
predict the ring's other sizes, and all of the tree's.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
import torch.distributed as dist

from plesio.core.charts import Axis, LineChart
from plesio.core.units import format_bytes
from plesio.core.within import Within
from plesio.cost.collectives import ALL_REDUCES
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Times, all_reduce_times, fitted_links, ranks_over_links, timed
from plesio_planning.measured.twin import Line, Twin, beside, fit_text, where_text
from plesio_planning.studies.measured import Measured

FOUND = ("latency_s",)
NUM_RANKS = 4
BYTES_PER_S = 25e6
FITTED_BYTES = (128_000, 500_000, 2_000_000)
"""Sizes that are fitted. Smaller messages wait for their rank to wake up instead of for the link, which is idle."""
OTHER_BYTES = (1_000, 16_000, 256_000, 1_000_000, 4_000_000)
LOOPBACK_FITTED_BYTES = (1_000_000, 4_000_000, 16_000_000)
"""A hundred times as fast, it takes that much for the size to decide."""
LOOPBACK_OTHER_BYTES = (1_000, 256_000, 2_000_000, 8_000_000)
REPEATS = 11


def measure(
    twin: Twin,
    fitted_bytes: Sequence[int] = (),
    other_bytes: Sequence[int] = (),
    repeats: int = REPEATS,
    /,
    *,
    num_ranks: Annotated[int, Within(2, 8)] = NUM_RANKS,
    message_bytes: Annotated[float | None, Within(1000, 2e7)] = None,
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure four ranks over links of 25 MB/s, or on loopback; takes about half a minute."""
    rate = twin.bandwidth(bytes_per_s)
    fitted_bytes = fitted_bytes or (FITTED_BYTES if rate else LOOPBACK_FITTED_BYTES)
    other_bytes = other_bytes or (OTHER_BYTES if rate else LOOPBACK_OTHER_BYTES)
    sizes = sorted({*fitted_bytes, *other_bytes, *([int(message_bytes)] if message_bytes else [])})
    measured_s: dict[str, dict[int, list[float]]] = {"ring": {}, "tree": {}}
    with ranks_over_links(num_ranks, bytes_per_s=rate) as ranks:

        def times_s(size: int, *, algorithm: str = "ring") -> list[float]:
            twin.say(f"{algorithm}, {format_bytes(size)}")
            function = all_reduce_times if algorithm == "ring" else tree_times
            found_s = ranks.times_s(function, num_bytes=size, repeats=repeats)
            measured_s[algorithm].setdefault(size, []).extend(found_s)
            return found_s

        # the ring's fitted sizes are measured here, and α and B follow from them
        links = fitted_links(fitted_bytes, times_s, num_ranks=num_ranks)
        for algorithm, found in measured_s.items():
            for size in sizes:
                if size not in found:
                    times_s(size, algorithm=algorithm)
    lines = {}
    for algorithm, found in measured_s.items():
        medians_s = {size: twin.median(each) for size, each in found.items()}
        modelled_s = {size: ALL_REDUCES[algorithm](size, num_ranks=num_ranks, link=links.link) for size in found}
        lines[algorithm] = (
            [size / 1e6 for size in found],
            [1e3 * each for each in modelled_s.values()],
            [1e3 * each for each in medians_s.values()],
        )
        for size in found:
            # a fitted size proves nothing
            if algorithm == "tree" or size not in fitted_bytes:
                twin.predict(
                    "all-reduce (s)",
                    {"algorithm": algorithm, "message": format_bytes(size)},
                    predicted=modelled_s[size],
                    measured=medians_s[size],
                    baseline=2 * (num_ranks - 1) / num_ranks * size / links.bytes_per_s,
                )
    ring_off, tree_off = (twin.off("all-reduce (s)", algorithm=name) for name in measured_s)
    return twin.measured(
        "collectives",
        finding=f"Fitted to {len(fitted_bytes)} sizes of the ring, the formulas are off by {ring_off:.1f} % for its "
        f"other sizes and by {tree_off:.1f} % for the tree (medians).",
        setting=f"{num_ranks} Gloo ranks of one thread over {where_text(rate)}; medians of {repeats}, which vary by "
        f"{twin.spread:.0f} %. Fitted: {fit_text(links)}. The baseline is the bandwidth alone, 2(n-1)/n of the "
        "message.",
        charts=[_chart(lines, measured_s, num_ranks=num_ranks)],
        rivals="algorithm",
    )


def _chart(
    lines: Mapping[str, Line], measured_s: Mapping[str, Mapping[int, Sequence[float]]], *, num_ranks: int
) -> LineChart:
    largest = max(measured_s["ring"])
    slower = statistics.median(measured_s["tree"][largest]) / statistics.median(measured_s["ring"][largest])
    return beside(
        lines,
        title=f"Measured, a tree takes {slower:.2f} times as long as a ring for {format_bytes(largest)}",
        caption=f"Time of an all-reduce of {num_ranks} ranks by size of the message; medians.",
        x=Axis(title="message (MB)", log=True),
        y=Axis(title="time (ms)", log=True),
    )


def tree_times(group: TorchGroup, *, num_bytes: int, repeats: int) -> Times:
    tensor = torch.ones(max(1, num_bytes // 4))

    def tree() -> None:
        dist.reduce(tensor, 0, group=group.process_group)
        dist.broadcast(tensor, 0, group=group.process_group)

    return timed(group, tree, repeats=repeats)
