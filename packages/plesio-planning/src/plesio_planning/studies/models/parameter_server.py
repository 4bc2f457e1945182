"""A parameter server beside a ring: how much slower it is, and when sparse updates or asynchrony turn that round.

The model is in `studies.server_model`. With dense gradients and no latency, S servers take ``N/S · N/(N-1)`` times as
long for N workers as a ring; of all links of servers and workers they use ``S/(N+S)`` meanwhile, and a ring all of its
own.

``docs/planning/studies/parameter-server.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np

from plesio.core.charts import Axis, Chart, HeatMap, LineChart, Table
from plesio.core.units import counted, format_bytes, format_seconds
from plesio.core.within import BANDWIDTH, DURATION, DURATION_OR_0, SIZE, Within
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.server_model import Pull, ServerModel
from plesio_planning.studies.study import Answer

_DENSITIES = tuple(float(density) for density in np.geomspace(1e-4, 1.0, 41))
_NO_COST = 0.005
_BARRIERS = tuple(float(factor) for factor in np.linspace(1.0, 10.0, 91))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServer(Answer):
    """A server beside a ring.

    Attributes:
        model: Model that was asked for.
        times_s: Seconds of an exchange: ``server``, ``ring`` of the dense gradient, ``gather`` of sparse ones.
        used_share: Share of all links' bandwidth that is used meanwhile: ``server`` and ``ring``.
        updates_per_s: ``server, asynchronous``, ``server, synchronous`` and ``ring``.
        by_workers: The same workers and fewer, with as many servers.
        by_servers: Numbers of servers up to one for each worker.
        by_latency: Other latencies.
        by_density: Other densities.
        sparse_below: Density below which the server is faster than a ring of dense gradients; 1 is always, 0 never.
        asynchronous_from: Cost of a barrier, of the same kind as ``barrier_factor``, from which on an asynchronous
            server makes more updates than a ring; 1 is always.
    """

    unit: ClassVar[str] = "s"
    model: ServerModel
    times_s: Mapping[str, float]
    used_share: Mapping[str, float]
    updates_per_s: Mapping[str, float]
    by_workers: tuple[ServerModel, ...]
    by_servers: tuple[ServerModel, ...]
    by_latency: tuple[ServerModel, ...]
    by_density: tuple[ServerModel, ...]
    sparse_below: float
    asynchronous_from: float

    @property
    def finding(self) -> str:
        """How much slower or faster the server is; when it would win."""
        model = self.model
        ratio = model.server_s / model.ring_s
        compared = f"{ratio:.3g} times as long as" if ratio >= 1 else f"{100 * ratio:.1f} % of"
        return (
            f"With {counted(model.num_servers, 'server')} an exchange of {model.num_workers} workers takes "
            f"{format_seconds(model.server_s)}, {compared} a ring's {format_seconds(model.ring_s)}, and "
            f"{100 * self.used_share['server']:.1f} % of all links are used. It is shorter than a ring's "
            f"{_below(self.sparse_below)}. Asynchronous workers make "
            f"{model.asynchronous_per_s:,.0f} updates a second against {model.ring_per_s:,.0f}: more than a ring "
            f"{_barrier(self.asynchronous_from)}."
        )

    @property
    def total(self) -> float:
        """Seconds of an exchange with the server."""
        return self.model.server_s

    @property
    def parts(self) -> Mapping[str, float]:
        """There and back."""
        return {"push": self.model.push_s, "pull": self.model.pull_s}

    def tables(self) -> Sequence[Table]:
        """Make the tables by servers, workers, latency and density, and updates per second."""
        by_density = table_of(
            "By density:",
            self.by_density[::5],
            {
                "density": lambda one: f"{100 * one.density:.2f} %",
                "pushed": lambda one: format_bytes(one.push_bytes),
                "pulled": lambda one: format_bytes(one.pull_bytes),
                "server": lambda one: format_seconds(one.server_s),
                "ring, dense": lambda one: format_seconds(one.ring_s),
                "all-gather, sparse": lambda one: format_seconds(one.gather_s),
            },
        )
        updates = table_of(
            "Updates per second:",
            self.by_servers,
            {
                "servers": lambda one: str(one.num_servers),
                "asynchronous": lambda one: f"{one.asynchronous_per_s:,.0f}",
                "synchronous": lambda one: f"{one.synchronous_per_s:,.0f}",
                "ring": lambda one: f"{one.ring_per_s:,.0f}",
                "slowest over mean step from which it wins": lambda one: f"{_break_even_barrier(one):.2f}",
            },
        )
        return [
            _table("By number of servers:", "servers", self.by_servers, lambda one: str(one.num_servers)),
            _table("By number of workers:", "workers", self.by_workers, lambda one: str(one.num_workers)),
            _table("By latency:", "latency", self.by_latency, lambda one: format_seconds(one.latency_s)),
            by_density,
            updates,
        ]

    def charts(self) -> Sequence[Chart]:
        """Time by workers, how much slower by both, sparse, asynchronous."""
        return [self._workers_chart(), self._ratio_chart(), self._density_chart(), self._barrier_chart()]

    def _workers_chart(self) -> LineChart:
        counts = [one.num_workers for one in self.by_workers]
        servers = sorted({1, self.model.num_servers, self.model.num_workers})
        lines_ms = {
            counted(number, "server"): [1e3 * replace(one, num_servers=number).server_s for one in self.by_workers]
            for number in servers
        }
        ring_ms = {"ring": [1e3 * one.ring_s for one in self.by_workers]}
        return LineChart(
            slug="workers",
            title=f"With {counted(self.model.num_servers, 'server')} {self.model.num_workers} workers take "
            f"{self.model.server_s / self.model.ring_s:.3g} times as long as a ring",
            caption="Time of an exchange by number of workers.",
            x=Axis(title="workers", log=True),
            y=Axis(title="time (ms)", log=True),
            series=lines_of(counts, lines_ms, dashed=ring_ms),
        )

    def _ratio_chart(self) -> HeatMap:
        ratios = [
            [
                replace(self.model, num_workers=workers.num_workers, num_servers=servers.num_servers).server_s
                / workers.ring_s
                for workers in self.by_workers
            ]
            for servers in self.by_servers
        ]
        return HeatMap(
            slug="ratio",
            title="A server for each worker is as fast as a ring; fewer are slower in proportion",
            caption="Time of an exchange with the servers over that of a ring of dense gradients.",
            x=Axis(title="workers"),
            y=Axis(title="servers"),
            columns=[str(one.num_workers) for one in self.by_workers],
            rows=[str(one.num_servers) for one in self.by_servers],
            values=[[math.log10(ratio) for ratio in row] for row in ratios],
            scale=Axis(title="log₁₀ of server's time over ring's"),
            texts=[[f"{ratio:.3g}" for ratio in row] for row in ratios],
        )

    def _density_chart(self) -> LineChart:
        percent = [100 * one.density for one in self.by_density]
        server = "server, pulls all" if self.model.pull == "all" else f"server, pulls what was {self.model.pull}"
        return LineChart(
            slug="density",
            title=f"The server is faster {_below(self.sparse_below)}",
            caption="Time of an exchange by share of the gradient that is not zero; indices are sent along.",
            x=Axis(title="density (%)", log=True),
            y=Axis(title="time (ms)", log=True),
            series=[
                *lines_of(percent, {server: [1e3 * one.server_s for one in self.by_density]}),
                *lines_of(percent, dashed={"ring, dense": [1e3 * one.ring_s for one in self.by_density]}),
                *lines_of(percent, {"all-gather, sparse": [1e3 * one.gather_s for one in self.by_density]}),
            ],
            marks={"break-even": 100 * self.sparse_below} if 0 < self.sparse_below < 1 else {},
        )

    def _barrier_chart(self) -> LineChart:
        models = [replace(self.model, barrier_factor=factor) for factor in _BARRIERS]
        rates = {
            f"{counted(number, 'server')}, asynchronous": [
                replace(one, num_servers=number).asynchronous_per_s for one in models
            ]
            for number in sorted({1, self.model.num_servers})
        }
        rates[f"{counted(self.model.num_servers, 'server')}, synchronous"] = [one.synchronous_per_s for one in models]
        rates["ring"] = [one.ring_per_s for one in models]
        return LineChart(
            slug="asynchronous",
            title=f"Asynchronous servers make more updates than a ring {_barrier(self.asynchronous_from)}",
            caption="Updates per second by what a barrier costs: the mean of the slowest worker's step over the mean.",
            x=Axis(title="slowest over mean step"),
            y=Axis(title="updates per second"),
            series=lines_of(_BARRIERS, rates),
            marks={"break-even": self.asynchronous_from}
            if 1 + _NO_COST < self.asynchronous_from < _BARRIERS[-1]
            else {},
        )


def _below(density: float) -> str:
    if density in (0.0, 1.0):
        return "at every density" if density else "at no density"
    return f"below a density of {100 * density:.2f} %"


def _barrier(factor: float) -> str:
    if factor < 1 + _NO_COST:
        return "whatever a barrier costs"
    return f"if the slowest of all steps takes more than {factor:.2f} times the mean"


def _table(title: str, what: str, models: Sequence[ServerModel], name: Callable[[ServerModel], str]) -> Table:
    return table_of(
        title,
        models,
        {
            what: name,
            "server": lambda one: format_seconds(one.server_s),
            "ring": lambda one: format_seconds(one.ring_s),
            "server/ring": lambda one: f"{one.server_s / one.ring_s:.4g}" if one.ring_s else "–",
            "server uses": lambda one: f"{100 * one.used_share:.1f} %",
            "ring uses": lambda one: f"{100 * one.ring_used_share:.1f} %",
            "computing with server": lambda one: f"{100 * one.compute_s / (one.compute_s + one.server_s):.1f} %",
        },
    )


def parameter_server(
    *,
    num_workers: Annotated[int, Within(2, 2**20)] = 256,
    num_servers: Annotated[int, Within(1, 2**20)] = 16,
    gradient_bytes: Annotated[float, SIZE] = 700e6,
    bytes_per_s: Annotated[float, BANDWIDTH] = 200e9,
    latency_s: Annotated[float, DURATION_OR_0] = 0.0,
    density: Annotated[float, Within(1e-9, 1)] = 1.0,
    index_share: Annotated[float, Within(0, 1e6)] = 1.0,
    pull: Pull = "touched",
    compute_s: Annotated[float, DURATION] = 0.125,
    barrier_factor: Annotated[float, Within(1, 1e6)] = 1.722,
) -> ParameterServer:
    """Compute the time of an exchange with servers and with a ring, and when sparsity or asynchrony favours servers.

    >>> answer = parameter_server()
    >>> answer.total, round(answer.model.ring_s, 5), round(answer.model.server_s / answer.model.ring_s, 2)
    (0.112, 0.00697, 16.06)

    Args:
        num_workers: Workers.
        num_servers: Servers, each with an equal part of the parameters and a link of its own.
        gradient_bytes: Bytes of a dense gradient.
        bytes_per_s: Bandwidth of one direction of a worker's and of a server's link.
        latency_s: Latency of each message.
        density: Share of the gradient that is not zero, more than 0, up to 1.
        index_share: Bytes of an index over those of a value, if the gradient is sent sparse.
        pull: Part of it that a worker pulls; what it touches itself next, what anybody has changed, or all.
        compute_s: Mean time that a worker computes for an update.
        barrier_factor: Mean of the slowest worker's step over the mean step (plesio study stragglers has it).
    """
    model = ServerModel(
        num_workers=num_workers,
        num_servers=num_servers,
        gradient_bytes=gradient_bytes,
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        density=density,
        index_share=index_share,
        pull=pull,
        compute_s=compute_s,
        barrier_factor=barrier_factor,
    )
    workers, servers = _powers(num_workers)[1:], sorted({*_powers(num_workers), num_servers})
    return ParameterServer(
        model=model,
        times_s={"server": model.server_s, "ring": model.ring_s, "gather": model.gather_s},
        used_share={"server": model.used_share, "ring": model.ring_used_share},
        updates_per_s={
            "server, asynchronous": model.asynchronous_per_s,
            "server, synchronous": model.synchronous_per_s,
            "ring": model.ring_per_s,
        },
        by_workers=tuple(replace(model, num_workers=count) for count in workers),
        by_servers=tuple(replace(model, num_servers=count) for count in servers),
        by_latency=tuple(replace(model, latency_s=each) for each in sorted({0.0, 1e-6, 10e-6, 100e-6, latency_s})),
        by_density=tuple(replace(model, density=each) for each in sorted({*_DENSITIES, density})),
        sparse_below=_break_even_density(model),
        asynchronous_from=_break_even_barrier(model),
    )


def _powers(most: int) -> list[int]:
    """Return powers of two below ``most``, and ``most``."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def _break_even_density(model: ServerModel) -> float:
    """Find the density by halving: the denser, the longer the server takes."""
    low, high = 0.0, 1.0
    if replace(model, density=high).server_s < model.ring_s:
        return high
    if replace(model, density=low).server_s >= model.ring_s:
        return low
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if replace(model, density=middle).server_s < model.ring_s else (low, middle)
    return (low + high) / 2


def _break_even_barrier(model: ServerModel) -> float:
    """Return ``N/(bc + ring) = updates/s`` of the asynchronous server, solved for b."""
    factor = (model.num_workers / model.asynchronous_per_s - model.ring_s) / model.compute_s
    return max(factor, 1.0)
