"""An all-reduce in two levels with Gloo beside a flat one, and both beside `plesio_planning.studies.hierarchical`.

Two hosts in network namespaces with one slow link each and several ranks; in a host ranks talk over its loopback. Flat
is Gloo's own ring over all ranks. In two levels a host's ranks reduce-scatter, then each of them all-reduces its part
with its like on the other host, all at the same time over one link, and then a host's ranks gather the parts. Latency
and bandwidth in a host are fitted to all-reduces within hosts, those between hosts to all-reduces of one rank of each,
and predict both algorithms, neither of which was used for a fit.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import torch
import torch.distributed as dist

from plesio.core.charts import LineChart
from plesio.core.predictions import Prediction
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.collectives import hierarchical_all_reduce_s, ring_all_reduce_s
from plesio.cost.fit import AlphaBeta
from plesio.cost.link import Link
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.message_chart import by_message
from plesio_planning.measured.ranks import Ranks, fitted_links, ranks_on_hosts, slowest_s, timed
from plesio_planning.studies.measured import Measured

__all__ = ["FOUND", "measure", "measure_hierarchical"]

FOUND = ("latency_s", "local_bytes_per_s", "local_latency_s")

NUM_HOSTS = 2
RANKS_PER_HOST = 3
BYTES_PER_S = 25e6
FITTED_BYTES = (12_000, 300_000, 2_400_000)
SIZES_BYTES = (12_000, 120_000, 600_000, 1_200_000, 3_000_000)
REPEATS = 15

Levels = Mapping[str, Sequence[Sequence[int]]]
"""Who talks to whom."""


def levels_of(num_hosts: int, ranks_per_host: int) -> Levels:
    """The ranks of each host, and those of all hosts that have the same place there."""
    count = num_hosts * ranks_per_host
    return {
        "in hosts": [range(host * ranks_per_host, (host + 1) * ranks_per_host) for host in range(num_hosts)],
        "between hosts": [range(rank, count, ranks_per_host) for rank in range(ranks_per_host)],
    }


def measure(
    on_step: Callable[[str], None],
    /,
    *,
    num_hosts: Annotated[int, Within(2, 4)] = NUM_HOSTS,
    ranks_per_host: Annotated[int, Within(2, 4)] = RANKS_PER_HOST,
    message_bytes: Annotated[float, Within(1e5, 1e7)] = SIZES_BYTES[-1],
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure two hosts of three ranks with links of 25 MB/s; takes about half a minute.

    Args:
        on_step: Is told what is being measured.
        num_hosts: Hosts.
        ranks_per_host: Ranks of each.
        message_bytes: The largest size; smaller ones are measured, too.
        bytes_per_s: Bandwidth that links of hosts are set to.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    unit = 4 * num_hosts * ranks_per_host
    shares = (0.004, 0.04, 0.2, 0.4, 1.0)
    return measure_hierarchical(
        on_step=on_step,
        sizes_bytes=[max(1, round(share * message_bytes / unit)) * unit for share in shares],
        num_hosts=num_hosts,
        ranks_per_host=ranks_per_host,
        bytes_per_s=bytes_per_s,
    )


def measure_hierarchical(
    *,
    on_step: Callable[[str], None],
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    repeats: int = REPEATS,
    num_hosts: int = NUM_HOSTS,
    ranks_per_host: int = RANKS_PER_HOST,
    bytes_per_s: float = BYTES_PER_S,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        fitted_bytes: Sizes that latencies and bandwidths are fitted to; three or more.
        sizes_bytes: Sizes that are predicted: multiples of four bytes a rank.
        repeats: Repetitions of each size.
        num_hosts: Hosts.
        ranks_per_host: Ranks of each.
        bytes_per_s: Bandwidth that links of hosts are set to.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    medians_s: dict[str, dict[int, float]] = {"flat": {}, "two levels": {}}
    spreads = []
    levels, count = levels_of(num_hosts, ranks_per_host), num_hosts * ranks_per_host
    with ranks_on_hosts(count, ranks_per_host=ranks_per_host, bytes_per_s=bytes_per_s) as ranks:
        links = {
            level: _links(ranks, level, parts, fitted_bytes, repeats=repeats, on_step=on_step)
            for level, parts in levels.items()
        }
        for name, function in (("flat", flat_times), ("two levels", two_level_times)):
            for size in sizes_bytes:
                on_step(f"{name}, {format_bytes(size)}")
                times_s = slowest_s(ranks.run(function, levels=levels, num_bytes=size, repeats=repeats))
                medians_s[name][size] = statistics.median(times_s)
                spreads.append(statistics.stdev(times_s) / medians_s[name][size])
    predictions = tuple(
        Prediction(
            setting={"all-reduce": name, "message": format_bytes(size)},
            quantity="all-reduce (s)",
            scale="relative",
            predicted=_modelled_s(name, size, links=links, levels=levels),
            measured=measured_s,
            baseline=_modelled_s("flat", size, links=links, levels=levels),
        )
        for name, times in medians_s.items()
        for size, measured_s in times.items()
    )
    largest = max(sizes_bytes)
    saved, expected = (
        flat_s / two_levels_s
        for flat_s, two_levels_s in (
            tuple(medians_s[name][largest] for name in medians_s),
            tuple(_modelled_s(name, largest, links=links, levels=levels) for name in medians_s),
        )
    )
    error = statistics.median(abs(one.error) for one in predictions)
    fitted = ", ".join(
        f"{level} {format_seconds(each.latency_s)} and {format_bandwidth(each.bytes_per_s)}"
        for level, each in links.items()
    )
    return Measured(
        study="hierarchical",
        finding=f"For {format_bytes(largest)} two levels are {saved:.2f} times as fast as a flat ring, modelled "
        f"{expected:.2f} times; the model is off by {100 * error:.1f} % (median).",
        setting=f"{num_hosts} hosts of {ranks_per_host} Gloo ranks of one thread, links of "
        f"{format_bandwidth(bytes_per_s)}; medians of {repeats}, which vary by {100 * statistics.median(spreads):.0f} "
        f"%. Fitted: {fitted}. The baseline is a flat ring.",
        predictions=predictions,
        charts=(_chart(medians_s, links=links, levels=levels, saved=saved),),
        rivals="all-reduce",
    )


def _links(
    ranks: Ranks,
    level: str,
    all_parts: Sequence[Sequence[int]],
    fitted_bytes: Sequence[int],
    *,
    repeats: int,
    on_step: Callable[[str], None],
) -> AlphaBeta:
    """What the links of a level do, by all-reduces there: in all hosts, or of one rank of each host."""
    parts = all_parts if level == "in hosts" else all_parts[:1]

    def times_s(size: int) -> list[float]:
        on_step(f"{level}, {format_bytes(size)}")
        answers = ranks.run(part_times, parts=parts, num_bytes=size, repeats=repeats)
        return slowest_s([answer for answer in answers if answer])

    return fitted_links(fitted_bytes, times_s, num_ranks=len(parts[0]))


def part_times(
    group: TorchGroup, *, parts: Sequence[Sequence[int]], num_bytes: int, repeats: int
) -> list[tuple[float, float]]:
    """All-reduce so many bytes in a rank's part of the group; do nothing if it is in none."""
    part, tensor = group.split(parts), torch.ones(num_bytes // 4)
    return [] if part is None else timed(part, lambda: part.all_reduce(tensor).wait(), repeats=repeats)


def flat_times(group: TorchGroup, *, levels: Levels, num_bytes: int, repeats: int) -> list[tuple[float, float]]:
    """All-reduce so many bytes among all ranks, whatever the levels are."""
    tensor = torch.ones(num_bytes // 4)
    return timed(group, lambda: group.all_reduce(tensor).wait(), repeats=repeats)


def two_level_times(group: TorchGroup, *, levels: Levels, num_bytes: int, repeats: int) -> list[tuple[float, float]]:
    """All-reduce so many bytes in two levels."""
    inside, between = (group.split(levels[level]) for level in ("in hosts", "between hosts"))
    assert inside is not None
    assert between is not None
    tensor = torch.ones(num_bytes // 4)
    part = torch.empty(len(tensor) // inside.size)

    def work() -> None:
        dist.reduce_scatter_tensor(part, tensor, group=inside.process_group)
        between.all_reduce(part).wait()
        dist.all_gather_into_tensor(tensor, part, group=inside.process_group)

    return timed(group, work, repeats=repeats)


def _modelled_s(name: str, size: int, *, links: Mapping[str, AlphaBeta], levels: Levels) -> float:
    num_hosts, ranks_per_host = (len(levels[level]) for level in ("in hosts", "between hosts"))
    inside, between = links["in hosts"], links["between hosts"]
    if name == "flat":
        return ring_all_reduce_s(
            size,
            num_ranks=num_hosts * ranks_per_host,
            link=between.link,
        )
    return hierarchical_all_reduce_s(
        size,
        num_hosts=num_hosts,
        ranks_per_host=ranks_per_host,
        local=Link(latency_s=inside.latency_s, bytes_per_s=inside.bytes_per_s),
        link=between.link,
    )


def _chart(
    medians_s: Mapping[str, Mapping[int, float]], *, links: Mapping[str, AlphaBeta], levels: Levels, saved: float
) -> LineChart:
    num_hosts, ranks_per_host = (len(levels[level]) for level in ("in hosts", "between hosts"))
    return by_message(
        medians_s,
        lambda name, size: _modelled_s(name, size, links=links, levels=levels),
        title=f"Measured, two levels are {saved:.2f} times as fast as a flat ring",
        caption=f"Time of an all-reduce of {num_hosts} hosts of {ranks_per_host} ranks by size; medians.",
    )
