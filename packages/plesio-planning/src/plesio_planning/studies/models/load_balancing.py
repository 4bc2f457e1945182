"""The cost of equal shares among unequal workers, and the savings of shares in proportion to their speeds.

With speeds v and a global batch of B samples, equal shares take ``(B/N) / min v`` and proportional ones ``B / Σv``, the
least there is: equal ones take ``mean(v) / min(v)`` times as long. Whole samples, memory caps, speeds that drift,
shares that may move only so far a step, and workers that leave and join (`studies.work_shares`,
`studies.unequal_workers`) make it less. The alternative is to go on up to a bound ahead of the slowest
(`plesio_planning.sim.recurrences`).

``docs/planning/studies/load-balancing.md`` has the model with its sources, its assumptions and its limits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from plesio.core.charts import Axis, Chart, LineChart, Series, Table
from plesio.core.errors import ArgumentError
from plesio.core.only_with import OnlyWith
from plesio.core.units import format_percent, format_seconds
from plesio.core.within import AT_LEAST_0, DURATION, Within
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.study import Answer
from plesio_planning.studies.unequal_workers import Asynchronous, Balanced, DriftingRun, asynchronous_descent
from plesio_planning.studies.work_shares import divide, unweighted_variance

_CVS = (0.05, 0.1, 0.2, 0.3, 0.5)
_COUNTS = (4, 16, 64)
_NUM_CAPPED = 300
"""Clusters whose samples are dealt one by one."""
_TARGET = 1e-4
_EIGENVALUES = np.logspace(-1.0, 0.0, 20)
_ASYNCHRONOUS_STEPS = 120
_MOST_DRAWS = 1024 * 20_000
_MOST_JITTER = 3.0
_STEP = 0.5
"""Step length of the descents, over 1/L."""

Speeds = NDArray[np.float64]
Distribution = Literal["uniform", "lognormal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The savings of proportional shares over drawn clusters.

    Attributes:
        distribution: Distribution of the speeds, with its parameters.
        num_workers: N.
        ratio: Time with equal shares over that with proportional ones, in the mean.
        ratio_error: 1.96 standard errors of it.
    """

    distribution: str
    num_workers: int
    ratio: float
    ratio_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancing(Answer):
    """The cost of unequal workers.

    Attributes:
        gain: Gain of the distribution that was asked for.
        gains: Gains of others, for comparison.
        equal_s: Seconds of a step with equal shares, the mean over drawn clusters.
        capped_s: Seconds with proportional shares of whole samples under the caps.
        proportional_s: Seconds with proportional shares.
        variance: Variance of a plain mean of the workers' mean gradients over that of the weighted one, in the mean.
        balanced: Ways to share a long run's work, as speeds drift and workers come and go.
        leaves: Step at which a worker leaves.
        joins: Step at which one joins.
        asynchronous: Equal shares and nobody too far ahead, by bound.
        synchronous_s: Seconds to the same loss by ways to share, waiting for all in every step.
        synchronous_per_s: Samples a second of the same.
    """

    unit: ClassVar[str] = "s"
    gain: Gain
    gains: tuple[Gain, ...]
    equal_s: float
    capped_s: float
    proportional_s: float
    variance: float
    balanced: tuple[Balanced, ...]
    leaves: int
    joins: int
    asynchronous: tuple[Asynchronous, ...]
    synchronous_s: Mapping[str, float]
    synchronous_per_s: Mapping[str, float]

    @property
    def finding(self) -> str:
        """The ratio; what is left of it with caps and drift."""
        means = {one.name: float(np.mean(one.step_s)) for one in self.balanced}
        return (
            f"With speeds {self.gain.distribution} of {self.gain.num_workers} workers, equal shares take "
            f"{self.gain.ratio:.2f} times as long as proportional ones (95 % confidence ±{self.gain.ratio_error:.3f}), "
            f"and {self.equal_s / self.capped_s:.2f} times with whole samples under the memory caps; as speeds drift, "
            f"rebalancing takes {format_seconds(means['rebalanced'])} a step, equal shares "
            f"{format_seconds(means['equal'])}."
        )

    @property
    def total(self) -> float:
        """Seconds of a step with equal shares."""
        return self.equal_s

    @property
    def parts(self) -> Mapping[str, float]:
        """The time with proportional shares, the additions by whole samples and caps, and the savings of balancing."""
        return {
            "proportional shares": self.proportional_s,
            "whole samples and caps": self.capped_s - self.proportional_s,
            "saved by balancing": self.equal_s - self.capped_s,
        }

    def tables(self) -> Sequence[Table]:
        """List gains; ways to share; bounds; weights."""
        weights = Table(
            title="Variance of the gradient of a batch in such shares, under the caps:",
            headers=("mean of the workers' mean gradients", "variance"),
            rows=[("weighted by samples", "1"), ("plain", f"{self.variance:.3f}")],
        )
        return [self._gains_table(), self._balanced_table(), self._bounds_table(), weights]

    def _gains_table(self) -> Table:
        rows = [
            (one.distribution, str(one.num_workers), f"{one.ratio:.2f}", f"{one.ratio_error:.3f}")
            for one in (self.gain, *self.gains)
        ]
        headers = ("speeds", "workers", "equal / proportional", "±")
        return Table(title="Time with equal shares over that with proportional ones:", headers=headers, rows=rows)

    def _balanced_table(self) -> Table:
        number = len(self.balanced[0].step_s)
        return table_of(
            f"{number:,} steps; a worker leaves at {self.leaves:,}, one joins at {self.joins:,}:",
            self.balanced,
            {
                "shares": lambda one: one.name,
                "mean step": lambda one: format_seconds(float(np.mean(one.step_s))),
                "95 % of steps under": lambda one: format_seconds(float(np.quantile(one.step_s, 0.95))),
                "one worker the slowest in": lambda one: format_percent(max(one.slowest)),
                "largest move": lambda one: str(one.largest_move),
            },
        )

    def _bounds_table(self) -> Table:
        rows = [
            (f"{name} shares, in step", f"{self.synchronous_per_s[name]:,.0f}", "0", format_seconds(took_s))
            for name, took_s in self.synchronous_s.items()
        ]
        rows += [
            (
                f"equal shares, {_bound_text(one.bound)}",
                f"{one.samples_per_s:,.0f}",
                f"{one.staleness:.1f}",
                "not reached" if math.isnan(one.to_target_s) else format_seconds(one.to_target_s),
            )
            for one in self.asynchronous
        ]
        headers = ("way", "samples a second", "staleness (updates)", f"time to {_TARGET:g} of the loss")
        return Table(title="Waiting less instead, workers of constant speed:", headers=headers, rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Draw step times; gains; who is the slowest; loss with a bound."""
        return [self._steps_chart(), self._gains_chart(), self._slowest_chart(), self._loss_chart()]

    def _steps_chart(self) -> LineChart:
        number = len(self.balanced[0].step_s)
        width = max(1, number // 60)
        at = list(range(0, number - width + 1, width))
        series = [
            Series(name=one.name, x=at, y=[1e3 * float(np.mean(one.step_s[begin : begin + width])) for begin in at])
            for one in self.balanced
        ]
        means = {one.name: float(np.mean(one.step_s)) for one in self.balanced}
        return LineChart(
            slug="steps",
            title=f"Rebalancing saves {format_percent(1 - means['rebalanced'] / means['equal'], digits=0)} of a step",
            caption=f"Step time by step, means of {width}, while speeds drift and a worker leaves and another joins.",
            x=Axis(title="step"),
            y=Axis(title="step time (ms)"),
            series=series,
            marks={"a worker leaves": self.leaves, "one joins": self.joins},
        )

    def _gains_chart(self) -> LineChart:
        series = []
        for count in _COUNTS:
            of_it = [one for one in self.gains if one.num_workers == count and one.distribution.startswith("logn")]
            low, high = ([one.ratio + sign * one.ratio_error for one in of_it] for sign in (-1, 1))
            series += lines_of(_CVS, {f"{count} workers": [one.ratio for one in of_it]}, low=low, high=high)
        return LineChart(
            slug="gain",
            title="The more workers, and the more they differ, the more balancing saves",
            caption="Time with equal shares over that with proportional ones; lognormal speeds, 95 % confidence.",
            x=Axis(title="coefficient of variation of the speeds"),
            y=Axis(title="equal / proportional"),
            series=series,
        )

    def _slowest_chart(self) -> LineChart:
        workers = list(range(len(self.balanced[0].slowest)))
        worst = {one.name: max(one.slowest) for one in self.balanced}
        return LineChart(
            slug="slowest",
            title=f"With equal shares one worker holds up {format_percent(worst['equal'], digits=0)} of the steps",
            caption="Share of the steps in which each worker is the slowest; the last one joins late.",
            x=Axis(title="worker"),
            y=Axis(title="steps (%)"),
            series=[
                Series(name=one.name, x=workers, y=[100 * share for share in one.slowest], style="points", hollow=True)
                for one in self.balanced
                if one.name in ("equal", "rebalanced")
            ],
        )

    def _loss_chart(self) -> LineChart:
        fastest = min(self.asynchronous, key=lambda one: math.inf if math.isnan(one.to_target_s) else one.to_target_s)
        in_step = format_seconds(self.synchronous_s["proportional"])
        return LineChart(
            slug="bounds",
            title=f"With proportional shares in step the loss is down in {in_step}; no asynchronous run gets it down"
            if math.isnan(fastest.to_target_s)
            else f"With {_bound_text(fastest.bound)} the loss is down in {format_seconds(fastest.to_target_s)}, "
            f"proportional shares in {in_step}",
            caption="Loss over the first one by time; equal shares, nobody more than the bound ahead.",
            x=Axis(title="time (s)"),
            y=Axis(title="loss / first loss", log=True),
            series=[Series(name=_bound_text(one.bound), x=one.at_s, y=one.losses) for one in self.asynchronous],
            marks={f"{name} shares, in step": took_s for name, took_s in self.synchronous_s.items()},
        )


def _bound_text(bound: float) -> str:
    return "no bound" if math.isinf(bound) else f"a bound of {bound:g}"


def load_balancing(
    *,
    distribution: Distribution = "uniform",
    low: Annotated[float, Within(1e-3, 1e3), OnlyWith("distribution", "uniform")] = 0.7,
    high: Annotated[float, Within(1e-3, 1e3), OnlyWith("distribution", "uniform")] = 1.3,
    cv: Annotated[float, Within(0, 10), OnlyWith("distribution", "lognormal")] = 0.3,
    num_workers: Annotated[int, Within(2, 1024)] = 16,
    batch_size: Annotated[int, Within(1, 10**6)] = 32,
    sample_s: Annotated[float, DURATION] = 1e-3,
    cap: Annotated[int, Within(1, 10**9)] = 40,
    jitter: Annotated[float, Within(0, _MOST_JITTER)] = 0.05,
    drift_steps: Annotated[float, Within(1e-3, 1e9)] = 300.0,
    rebalance_every: Annotated[int, Within(1, 10**9)] = 10,
    largest_move: Annotated[int, Within(1, 10**9)] = 2,
    bounds: Annotated[tuple[float, ...], AT_LEAST_0] = (0.0, 4.0, 16.0, math.inf),
    num_steps: Annotated[int, Within(1, 10_000)] = 900,
    num_clusters: Annotated[int, Within(1, 100_000)] = 20_000,
    seed: int = 0,
) -> LoadBalancing:
    """Compute step times with equal, proportional and rebalanced shares, and with a bound instead.

    >>> answer = load_balancing(num_clusters=4000, num_steps=60)
    >>> round(answer.gain.ratio, 1), answer.gain.ratio_error < 0.01
    (1.4, True)

    Args:
        distribution: Distribution of the speeds, with a mean of about 1.
        low: Slowest speed, if uniform.
        high: Fastest speed, if uniform.
        cv: Coefficient of variation, if lognormal.
        num_workers: Workers.
        batch_size: Samples of one worker's step with equal shares: the global batch over the workers.
        sample_s: Seconds of one sample on a worker of speed 1.
        cap: Most samples that a worker's memory holds.
        jitter: Coefficient of variation of what nobody can plan for.
        drift_steps: Steps after which speeds have forgotten what they were.
        rebalance_every: Steps between two changes of the shares.
        largest_move: Samples that a worker's share may change by at one of them.
        bounds: Largest leads of the asynchronous alternative, in steps.
        num_steps: Steps of the long run.
        num_clusters: Drawn for the mean ratio.
        seed: Seed of what is drawn.

    Raises:
        ConfigError: A number out of range, or caps too small for the global batch.
    """
    if low > high:
        raise ArgumentError(f"`low` is {low:g} and `high` is {high:g}; write at most {high:g} for `low`")
    _check_numbers(cap=cap, batch_size=batch_size, bounds=bounds, num_workers=num_workers, num_clusters=num_clusters)
    quantile, name = _quantile(distribution, low=low, high=high, cv=cv)
    rng = np.random.default_rng(seed)
    global_batch = batch_size * num_workers
    clusters = quantile(rng.standard_normal((num_clusters, num_workers)))
    # samples are dealt one by one in some of the clusters
    few = clusters[:_NUM_CAPPED]
    dealt = [divide(global_batch, speeds, cap=cap) for speeds in few]
    capped_s = [(own * sample_s / speeds).max() for own, speeds in zip(dealt, few, strict=True)]
    run = DriftingRun.drawn(
        quantile, num_workers=num_workers, num_steps=num_steps, drift_steps=drift_steps, jitter=jitter, rng=rng
    )
    steady = run.constant_speeds(_ASYNCHRONOUS_STEPS)
    in_step_s = _in_step_s(steady, batch_size=batch_size, sample_s=sample_s)
    return LoadBalancing(
        gain=_gain(name, clusters),
        gains=_gains(rng, num_clusters),
        equal_s=float(np.mean(batch_size * sample_s / few.min(axis=1))),
        capped_s=float(np.mean(capped_s)),
        proportional_s=float(np.mean(global_batch * sample_s / few.sum(axis=1))),
        variance=float(np.mean([unweighted_variance(np.maximum(own, 1)) for own in dealt])),
        balanced=run.balanced(
            total=global_batch, sample_s=sample_s, cap=cap, every=rebalance_every, largest_move=largest_move
        ),
        leaves=run.leaves,
        joins=run.joins,
        asynchronous=_asynchronous(steady, bounds, batch_size=batch_size, sample_s=sample_s),
        synchronous_s={name: _needed_steps() * step_s for name, step_s in in_step_s.items()},
        synchronous_per_s={name: global_batch / step_s for name, step_s in in_step_s.items()},
    )


def _check_numbers(*, cap: int, batch_size: int, bounds: Sequence[float], num_workers: int, num_clusters: int) -> None:
    if cap < batch_size:
        raise ArgumentError(
            f"`cap` is {cap} and `batch_size`, the equal share, is {batch_size}; write {batch_size} or more for `cap`"
        )
    for bound in bounds:
        if not (bound >= 0 and (math.isinf(bound) or bound == int(bound))):
            raise ArgumentError(f"`bounds` has {bound:g}; write whole numbers from 0 on, or inf for none")
    if num_clusters * num_workers > _MOST_DRAWS:
        raise ArgumentError(
            f"`num_clusters` is {num_clusters} with `num_workers` of {num_workers}, which takes too long; "
            f"write at most {_MOST_DRAWS // num_workers} for `num_clusters`"
        )


def _quantile(
    distribution: Distribution, *, low: float, high: float, cv: float
) -> tuple[Callable[[Speeds], Speeds], str]:
    """Return the function from a standard normal number to a speed, and the distribution's name with its parameters."""
    if distribution == "uniform":
        from scipy.special import ndtr  # a tenth of a second

        return lambda z: low + (high - low) * ndtr(z), f"uniform in [{low:g}, {high:g}]"
    return lambda z: np.exp(math.sqrt(math.log1p(cv * cv)) * z), f"lognormal, CV {cv:g}"


def _gain(distribution: str, clusters: Speeds) -> Gain:
    """Compute the gain over drawn clusters, the rows of ``clusters``."""
    ratios = clusters.mean(axis=1) / clusters.min(axis=1)
    error = 1.96 * float(ratios.std()) / math.sqrt(len(ratios))
    return Gain(distribution=distribution, num_workers=clusters.shape[1], ratio=float(ratios.mean()), ratio_error=error)


def _gains(rng: np.random.Generator, num_clusters: int) -> tuple[Gain, ...]:
    """Compute the gains of lognormal speeds, with as many workers and spreads as in the picture."""
    found = []
    for count in _COUNTS:
        z = rng.standard_normal((num_clusters, count))
        found += [_gain(f"lognormal, CV {cv:g}", np.exp(math.sqrt(math.log1p(cv * cv)) * z)) for cv in _CVS]
    return tuple(found)


def _asynchronous(
    speeds: Speeds, bounds: Sequence[float], *, batch_size: int, sample_s: float
) -> tuple[Asynchronous, ...]:
    """Descend with equal shares under each of the bounds; ``speeds`` are (workers, steps)."""
    return tuple(
        asynchronous_descent(
            batch_size * sample_s / speeds,
            bound=bound,
            batch_size=batch_size,
            eigenvalues=_EIGENVALUES,
            step=_STEP,
            target=_TARGET,
        )
        for bound in bounds
    )


def _needed_steps() -> int:
    """Count the steps to the target with the mean gradient of each."""
    steps = np.arange(1, 100_000)
    decay = (1 - _STEP * _EIGENVALUES) ** 2
    return next(int(step) for step in steps if float(_EIGENVALUES @ decay**step) <= _TARGET * _EIGENVALUES.sum())


def _in_step_s(speeds: Speeds, *, batch_size: int, sample_s: float) -> dict[str, float]:
    """Return the mean seconds of a step by ways to share, waiting for all; ``speeds`` are (workers, steps)."""
    global_batch = batch_size * speeds.shape[0]
    pace = speeds.mean(axis=1)
    shares = {"equal": np.full(len(pace), float(batch_size)), "proportional": global_batch * pace / pace.sum()}
    return {name: float(np.mean((own[:, None] * sample_s / speeds).max(axis=0))) for name, own in shares.items()}
