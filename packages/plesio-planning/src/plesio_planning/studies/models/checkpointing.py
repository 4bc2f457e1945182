"""How often a run should save its state, and how.

Failures come M seconds apart on average. A run computes for I, writes its state for C, and is back R after a failure.
Then a second of work takes ``M e^(R/M) (e^((I+C)/M) - 1) / I`` seconds (Daly 2006, eq. 13; `plesio.cost.reliability`,
which divides it into its parts). `studies.checkpoint_ways` has four ways to write. If a state is unreadable with
probability q, a failure goes back j intervals more with probability ``q^j (1-q)``.

``docs/planning/studies/checkpointing.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.charts import Axis, BarChart, Chart, LineChart, Series, Table, Timeline, TimelineBar
from plesio.core.units import format_percent, format_seconds
from plesio.core.within import DURATION_OR_0, Within
from plesio.cost.faults import Failures
from plesio.cost.reliability import (
    best_interval_s,
    cluster_mtbf_s,
    daly_interval_s,
    expected_slowdown,
    young_interval_s,
)
from plesio_planning.studies.checkpoint_runs import SavedRun, SimulatedInterval
from plesio_planning.studies.checkpoint_ways import CheckpointWay, costs_of_ways, lost_generations, overhead_by_hosts
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.study import Answer

_TIME = Within(1e-9, 1e12)
"""Seconds; hosts that fail every 30,000 years are not too good."""
_FACTORS = tuple(2 ** (power / 2) for power in range(-4, 5))
"""Multiples of the best interval, to show what others cost."""
_HOSTS = (1, 10, 100, 1000, 10_000)
_GENERATIONS = (1, 2, 3, 4)
_DAY_S = 86400.0
_DEVICES_PER_HOST = 8
_LLAMA_HOSTS, _LLAMA_FAILURES, _LLAMA_S, _LLAMA_EFFECTIVE = 16384 // _DEVICES_PER_HOST, 419, 54 * _DAY_S, 0.9
_BLOOM_HOSTS, _BLOOM_MTBF_S, _BLOOM_CHECKPOINT_S = 384 // _DEVICES_PER_HOST, 7 * _DAY_S, 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing(Answer):
    """When to save a run's state, and what failures cost.

    Attributes:
        work_s: Seconds of useful work of the run.
        mtbf_s: M.
        checkpoint_s: C.
        interval_s: I, as asked for, or the best.
        best_s: The best interval.
        young_s: Young's.
        daly_s: Daly's.
        slowdown: Seconds that a second of work takes at I.
        shares: Their uses.
        lost_s: Seconds that a failure undoes, on average.
        num_failures: Expected, of the whole run.
        shape: Weibull's, of failures in bursts.
        simulated: Some intervals around the best.
        ways: Ways to save the state, each with its best interval.
        by_hosts: Mean seconds between failures, and each way's slow-down, by number of hosts; NaN where no run ends.
        generations: Number of generations kept, with the expected intervals lost beside the first at a failure, and
            the probability that a run finds none of them good.
        drawn: A simulated run around its first failure.
    """

    unit: ClassVar[str] = "s"
    work_s: float
    mtbf_s: float
    checkpoint_s: float
    interval_s: float
    best_s: float
    young_s: float
    daly_s: float
    slowdown: float
    shares: Mapping[str, float]
    lost_s: float
    num_failures: float
    shape: float
    simulated: tuple[SimulatedInterval, ...]
    ways: tuple[CheckpointWay, ...]
    by_hosts: Mapping[int, tuple[float, Mapping[str, float]]]
    generations: Mapping[int, tuple[float, float]]
    drawn: tuple[TimelineBar, ...]

    @property
    def finding(self) -> str:
        """The interval, what it costs, whose rule is how close, and the best way."""
        best = min(self.ways, key=lambda way: way.slowdown)
        return (
            f"Saving every {format_seconds(self.interval_s)} costs {_overhead(self.slowdown)} of the useful time; "
            f"best is {format_seconds(self.best_s)}, Young says {format_seconds(self.young_s)}, Daly "
            f"{format_seconds(self.daly_s)}, and a failure undoes {format_seconds(self.lost_s)}. "
            f"{best.name.capitalize()} every {format_seconds(best.interval_s)}, it costs {_overhead(best.slowdown)}."
        )

    @property
    def total(self) -> float:
        """Seconds that the run is expected to take."""
        return self.slowdown * self.work_s

    @property
    def parts(self) -> Mapping[str, float]:
        """Work, writing, what is done again, and restarts."""
        return {"work": self.work_s, **{name: share * self.work_s for name, share in self.shares.items()}}

    def tables(self) -> Sequence[Table]:
        """List intervals, ways, hosts, generations, and what others have published."""
        return [self._intervals(), self._ways(), self._hosts(), self._kept(), published_failures()]

    def _intervals(self) -> Table:
        least = min(one.exact for one in self.simulated)
        return table_of(
            "What other intervals cost:",
            self.simulated,
            {
                "by the best": lambda one: f"{one.factor:.3g}",
                "interval": lambda one: format_seconds(one.interval_s),
                "overhead": lambda one: _overhead(one.exact),
                "longer than at best": lambda one: _overhead(one.exact / least),
                "simulated (95 % interval)": lambda one: _with_interval(one.poisson, one.poisson_ci95),
                "agree": lambda one: "yes" if one.poisson_ci95[0] <= one.exact <= one.poisson_ci95[1] else "no",
                f"Weibull {self.shape:g}": lambda one: _with_interval(one.weibull, one.weibull_ci95),
            },
        )

    def _ways(self) -> Table:
        rows = [
            (
                way.name,
                format_seconds(way.costs.checkpoint_s),
                format_seconds(way.costs.lag_s),
                format_seconds(way.costs.restart_s),
                format_seconds(way.interval_s),
                _overhead(way.slowdown),
                *(format_percent(share, digits=2) for share in way.parts.values()),
            )
            for way in self.ways
        ]
        headers = ("state", "stands still", "counts after", "restart", "interval", "overhead", *self.ways[0].parts)
        return Table(title="Ways to save the state:", headers=headers, rows=rows)

    def _hosts(self) -> Table:
        rows = [
            (str(hosts), format_seconds(mtbf_s), *("–" if math.isnan(one) else _overhead(one) for one in by.values()))
            for hosts, (mtbf_s, by) in self.by_hosts.items()
        ]
        headers = ("hosts", "a failure every", *(way.name for way in self.ways))
        return Table(title="Overhead by number of hosts:", headers=headers, rows=rows)

    def _kept(self) -> Table:
        rows = [
            (str(kept), format_seconds(intervals * self.interval_s), f"{100 * lost:.3g} %")
            for kept, (intervals, lost) in self.generations.items()
        ]
        headers = ("generations", "lost more at a failure", "the run finds none good")
        return Table(title="Generations of states that are kept:", headers=headers, rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Draw overhead by interval; ways; hosts; a run's failures."""
        return [self._by_interval(), self._by_way(), self._by_host(), self._timeline()]

    def _by_interval(self) -> LineChart:
        factors = [2 ** (power / 8) for power in range(-20, 21)]
        exact = [100 * (self._slowdown_at(factor * self.best_s) - 1) for factor in factors]
        points = [
            Series(
                name=name,
                x=[one.interval_s / 60 for one in self.simulated],
                y=[100 * (getattr(one, field) - 1) for one in self.simulated],
                low=[100 * (getattr(one, f"{field}_ci95")[0] - 1) for one in self.simulated],
                high=[100 * (getattr(one, f"{field}_ci95")[1] - 1) for one in self.simulated],
                style="points",
            )
            for name, field in (("simulated", "poisson"), (f"simulated, Weibull {self.shape:g}", "weibull"))
        ]
        worst = max(self.simulated, key=lambda one: one.exact)
        return LineChart(
            slug="interval",
            title=f"{worst.factor:.3g} times the best interval costs {_overhead(worst.exact)}",
            caption="Time above the useful one by the interval between states, with 95 % confidence intervals.",
            x=Axis(title="interval (min)", log=True),
            y=Axis(title="overhead (%)"),
            series=[Series(name="exact", x=[factor * self.best_s / 60 for factor in factors], y=exact), *points],
            marks={"best": self.best_s / 60},
        )

    def _slowdown_at(self, interval_s: float) -> float:
        first = self.ways[0]
        return expected_slowdown(
            interval_s=interval_s, checkpoint_s=self.checkpoint_s, mtbf_s=self.mtbf_s, restart_s=first.costs.restart_s
        )

    def _by_way(self) -> BarChart:
        best = min(self.ways, key=lambda way: way.slowdown)
        return BarChart(
            slug="ways",
            title=f"{best.name.capitalize()} costs least: {_overhead(best.slowdown)}",
            caption="Time above the useful one, each with its best interval.",
            axis=Axis(title="overhead (%)"),
            rows=[way.name for way in self.ways],
            parts={name: [100 * way.parts[name] for way in self.ways] for name in self.ways[0].parts},
        )

    def _by_host(self) -> LineChart:
        most = max(self.by_hosts)
        mtbf_s, _ = self.by_hosts[most]
        return LineChart(
            slug="hosts",
            title=f"{most:,} hosts fail every {format_seconds(mtbf_s)}",
            caption="Share of the time that is useful, by number of hosts, each with its best interval.",
            x=Axis(title="hosts", log=True),
            y=Axis(title="useful (%)"),
            series=lines_of(
                self.by_hosts, {way.name: [100 / by[way.name] for _, by in self.by_hosts.values()] for way in self.ways}
            ),
        )

    def _timeline(self) -> Timeline:
        return Timeline(
            slug="timeline",
            title=f"A failure undoes {format_seconds(self.lost_s)} on average",
            caption="Around the first failure of a simulated run; what is lost was work, and writing.",
            axis=Axis(title="time (h)"),
            rows=["computing", "state"],
            spans=self.drawn,
        )


