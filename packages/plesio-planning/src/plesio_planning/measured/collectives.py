"""All-reduces of a range of sizes with Gloo, beside `plesio_planning.studies.collectives`.

A ring, which is what Gloo's all-reduce is, and a reduce and a broadcast one after the other, which are binomial trees.
Each rank is on a host of its own with a link of a set bandwidth where this machine has network namespaces for us, and
on its loopback otherwise. Latency and bandwidth are fitted to the ring's times of a few sizes (`plesio.cost.fit`); they
predict the ring's other sizes, and all of the tree's.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import torch
import torch.distributed as dist

from plesio.core.charts import LineChart
from plesio.core.predictions import Prediction
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.collectives import ALL_REDUCES
from plesio.cost.fit import AlphaBeta
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio.testbed.namespaces import why_no_namespaces
from plesio_planning.measured.message_chart import by_message
from plesio_planning.measured.ranks import Ranks, fitted_links, ranks_on_hosts, slowest_s, timed
from plesio_planning.studies.measured import Measured

__all__ = ["FOUND", "all_reduce_times", "measure", "measure_collectives"]

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
    on_step: Callable[[str], None],
    /,
    *,
    num_ranks: Annotated[int, Within(2, 8)] = NUM_RANKS,
    message_bytes: Annotated[float | None, Within(1000, 2e7)] = None,
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure four ranks over links of 25 MB/s, or on loopback; takes about half a minute.

    Args:
        on_step: Is told what is being measured.
        num_ranks: Ranks.
        message_bytes: One more size that is predicted.
        bytes_per_s: Bandwidth that links are set to; on loopback it is what it is.
    """
    more = () if message_bytes is None else (int(message_bytes),)
    return measure_collectives(on_step=on_step, num_ranks=num_ranks, more_bytes=more, bytes_per_s=bytes_per_s)


def measure_collectives(
    *,
    on_step: Callable[[str], None],
    fitted_bytes: tuple[int, ...] | None = None,
    other_bytes: tuple[int, ...] | None = None,
    more_bytes: tuple[int, ...] = (),
    repeats: int = REPEATS,
    num_ranks: int = NUM_RANKS,
    bytes_per_s: float = BYTES_PER_S,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        fitted_bytes: Sizes of the ring that latency and bandwidth are fitted to, three or more; None are those that
            suit the links.
        other_bytes: Sizes that are predicted; likewise.
        more_bytes: Sizes beside these.
        repeats: Repetitions of each size.
        num_ranks: Ranks.
        bytes_per_s: Bandwidth of the links, where they are set.
    """
    on_hosts = why_no_namespaces() is None
    fitted_bytes = fitted_bytes or (FITTED_BYTES if on_hosts else LOOPBACK_FITTED_BYTES)
    other_bytes = other_bytes or (OTHER_BYTES if on_hosts else LOOPBACK_OTHER_BYTES)
    sizes = sorted({*fitted_bytes, *other_bytes, *more_bytes})
    measured_s: dict[str, dict[int, list[float]]] = {"ring": {}, "tree": {}}
    with _ranks(num_ranks, bytes_per_s=bytes_per_s if on_hosts else None) as ranks:

        def times_s(size: int, *, algorithm: str = "ring") -> list[float]:
            on_step(f"{algorithm}, {format_bytes(size)}")
            answers = ranks.run(all_reduce_times, algorithm=algorithm, num_bytes=size, repeats=repeats)
            found_s = slowest_s(answers)
            measured_s[algorithm].setdefault(size, []).extend(found_s)
            return found_s

        links = fitted_links(fitted_bytes, times_s, num_ranks=num_ranks)
        for algorithm, found in measured_s.items():
            for size in sizes:
                if size not in found:
                    times_s(size, algorithm=algorithm)
    medians_s = {
        algorithm: {size: statistics.median(times) for size, times in times_s.items()}
        for algorithm, times_s in measured_s.items()
    }
    predictions = tuple(
        _prediction(algorithm, size, measured=duration_s, links=links, num_ranks=num_ranks)
        for algorithm, times_s in medians_s.items()
        for size, duration_s in times_s.items()
        if algorithm == "tree" or size not in fitted_bytes
    )
    errors = {
        name: statistics.median(abs(one.error) for one in predictions if one.setting["algorithm"] == name)
        for name in measured_s
    }
    spread = statistics.median(
        statistics.stdev(times) / statistics.median(times)
        for times_s in measured_s.values()
        for times in times_s.values()
    )
    where = f"links of {format_bandwidth(bytes_per_s)}" if on_hosts else "this machine's loopback"
    return Measured(
        study="collectives",
        finding=f"Fitted to {len(fitted_bytes)} sizes of the ring, the formulas are off by "
        f"{100 * errors['ring']:.1f} % for its other sizes and by {100 * errors['tree']:.1f} % for the tree (medians).",
        setting=f"{num_ranks} Gloo ranks of one thread over {where}; medians of {repeats}, which vary by "
        f"{100 * spread:.0f} %. Fitted: {format_seconds(links.latency_s)}, {format_bandwidth(links.bytes_per_s)}. The "
        "baseline is the bandwidth alone, 2(n-1)/n of the message.",
        predictions=predictions,
        charts=(_chart(medians_s, links=links, num_ranks=num_ranks),),
        rivals="algorithm",
    )


@contextlib.contextmanager
def _ranks(count: int, *, bytes_per_s: float | None) -> Iterator[Ranks]:
    with Ranks(count) if bytes_per_s is None else ranks_on_hosts(count, bytes_per_s=bytes_per_s) as ranks:
        yield ranks


def all_reduce_times(group: TorchGroup, *, algorithm: str, num_bytes: int, repeats: int) -> list[tuple[float, float]]:
    """All-reduce so many bytes on a rank, by Gloo's ring or by a reduce and a broadcast."""
    tensor = torch.ones(max(1, num_bytes // 4))

    def ring() -> None:
        group.all_reduce(tensor).wait()

    def tree() -> None:
        dist.reduce(tensor, 0, group=group.process_group)
        dist.broadcast(tensor, 0, group=group.process_group)

    return timed(group, ring if algorithm == "ring" else tree, repeats=repeats)


def _prediction(algorithm: str, size: int, *, measured: float, links: AlphaBeta, num_ranks: int) -> Prediction:
    return Prediction(
        setting={"algorithm": algorithm, "message": format_bytes(size)},
        quantity="all-reduce (s)",
        scale="relative",
        predicted=_modelled_s(algorithm, size, links=links, num_ranks=num_ranks),
        measured=measured,
        baseline=2 * (num_ranks - 1) / num_ranks * size / links.bytes_per_s,
    )


def _modelled_s(algorithm: str, size: int, *, links: AlphaBeta, num_ranks: int) -> float:
    return ALL_REDUCES[algorithm](size, num_ranks=num_ranks, link=links.link)


def _chart(medians_s: Mapping[str, Mapping[int, float]], *, links: AlphaBeta, num_ranks: int) -> LineChart:
    largest = max(medians_s["ring"])
    slower = medians_s["tree"][largest] / medians_s["ring"][largest]
    return by_message(
        medians_s,
        lambda algorithm, size: _modelled_s(algorithm, size, links=links, num_ranks=num_ranks),
        title=f"Measured, a tree takes {slower:.2f} times as long as a ring for {format_bytes(largest)}",
        caption=f"Time of an all-reduce of {num_ranks} ranks by size of the message; medians.",
    )
