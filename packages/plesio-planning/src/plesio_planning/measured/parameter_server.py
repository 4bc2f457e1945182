"""Workers that exchange gradients by servers and by a ring, beside `plesio_planning.studies.parameter_server`.

Each worker and each server is a Gloo rank on a host of its own with a link of a set bandwidth. *Synchronous*: workers
push a part of the gradient to each server, a server adds up what all have pushed, and everybody pulls the sums.
*Asynchronous*: each worker computes, pushes and pulls for itself, and a server answers whoever comes. Latency and
bandwidth are fitted to what one worker pushes to one server and pulls, and predict all the rest. The servers are these
few lines and no store of Plesio's, which keeps its shards on the workers' hosts.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
import torch.distributed as dist

from plesio.core.charts import Axis
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.core.within import Within
from plesio.cost.fit import AlphaBeta
from plesio.runtime.worker.exchange.group import TorchGroup
from plesio_planning.measured.ranks import Times, all_reduce_times, fitted_links, ranks_on_hosts, slowest_s, timed
from plesio_planning.measured.twin import Twin, beside, fit_text, where_text
from plesio_planning.studies.measured import Measured
from plesio_planning.studies.server_model import ServerModel

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


def measure(
    twin: Twin,
    size_parts: Sequence[int] = (4, 1),
    fitted_bytes: Sequence[int] = FITTED_BYTES,
    repeats: int = REPEATS,
    num_updates: int = NUM_UPDATES,
    /,
    *,
    num_workers: Annotated[int, Within(2, 6)] = NUM_WORKERS,
    num_servers: Annotated[int, Within(1, 4)] = NUM_SERVERS,
    gradient_bytes: Annotated[float, Within(1e5, 5e6)] = GRADIENT_BYTES,
    bytes_per_s: Annotated[float, Within(2e6, 1e8)] = BYTES_PER_S,
    compute_s: Annotated[float, Within(5e-3, 1)] = COMPUTE_S,
) -> Measured:
    """Measure four workers and up to four servers with links of 10 MB/s; takes about half a minute.

    Raises:
        ConfigError: This machine has no network namespaces for us.
    """
    servers = sorted({1, max(1, num_servers // 2), num_servers})
    gradient, first_server = int(gradient_bytes), num_workers
    with ranks_on_hosts(num_workers + num_servers, bytes_per_s=bytes_per_s) as ranks:

        def times_s(function: Callable[..., Times], *, count: int, **arguments: Any) -> list[float]:
            answers = ranks.run(function, count=count, first_server=first_server, **arguments)
            return slowest_s(answers[:count])

        def fitted_s(size: int) -> list[float]:
            twin.say(f"{format_bytes(size / 2)} to a server and back")
            return times_s(exchange_times, count=1, num_servers=1, num_bytes=size // 2, repeats=repeats)

        # there and back, one worker and one server take as long as two ranks for an all-reduce of twice the bytes
        links = fitted_links([2 * size for size in fitted_bytes], fitted_s, num_ranks=2)
        model = _model_of(links, num_workers=num_workers, gradient_bytes=gradient, compute_s=compute_s)
        for count in sorted({2, num_workers}):
            for size in (gradient // part for part in size_parts):
                for number in (0, *servers):
                    exchange, shape = counted(number, "server") if number else "ring", {"num_bytes": size}
                    twin.say(f"{count} workers, {exchange if number else 'a ring'}, {format_bytes(size)}")
                    own = replace(model, num_workers=count, num_servers=number or 1, gradient_bytes=size)
                    if number:
                        found_s = times_s(exchange_times, count=count, num_servers=number, repeats=repeats, **shape)
                    else:
                        found_s = ranks.times_s(all_reduce_times, parts=[range(count)], repeats=repeats, **shape)
                    twin.predict(
                        "exchange (s)",
                        {"workers": count, "gradient": format_bytes(size), "exchange": exchange},
                        predicted=own.server_s if number else own.ring_s,
                        measured=twin.median(found_s),
                        baseline=own.ring_s,
                    )
        for number in servers:
            twin.say(f"{num_workers} asynchronous workers, {counted(number, 'server')}")
            work = {"num_bytes": gradient, "compute_s": compute_s, "num_updates": num_updates}
            (took_s,) = times_s(asynchronous_times, count=num_workers, num_servers=number, **work)
            _predict_updates(twin, replace(model, num_servers=number), per_s=num_workers * num_updates / took_s)
    return _compared(
        twin,
        model=model,
        setting=f"Gloo ranks of one thread on hosts of their own, {where_text(bytes_per_s)}; medians of {repeats}. "
        f"Fitted to one worker and one server: {fit_text(links)}. Asynchronous workers compute for "
        f"{format_seconds(compute_s)} and make {num_updates} updates each. The baseline has a ring's time for every "
        "exchange, and for updates no communication.",
    )


def _predict_updates(twin: Twin, model: ServerModel, *, per_s: float) -> None:
    twin.predict(
        "updates a second",
        {"workers": model.num_workers, "gradient": format_bytes(model.gradient_bytes), "servers": model.num_servers},
        predicted=model.asynchronous_per_s,
        measured=per_s,
        baseline=model.num_workers / model.compute_s,
    )


def _model_of(links: AlphaBeta, *, num_workers: int, gradient_bytes: int, compute_s: float) -> ServerModel:
    """Return the study's model with the links that were fitted, and dense gradients."""
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


def exchange_times(
    group: TorchGroup, *, count: int, first_server: int, num_servers: int, num_bytes: int, repeats: int
) -> Times:
    """Time the first ``count`` ranks' pushes to the servers and pulls; ranks that are neither only meet the others."""
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
    """Time the first ``count`` ranks, each of which computes, pushes and pulls so often, whatever the others do."""
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
    """Push a part to each server, and pull one back from each."""
    pulled = [torch.empty_like(part) for part in parts]
    pushes = [dist.isend(part, server, group=group.process_group) for part, server in zip(parts, servers, strict=True)]
    _all_done(dist.irecv(part, server, group=group.process_group) for part, server in zip(pulled, servers, strict=True))
    _all_done(pushes)


def _all_done(works: Any) -> None:
    for work in list(works):
        work.wait()


def _compared(twin: Twin, *, model: ServerModel, setting: str) -> Measured:
    ring, *of_servers = twin.rows(
        "exchange (s)", workers=str(model.num_workers), gradient=format_bytes(model.gradient_bytes)
    )
    first = of_servers[0]
    ratio = first.measured / ring.measured
    numbers = [int(one.setting["exchange"].split()[0]) for one in of_servers]
    lines = {"servers": of_servers, "ring": [ring] * len(numbers)}
    return twin.measured(
        "parameter-server",
        finding=f"{first.setting['exchange']} takes {ratio:.2f} times as long as a ring of {model.num_workers} "
        f"workers, modelled {first.predicted / ring.predicted:.2f} times; exchanges are off by "
        f"{twin.off('exchange (s)'):.1f} % and asynchronous updates a second by {twin.off('updates a second'):.1f} % "
        "(medians).",
        setting=setting,
        charts=[
            beside(
                {
                    name: (numbers, [1e3 * one.predicted for one in each], [1e3 * one.measured for one in each])
                    for name, each in lines.items()
                },
                title=f"Measured, {first.setting['exchange']} takes {ratio:.2g} times as long as a ring",
                caption=f"Time of an exchange of {model.num_workers} workers by number of servers; medians.",
                x=Axis(title="servers"),
                y=Axis(title="time (ms)"),
            )
        ],
        rivals="exchange",
    )