def _overhead(slowdown: float) -> str:
    return format_percent(slowdown - 1, digits=2)


def _with_interval(slowdown: float, ci95: tuple[float, float]) -> str:
    low, high = ci95
    return f"{_overhead(slowdown)} ({100 * (low - 1):.2f} to {100 * (high - 1):.2f})"


def checkpointing(
    *,
    checkpoint_s: Annotated[float, _TIME] = 300.0,
    cluster_mtbf_s: Annotated[float, _TIME] = 75600.0,
    restart_s: Annotated[float, DURATION_OR_0] = 0.0,
    checkpoint_interval_s: Annotated[float | None, _TIME] = None,
    work_s: Annotated[float, _TIME] = 2_592_000.0,
    num_writers: Annotated[int, Within(1, 10**6)] = 8,
    storage_writers: Annotated[float, Within(1, 1e6)] = 4.0,
    changed_share: Annotated[float, Within(0, 1, without="high")] = 0.25,
    full_every: Annotated[int, Within(1, 10**6)] = 8,
    snapshot_s: Annotated[float, _TIME] = 5.0,
    unreadable: Annotated[float, Within(0, 1, without="high")] = 0.01,
    host_mtbf_s: Annotated[float, _TIME] = 157_680_000.0,
    shape: Annotated[float, Within(0.2, 10)] = 0.7,
    num_runs: Annotated[int, Within(2, 100_000)] = 1000,
    seed: int = 0,
) -> Checkpointing:
    """Compute the best interval, the cost of failures there and elsewhere, and of ways to save the state.

    >>> answer = checkpointing()
    >>> round(answer.best_s / 60, 2), round(100 * (answer.slowdown - 1), 3)
    (108.94, 9.464)

    Args:
        checkpoint_s: One writer's time for the whole state.
        cluster_mtbf_s: Mean time between failures of the whole cluster.
        restart_s: Time from a failure until the run goes on from its last state.
        checkpoint_interval_s: Work between two states; the best without.
        work_s: Useful work of the run.
        num_writers: Writers of shards, at once.
        storage_writers: How many of them the storage keeps up with.
        changed_share: Share of the state that a partial one writes.
        full_every: Every so many partial states one is whole.
        snapshot_s: Copying the shards to the host's memory.
        unreadable: Probability that a state cannot be read.
        host_mtbf_s: Mean time between failures of one host.
        shape: Weibull's, of failures in bursts.
        num_runs: Simulated for each interval.
        seed: Seed of the simulation.
    """
    run = SavedRun(
        work_s=work_s,
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
        failures=Failures(mtbf_s=cluster_mtbf_s, shape=shape),
    )
    ways = costs_of_ways(
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
        num_writers=num_writers,
        storage_writers=storage_writers,
        changed_share=changed_share,
        full_every=full_every,
        snapshot_s=snapshot_s,
    )
    best_s = best_interval_s(checkpoint_s=checkpoint_s, mtbf_s=cluster_mtbf_s)
    at_s = best_s if checkpoint_interval_s is None else checkpoint_interval_s
    slowdown = run.slowdown(at_s)
    num_failures = slowdown * work_s / cluster_mtbf_s
    return Checkpointing(
        work_s=work_s,
        mtbf_s=cluster_mtbf_s,
        checkpoint_s=checkpoint_s,
        interval_s=at_s,
        best_s=best_s,
        young_s=young_interval_s(checkpoint_s=checkpoint_s, mtbf_s=cluster_mtbf_s),
        daly_s=daly_interval_s(checkpoint_s=checkpoint_s, mtbf_s=cluster_mtbf_s),
        slowdown=slowdown,
        shares=run.slowdown_parts(at_s),
        lost_s=run.lost_s(at_s),
        num_failures=num_failures,
        shape=shape,
        simulated=tuple(run.simulate(factor, factor * best_s, num_runs=num_runs, seed=seed) for factor in _FACTORS),
        ways=tuple(CheckpointWay.at_best(name, costs, mtbf_s=cluster_mtbf_s) for name, costs in ways.items()),
        by_hosts=overhead_by_hosts(ways, host_mtbf_s=host_mtbf_s, numbers=_HOSTS),
        generations=lost_generations(_GENERATIONS, unreadable=unreadable, num_failures=num_failures),
        drawn=run.draw_around_failure(at_s, seed=seed),
    )


