"""Workers that exchange gradients by servers and by a ring, beside `plesio_planning.studies.parameter_server`.

Each worker and each server is a Gloo rank on a host of its own with a link of a set bandwidth. *Synchronous*: workers
push a part of the gradient to each server, a server adds up what all have pushed, and everybody pulls the sums.
*Asynchronous*: each worker computes, pushes and pulls for itself, and a server answers whoever comes. Latency and
bandwidth are fitted to what one worker pushes to one server and pulls, and predict all the rest. The servers are these
few lines and no store of Plesio's, which keeps its shards on the workers' hosts.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
import torch.distributed as dist

from plesio.core.charts import Axis, LineChart, Series
from plesio.core.predictions import Prediction
from plesio.core.units import counted, format_bandwidth, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.fit import AlphaBeta
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import fitted_links, ranks_on_hosts, slowest_s, timed
from plesio_planning.studies.measured import Measured
from plesio_planning.studies.server_model import ServerModel

__all__ = ["FOUND", "asynchronous_times", "exchange_times", "measure", "measure_servers", "ring_times"]

FOUND = ("latency_s",)
NUM_WORKERS = 4
NUM_SERVERS = 4
BYTES_PER_S = 10e6
GRADIENT_BYTES = 500_000
COMPUTE_S = 0.05
FITTED_BYTES = (100_000, 300_000, 900_000)
"""The least is several buckets of the shaped links: what fits into one is there at once, whatever their rate."""
REPEATS = 7
NUM_UPDATES = 12

Times = list[tuple[float, float]]


def measure(
    on_step: Callable[[str], None],
    /,
    *,
    num_workers: Annotated[int, Within(2, 6)] = NUM_WORKERS,
    num_servers: Annotated[int, Within(1, 4)] = NUM_SERVERS,
    gradient_bytes: Annotated[float, Within(1e5, 5e6)] = GRADIENT_BYTES,
    bytes_per_s: Annotated[float, Within(2e6, 1e8)] = BYTES_PER_S,
    compute_s: Annotated[float, Within(5e-3, 1)] = COMPUTE_S,
) -> Measured:
    """Measure four workers and up to four servers with links of 10 MB/s; takes about half a minute.

    Args:
        on_step: Is told what is being measured.
        num_workers: Workers; two are measured, too.
        num_servers: The most servers; one, and half as many, are measured, too.
        gradient_bytes: Bytes of a gradient; a quarter of it is measured, too.
        bytes_per_s: Bandwidth that links are set to.
        compute_s: What an asynchronous worker computes for an update.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    return measure_servers(
        on_step=on_step,
        workers=sorted({2, num_workers}),
        servers=sorted({1, max(1, num_servers // 2), num_servers}),
        sizes_bytes=(int(gradient_bytes) // 4, int(gradient_bytes)),
        bytes_per_s=bytes_per_s,
        compute_s=compute_s,
    )


def measure_servers(
    *,
    on_step: Callable[[str], None],
    workers: Sequence[int] = (2, NUM_WORKERS),
    servers: Sequence[int] = (1, 2, NUM_SERVERS),
    sizes_bytes: Sequence[int] = (GRADIENT_BYTES // 4, GRADIENT_BYTES),
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    bytes_per_s: float = BYTES_PER_S,
    compute_s: float = COMPUTE_S,
    repeats: int = REPEATS,
    num_updates: int = NUM_UPDATES,
) -> Measured:
    """Measure and compare.

    Args:
        on_step: Is told what is being measured.
        workers: Numbers of workers, rising.
        servers: Numbers of servers, rising.
        sizes_bytes: Bytes of gradients, rising.
        fitted_bytes: What one worker pushes where latency and bandwidth are fitted; three sizes or more.
        bytes_per_s: Bandwidth that links are set to.
        compute_s: What an asynchronous worker computes for an update.
        repeats: Repetitions of each exchange.
        num_updates: Of each asynchronous worker.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    most = workers[-1]
    predictions: list[Prediction] = []
    with ranks_on_hosts(most + servers[-1], bytes_per_s=bytes_per_s) as ranks:

        def times_s(function: Callable[..., Times], *, count: int, **arguments: Any) -> list[float]:
            answers = ranks.run(function, count=count, **arguments)
            return slowest_s([answer for answer in answers[:count] if answer])

        def fitted_s(size: int) -> list[float]:
            on_step(f"{format_bytes(size / 2)} to a server and back")
            alone = {"count": 1, "first_server": most, "num_servers": 1}
            return times_s(exchange_times, num_bytes=size // 2, repeats=repeats, **alone)

        # there and back, one worker and one server take as long as two ranks for an all-reduce of twice the bytes
        links = fitted_links([2 * size for size in fitted_bytes], fitted_s, num_ranks=2)
        model = _model_of(links, num_workers=most, gradient_bytes=sizes_bytes[-1], compute_s=compute_s)
        for count in workers:
            for size in sizes_bytes:
                for number in (0, *servers):
                    on_step(
                        f"{count} workers, {counted(number, 'server') if number else 'a ring'}, {format_bytes(size)}"
                    )
                    own = replace(model, num_workers=count, num_servers=number or 1, gradient_bytes=size)
                    if number:
                        common = {"first_server": most, "num_servers": number}
                        found = times_s(exchange_times, count=count, num_bytes=size, repeats=repeats, **common)
                    else:
                        found = times_s(ring_times, count=count, num_bytes=size, repeats=repeats)
                    predictions.append(_exchange(own, number, measured=statistics.median(found)))
        for number in servers:
            on_step(f"{most} asynchronous workers, {counted(number, 'server')}")
            (took_s,) = times_s(
                asynchronous_times,
                count=most,
                first_server=most,
                num_servers=number,
                num_bytes=sizes_bytes[-1],
                compute_s=compute_s,
                num_updates=num_updates,
            )
            rate = most * num_updates / took_s
            predictions.append(_asynchronous(replace(model, num_servers=number), measured=rate))
    return _compared(
        predictions,
        model=model,
        setting=f"Gloo ranks of one thread on hosts of their own, links of {format_bandwidth(bytes_per_s)}; medians of "
        f"{repeats}. Fitted to one worker and one server: {format_seconds(links.latency_s)}, "
        f"{format_bandwidth(links.bytes_per_s)}. Asynchronous workers compute for {format_seconds(compute_s)} and make "
        f"{num_updates} updates each. The baseline has a ring's time for every exchange, and for updates no "
        "communication.",
    )


def _model_of(links: AlphaBeta, *, num_workers: int, gradient_bytes: int, compute_s: float) -> ServerModel:
    """The study's model with the links that were fitted, and dense gradients."""
    return ServerModel(
        num_workers=num_workers,
        num_servers=1,
        gradient_bytes=gradient_bytes,
        bytes_per_s=links.bytes_per_s,
        latency_s=links.latency_s,
        density=1.0,
        index_share=1.0,
        pull="all",
        compute_s=compute_s,
        barrier_factor=1.0,
    )


def ring_times(group: TorchGroup, *, count: int, num_bytes: int, repeats: int) -> Times:
    """All-reduce so many bytes among the first ``count`` ranks; nothing on the others."""
    part = group.split([range(count)])
    tensor = torch.ones(num_bytes // 4)
    return [] if part is None else timed(part, lambda: part.all_reduce(tensor).wait(), repeats=repeats)


def exchange_times(
    group: TorchGroup, *, count: int, first_server: int, num_servers: int, num_bytes: int, repeats: int
) -> Times:
    """The first ``count`` ranks push to the servers and pull; ranks that are neither only meet the others."""
    servers = range(first_server, first_server + num_servers)
    gradient = torch.ones(num_bytes // 4)
    if group.rank < count:

        def work() -> None:
            _push_and_pull(group, list(gradient.tensor_split(num_servers)), servers)

    elif group.rank in servers:
        own = gradient.tensor_split(num_servers)[group.rank - first_server].clone()

        def work() -> None:
            parts = [torch.empty_like(own) for _ in range(count)]
            _all_done(dist.irecv(part, rank, group=group.process_group) for rank, part in enumerate(parts))
            total = torch.stack(parts).sum(dim=0)
            _all_done(dist.isend(total, rank, group=group.process_group) for rank in range(count))

    else:

        def work() -> None:
            pass

    return timed(group, work, repeats=repeats)


def asynchronous_times(
    group: TorchGroup,
    *,
    count: int,
    first_server: int,
    num_servers: int,
    num_bytes: int,
    compute_s: float,
    num_updates: int,
) -> Times:
    """Each of the first ``count`` ranks computes, pushes and pulls so often, whatever the others do."""
    servers = range(first_server, first_server + num_servers)
    gradient = torch.ones(num_bytes // 4)

    def work() -> None:
        if group.rank < count:
            for _ in range(num_updates):
                time.sleep(compute_s)
                _push_and_pull(group, list(gradient.tensor_split(num_servers)), servers)
        elif group.rank in servers:
            own = gradient.tensor_split(num_servers)[group.rank - first_server]
            answers = []
            for _ in range(count * num_updates):
                part = torch.empty_like(own)
                source = dist.recv(part, group=group.process_group)
                answers.append((part, dist.isend(part, source, group=group.process_group)))
            _all_done(answer for _, answer in answers)

    return timed(group, work, repeats=1, warm_up=0)


def _push_and_pull(group: TorchGroup, parts: Sequence[torch.Tensor], servers: Sequence[int]) -> None:
    """A part to each server, and one back from each."""
    pulled = [torch.empty_like(part) for part in parts]
    pushes = [dist.isend(part, server, group=group.process_group) for part, server in zip(parts, servers, strict=True)]
    _all_done(dist.irecv(part, server, group=group.process_group) for part, server in zip(pulled, servers, strict=True))
    _all_done(pushes)


def _all_done(works: Any) -> None:
    for work in list(works):
        work.wait()


def _exchange(model: ServerModel, servers: int, *, measured: float) -> Prediction:
    return Prediction(
        setting={
            "workers": str(model.num_workers),
            "gradient": format_bytes(model.gradient_bytes),
            "exchange": counted(servers, "server") if servers else "ring",
        },
        quantity="exchange (s)",
        scale="relative",
        predicted=model.server_s if servers else model.ring_s,
        measured=measured,
        baseline=model.ring_s,
    )


def _asynchronous(model: ServerModel, *, measured: float) -> Prediction:
    return Prediction(
        setting={
            "workers": str(model.num_workers),
            "gradient": format_bytes(model.gradient_bytes),
            "servers": str(model.num_servers),
        },
        quantity="updates a second",
        scale="relative",
        predicted=model.asynchronous_per_s,
        measured=measured,
        baseline=model.num_workers / model.compute_s,
    )


def _compared(predictions: Sequence[Prediction], *, model: ServerModel, setting: str) -> Measured:
    exchanges = [one for one in predictions if one.quantity == "exchange (s)"]
    rates = [one for one in predictions if one.quantity == "updates a second"]
    largest = [
        one
        for one in exchanges
        if one.setting["workers"] == str(model.num_workers)
        and one.setting["gradient"] == format_bytes(model.gradient_bytes)
    ]
    by_name = {one.setting["exchange"]: one for one in largest}
    ring, one_server = by_name["ring"], next(one for name, one in by_name.items() if name != "ring")
    errors = [statistics.median(abs(one.error) for one in each) for each in (exchanges, rates)]
    return Measured(
        study="parameter-server",
        finding=f"{one_server.setting['exchange']} takes {one_server.measured / ring.measured:.2f} times as long as "
        f"a ring of {model.num_workers} workers, modelled {one_server.predicted / ring.predicted:.2f} times; exchanges "
        f"are off by {100 * errors[0]:.1f} % and asynchronous updates a second by {100 * errors[1]:.1f} % (medians).",
        setting=setting,
        predictions=tuple(predictions),
        charts=(_chart(by_name, ratio=one_server.measured / ring.measured),),
        rivals="exchange",
    )


def _chart(by_name: Mapping[str, Prediction], *, ratio: float) -> LineChart:
    numbers = [int(name.split()[0]) for name in by_name if name != "ring"]
    of_servers = [one for name, one in by_name.items() if name != "ring"]
    ring = by_name["ring"]
    return LineChart(
        slug="measured",
        title=f"Measured, {of_servers[0].setting['exchange']} takes {ratio:.2g} times as long as a ring",
        caption=f"Time of an exchange of {ring.setting['workers']} workers by number of servers; medians.",
        x=Axis(title="servers"),
        y=Axis(title="time (ms)"),
        series=[
            Series(name="servers, modelled", group="servers", x=numbers, y=[1e3 * one.predicted for one in of_servers]),
            Series(
                name="servers, measured",
                group="servers",
                x=numbers,
                y=[1e3 * one.measured for one in of_servers],
                style="points",
            ),
            Series(name="ring, modelled", group="ring", x=numbers, y=[1e3 * ring.predicted] * len(numbers)),
            Series(
                name="ring, measured",
                group="ring",
                x=numbers,
                y=[1e3 * ring.measured] * len(numbers),
                style="points",
            ),
        ],
    )
