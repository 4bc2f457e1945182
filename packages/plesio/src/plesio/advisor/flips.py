"""The points at which another strategy is the best: another bandwidth, imbalance, model size or failure rate.

A run's findings about a candidate are kept: the samples that it needs, and how far its price was off. Only its price is
computed again. So this asks what the same learning costs elsewhere; what was not run counts as needing bsp's samples,
times a guess for its slack, and is left out where it was run too late to be timed.

Here, the chosen one is the best: what seems to be faster here and was not chosen, for the doubt about it or since it
wins too little, is taken to be as fast here, and is faster elsewhere by as much as its price falls more.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plesio.advisor.candidates import ADAPTIVE, BASELINE, SHARDED
from plesio.advisor.failures import FailureModel
from plesio.advisor.memory import memory_need
from plesio.advisor.price import price
from plesio.advisor.row import Row
from plesio.advisor.setting import Situation, paces

GANG = "bsp, gang start"
BANDWIDTHS = tuple(float(10**power) for power in np.linspace(-2, 2, 17))
IMBALANCES = tuple(float(one) for one in np.linspace(1, 6, 11))
SCALES = tuple(float(10**power) for power in np.linspace(-1.5, 1.5, 13))
MTBFS_S = tuple(float(10**power) for power in np.linspace(2, 7, 21))
MOST_LINES = 6
GUESS_PER_SLACK = 0.01
LARGEST_SLACK = 32.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateLine:
    """A candidate's seconds to the goal along the axis; NaN where it does not fit."""

    spec: str
    times_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One axis.

    Attributes:
        axis: ``bandwidth``, ``imbalance``, ``model size`` or ``failures``.
        unit: ``bytes/s``, ``times``, ``bytes`` or ``s``.
        values: Along the axis.
        here: Place of the question; NaN is nowhere.
        lines: Candidates that are best somewhere, with bsp and the chosen one.
        winners: The best one at each value.
    """

    axis: str
    unit: str
    values: tuple[float, ...]
    here: float
    lines: tuple[CandidateLine, ...]
    winners: tuple[str, ...]

    @property
    def turns(self) -> list[tuple[float, str, str]]:
        """The changes of the winner: between which values (their geometric mean), from which to which."""
        found = []
        for place in range(1, len(self.values)):
            before, after = self.winners[place - 1], self.winners[place]
            if before != after:
                found.append((math.sqrt(self.values[place - 1] * self.values[place]), before, after))
        return found


Elsewhere = Callable[[float], Situation]


def flips_of(at: Situation, rows: Sequence[Row], *, chosen: str, failures: FailureModel | None) -> tuple[Flip, ...]:
    """Return the flips along all four axes."""
    # the price of adaptive is a bound, so it is asked about only where it was chosen
    # a run that failed or was too late has shown nothing about learning
    known = [row for row in rows if row.how not in ("too late", "failed") and row.spec not in {ADAPTIVE} - {chosen}]
    base = next(row for row in rows if row.spec == BASELINE)
    best = next(row for row in rows if row.spec == chosen)
    asks = _Asks(at, known, base=base, chosen=best)
    cluster = at.cluster
    link = cluster.local if cluster.hosts == 1 else cluster.nic

    def at_bandwidth(bytes_per_s: float) -> Situation:
        return replace(at, cluster=cluster.with_bandwidth(bytes_per_s))

    pace = paces(at.compute_s)
    # how slow the last worker is now, against the mean of the others
    here = pace[-1] / (sum(pace[:-1]) / (len(pace) - 1)) if len(pace) > 1 else 1.0
    num_bytes = at.sizes.parameter_bytes
    flips = [
        asks.along(
            "bandwidth", "bytes/s", [link.bytes_per_s * one for one in BANDWIDTHS], at_bandwidth, link.bytes_per_s
        ),
        asks.along("imbalance", "times", IMBALANCES, at.with_slowest, here),
        asks.along(
            "model size",
            "bytes",
            [num_bytes * one for one in SCALES],
            lambda one: replace(at, scale=one / num_bytes),
            num_bytes,
        ),
        _over_failures(
            known,
            base=base,
            chosen=best,
            num_workers=at.num_workers,
            failures=failures,
            state_bytes=num_bytes + at.sizes.optimizer_bytes,
        ),
    ]
    return tuple(flips)


@dataclass(frozen=True, slots=True)
class _Asks:
    """A question about other settings, answered with the learning that was measured."""

    at: Situation
    known: Sequence[Row]
    base: Row
    chosen: Row

    def along(self, axis: str, unit: str, values: Sequence[float], elsewhere: Elsewhere, here: float) -> Flip:
        values = _with_here(values, here)
        times: dict[str, list[float]] = {row.spec: [] for row in self.known}
        for value in values:
            there = elsewhere(value)
            for row in self.known:
                times[row.spec].append(self._time_s(row, there))
        return _flip(axis, unit, values, here, times, chosen=self.chosen.spec)

    def _time_s(self, row: Row, there: Situation) -> float:
        found = price(row.spec, there)
        limit = there.memory_bytes
        if limit is not None and memory_need(row.spec, there, servers=found.servers).total > limit:
            return math.nan
        here_s = row.time_s
        if row.how in ("priced", "does not fit"):
            samples = row.samples if math.isfinite(row.samples) else 1 + GUESS_PER_SLACK * min(row.slack, LARGEST_SLACK)
            here_s = self.base.time_s * row.price.step_s / self.base.price.step_s * samples
        return max(here_s, self.chosen.time_s) * found.step_s / row.price.step_s


def _with_here(values: Sequence[float], here: float) -> list[float]:
    """Return the values, and among them that of the question, if there is one."""
    apart = [value for value in values if not math.isclose(value, here)]
    return sorted([*apart, here]) if math.isfinite(here) else list(values)


def _over_failures(
    known: Sequence[Row],
    *,
    base: Row,
    chosen: Row,
    num_workers: int,
    failures: FailureModel | None,
    state_bytes: float,
) -> Flip:
    """Flip along the failure rate; a gang start of bsp represents a job without Plesio."""
    rows = [row for row in known if row.how == "measured" or row.spec == SHARDED]
    times: dict[str, list[float]] = {spec: [] for spec in (*(row.spec for row in rows), GANG)}
    here = math.nan if failures is None else failures.mtbf_s
    values = _with_here(MTBFS_S, here)
    for mtbf_s in values:
        there = FailureModel(mtbf_s=mtbf_s, num_workers=num_workers, state_bytes=state_bytes)
        for row in rows:
            work_s = max(row.time_s, chosen.time_s) / row.slowdown
            times[row.spec].append(_finite(work_s * there.slowdown(row.spec)))
        work_s = base.time_s / base.slowdown
        times[GANG].append(_finite(work_s * there.gang()))
    return _flip("failures", "s", values, here, times, chosen=chosen.spec, always=(GANG,))


def _finite(time_s: float) -> float:
    return time_s if math.isfinite(time_s) else math.nan


def _flip(
    axis: str,
    unit: str,
    values: Sequence[float],
    here: float,
    times: dict[str, list[float]],
    *,
    chosen: str,
    always: tuple[str, ...] = (),
) -> Flip:
    winners: list[str] = []
    for place, value in enumerate(values):
        there = {spec: series[place] for spec, series in times.items() if not math.isnan(series[place])}
        best = min(there, key=lambda spec: there[spec], default="")
        # the chosen one stays where it was chosen; the winner of the value before where it is as good, and bsp
        for kept in (chosen if value == here else "", BASELINE, winners[-1] if winners else ""):
            if kept in there and there[kept] <= 1.02 * there[best]:
                best = kept
                break
        winners.append(best)
    shown = dict.fromkeys([chosen, BASELINE, *always, *winners])
    shown.pop("", None)
    lines = [CandidateLine(spec=spec, times_s=tuple(times[spec])) for spec in list(shown)[:MOST_LINES] if spec in times]
    return Flip(axis=axis, unit=unit, values=tuple(values), here=here, lines=tuple(lines), winners=tuple(winners))
