"""An all-reduce in two levels with Gloo beside a flat one, and both beside `plesio_planning.studies.hierarchical`.

Two hosts in network namespaces with one slow link each and several ranks; in a host ranks talk over its loopback. Flat
is Gloo's own ring over all ranks. In two levels a host's ranks reduce-scatter, then each of them all-reduces its part
with its like on the other host, all at the same time over one link, and then a host's ranks gather the parts. Latency
and bandwidth in a host are fitted to all-reduces within hosts, those between hosts to all-reduces of one rank of each,
and predict both algorithms, neither of which was used for a fit.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
import torch.distributed as dist

from plesio.core.charts import Axis, LineChart
from plesio.core.units import format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.collectives import hierarchical_all_reduce_s, ring_all_reduce_s
from plesio.cost.link import Link
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Times, all_reduce_times, ranks_on_hosts, timed
from plesio_planning.measured.twin import Twin, beside, lines_of, where_text
from plesio_planning.studies.measured import Measured

FOUND = ("latency_s", "local_bytes_per_s", "local_latency_s")

NUM_HOSTS = 2
RANKS_PER_HOST = 3
BYTES_PER_S = 25e6
FITTED_BYTES = (12_000, 300_000, 2_400_000)
MESSAGE_BYTES = 3_000_000
SHARES = (0.004, 0.04, 0.2, 0.4, 1.0)
"""Messages that are measured, over the largest."""
REPEATS = 15

Levels = Mapping[str, Sequence[Sequence[int]]]
"""Groups of ranks that exchange with each other, by level."""


def levels_of(num_hosts: int, ranks_per_host: int) -> Levels:
    """Return the ranks of each host, and those of all hosts that have the same place there."""
    count = num_hosts * ranks_per_host
    return {
        "in hosts": [range(host * ranks_per_host, (host + 1) * ranks_per_host) for host in range(num_hosts)],
        "between hosts": [range(rank, count, ranks_per_host) for rank in range(ranks_per_host)],
    }


def measure(
    twin: Twin,
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    shares: Sequence[float] = SHARES,
    repeats: int = REPEATS,
    /,
    *,
    num_hosts: Annotated[int, Within(2, 4)] = NUM_HOSTS,
    ranks_per_host: Annotated[int, Within(2, 4)] = RANKS_PER_HOST,
    message_bytes: Annotated[float, Within(1e5, 1e7)] = MESSAGE_BYTES,
    bytes_per_s: Annotated[float, Within(5e6, 1e8)] = BYTES_PER_S,
) -> Measured:
    """Measure two hosts of three ranks with links of 25 MB/s; takes about half a minute.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    count, levels = num_hosts * ranks_per_host, levels_of(num_hosts, ranks_per_host)
    sizes = [max(1, round(share * message_bytes / (4 * count))) * 4 * count for share in shares]
    with ranks_on_hosts(count, ranks_per_host=ranks_per_host, bytes_per_s=bytes_per_s) as ranks:
        # in all hosts at once, and between hosts of one rank each
        fitted = {"in hosts": levels["in hosts"], "between hosts": levels["between hosts"][:1]}
        links = {
            level: twin.links(
                ranks, fitted_bytes, num_ranks=len(parts[0]), repeats=repeats, saying=f"{level},", parts=parts
            )
            for level, parts in fitted.items()
        }
        local, link = (Link(latency_s=each.latency_s, bytes_per_s=each.bytes_per_s) for each in links.values())
        for name in ("flat", "two levels"):
            for size in sizes:
                twin.say(f"{name}, {format_bytes(size)}")
                flat_s = ring_all_reduce_s(size, num_ranks=count, link=link)
                if name == "flat":
                    modelled_s, found_s = flat_s, ranks.times_s(all_reduce_times, num_bytes=size, repeats=repeats)
                else:
                    modelled_s = hierarchical_all_reduce_s(
                        size, num_hosts=num_hosts, ranks_per_host=ranks_per_host, local=local, link=link
                    )
                    found_s = ranks.times_s(two_level_times, levels=levels, num_bytes=size, repeats=repeats)
                twin.predict(
                    "all-reduce (s)",
                    {"all-reduce": name, "message": format_bytes(size)},
                    predicted=modelled_s,
                    measured=twin.median(found_s),
                    baseline=flat_s,
                )
    flat, two_levels = (twin.rows("all-reduce (s)", **{"all-reduce": name})[-1] for name in ("flat", "two levels"))
    saved, expected = flat.measured / two_levels.measured, flat.predicted / two_levels.predicted
    fits = (
        f"{at} {format_seconds(one.latency_s)} and {format_bandwidth(one.bytes_per_s)}" for at, one in links.items()
    )
    return twin.measured(
        "hierarchical",
        finding=f"For {format_bytes(sizes[-1])} two levels are {saved:.2f} times as fast as a flat ring, modelled "
        f"{expected:.2f} times; the model is off by {twin.off():.1f} % (median).",
        setting=f"{num_hosts} hosts of {ranks_per_host} Gloo ranks of one thread, {where_text(bytes_per_s)}; medians "
        f"of {repeats}, which vary by {twin.spread:.0f} %. Fitted: {', '.join(fits)}. The baseline is a flat ring.",
        charts=[_chart(twin, sizes, saved=saved, ranks=f"{num_hosts} hosts of {ranks_per_host} ranks")],
        rivals="all-reduce",
    )


def _chart(twin: Twin, sizes: Sequence[int], *, saved: float, ranks: str) -> LineChart:
    lines = lines_of(
        twin.predictions,
        along="message",
        by="all-reduce",
        place={format_bytes(size): size / 1e6 for size in sizes}.__getitem__,
        times=1e3,
    )
    return beside(
        lines,
        title=f"Measured, two levels are {saved:.2f} times as fast as a flat ring",
        caption=f"Time of an all-reduce of {ranks} by size; medians.",
        x=Axis(title="message (MB)", log=True),
        y=Axis(title="time (ms)", log=True),
    )


def two_level_times(group: TorchGroup, *, levels: Levels, num_bytes: int, repeats: int) -> Times:
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