def most_checkpoint_s(*, overhead: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Return the longest C that costs no more than ``overhead`` at its best interval; 0 if none does.

    >>> round(most_checkpoint_s(overhead=0.09464, mtbf_s=21 * 3600) / 60, 1)
    5.0
    """

    def costs(checkpoint_s: float) -> float:
        best_s = best_interval_s(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
        return expected_slowdown(interval_s=best_s, checkpoint_s=checkpoint_s, mtbf_s=mtbf_s, restart_s=restart_s) - 1

    low_s, high_s = 0.0, mtbf_s
    for _ in range(50):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (middle_s, high_s) if costs(middle_s) <= overhead else (low_s, middle_s)
    return low_s


def published_failures() -> Table:
    """Compare two long runs whose failures were described: whether a host fails as often, and what they could afford.

    BLOOM: 384 A100, about a failure a week, 2.3 TB of state in 40 s (Scao et al. 2022). Llama 3 405B: 16 384 H100, 419
    interruptions in 54 days, over 90 % of the time effective (Grattafiori et al. 2024, section 3.3.4).
    """
    llama_mtbf_s = _LLAMA_S / _LLAMA_FAILURES
    bloom_host_s, llama_host_s = _BLOOM_MTBF_S * _BLOOM_HOSTS, llama_mtbf_s * _LLAMA_HOSTS
    scaled_s = cluster_mtbf_s(part_mtbf_s=bloom_host_s, num_parts=_LLAMA_HOSTS)
    bloom = {"checkpoint_s": _BLOOM_CHECKPOINT_S, "mtbf_s": _BLOOM_MTBF_S}
    bloom_best_s = best_interval_s(**bloom)
    bloom_slowdown = expected_slowdown(interval_s=bloom_best_s, **bloom)
    error = 100 * (scaled_s / llama_mtbf_s - 1)
    budget = 1 / _LLAMA_EFFECTIVE - 1
    afford = [
        format_seconds(most_checkpoint_s(overhead=budget, mtbf_s=llama_mtbf_s, restart_s=restart_s))
        for restart_s in (0.0, 300.0, 600.0)
    ]
    rows = [
        ("BLOOM: a host fails every", f"{bloom_host_s / _DAY_S:.0f} days"),
        ("Llama 3: a host fails every", f"{llama_host_s / _DAY_S:.0f} days"),
        (
            "Llama 3's time between failures from BLOOM's hosts",
            f"{scaled_s / 3600:.2f} h, published {llama_mtbf_s / 3600:.2f} h ({error:+.0f} %)",
        ),
        (
            f"BLOOM's {_BLOOM_CHECKPOINT_S:g} s are best every",
            f"{format_seconds(bloom_best_s)}, overhead {format_percent(bloom_slowdown - 1, digits=2)}",
        ),
        (
            f"Llama 3's over {100 * _LLAMA_EFFECTIVE:g} % useful leave for a state",
            f"{afford[0]}; {afford[1]} with restarts of 5 min; {afford[2]} with 10 min",
        ),
    ]
    return Table(title="Against published runs:", headers=("what", "model"), rows=rows)
