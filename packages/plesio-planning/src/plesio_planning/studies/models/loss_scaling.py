"""How gradients fare in 16 bits by their scale, what a dynamic scale costs in skipped steps, and what goes wrong.

A gradient g times a scale S becomes infinite in FP16 where ``S|g| >= 65520``, zero where ``S|g| <= 2^-25``, and loses
precision below 2^-14. Shares follow from the distribution of g in closed form, and real casts stand beside them. A step
of n numbers overflows with ``1 - (1-p)^n``; its gradients are drawn through the largest, the quantile of ``U^(1/n)``.

A *dynamic* scale (by interval) is halved after a step that overflowed, which is skipped, and doubled after
``growth_interval`` steps that did not (Micikevicius et al. 2018). `studies.scaling_runs` has two other rules, and
`studies.half_precision_descent` descends with right and wrong ones.

``docs/planning/studies/loss-scaling.md`` has the model with its sources, its assumptions and its limits.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from plesio.core.charts import Axis, Chart, LineChart, Series, Table
from plesio.core.units import counted, format_percent, format_seconds
from plesio.core.within import DURATION_OR_0, SHARE, Within
from plesio_planning.studies.declared import lines_of
from plesio_planning.studies.half_precision_descent import (
    HANDLINGS,
    LARGEST,
    OVERFLOW_RULES,
    SMALLEST,
    Convergence,
    FrequencyScale,
    LossScale,
    converge,
)
from plesio_planning.studies.scaling_runs import ScalingRun, run_with
from plesio_planning.studies.study import Answer

_SUBNORMAL = 2.0**-14
_POWERS = tuple(range(34))
_NUM_CAST = 20_000
_TOLERATED = 1e-3
"""Share of numbers that may lose bits and of steps that may overflow where a scale is called usable."""
_STANDARD = NormalDist()
_SPIKES = dict.fromkeys((4, 8, 12), -1)
_OVERFLOWING = (0.01, 0.05, 0.2)
"""Shares of the steps that overflow where rules for overflows are compared."""
_PROBLEM: Mapping[str, Any] = {"num_ranks": 4, "dimension": 64, "gradient": 1e-6, "num_steps": 1000}
Rule = Literal["static", "by interval", "by frequency"]
_RULES: Mapping[Rule, str] = {
    "static": "a static scale",
    "by interval": "a dynamic scale",
    "by frequency": "a scale that goes by the frequency of overflows",
}
_MISTAKES = ("clipped before unscaling", "found_inf not shared")
_DRAWN = ("FP32", "FP16, unscaled", "FP16, static 2^15", "FP16, dynamic", *_MISTAKES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """How large gradients are: ``|g| = exp(m + s z)`` (lognormal) or ``|g| = s |z|``, with z standard normal.

    Attributes:
        name: Name of the distribution, with its parameters.
        log_mean: m; None for the normal distribution.
        deviation: s.
    """

    name: str
    log_mean: float | None
    deviation: float

    def share_above(self, size: float) -> float:
        """Share of the gradients that are larger."""
        if self.log_mean is None:
            return 2 * _STANDARD.cdf(-size / self.deviation)
        return _STANDARD.cdf(-(math.log(size) - self.log_mean) / self.deviation)

    def quantile_above(self, share: float) -> float:
        """Return the size that so many exceed."""
        if self.log_mean is None:
            return -self.deviation * _STANDARD.inv_cdf(share / 2)
        return math.exp(self.log_mean - self.deviation * _STANDARD.inv_cdf(share))

    def draw(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Draw so many gradients."""
        z = rng.standard_normal(number)
        return self.deviation * z if self.log_mean is None else np.exp(self.log_mean + self.deviation * z)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The fate of one distribution's gradients at one scale.

    Attributes:
        power: The scale's power of 2.
        overflow: Share that becomes infinite.
        vanished: Share that becomes zero.
        subnormal: Share that keeps fewer bits, those that vanish not counted.
        step_overflow: Share of the steps in which any becomes infinite.
        cast_overflow: Share of drawn gradients that a real cast made infinite.
        cast_overflow_error: 1.96 standard errors of it.
        cast_vanished: Share of drawn gradients that a real cast made zero.
    """

    distribution: str
    power: int
    overflow: float
    vanished: float
    subnormal: float
    step_overflow: float
    cast_overflow: float
    cast_overflow_error: float
    cast_vanished: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaling(Answer):
    """The effects of scales on gradients.

    Attributes:
        shares: Shares by distribution and scale.
        distribution: That of the run, its name.
        rule: Rule of the scale that the answer is for.
        runs: The run by rule of the scale.
        convergence: Convergence of a small problem, by how its gradients are handled.
        overflow_rules: Mean loss of the second half of a run, over the first loss, by the share of the steps that
            overflow and what is done about it.
        step_s: Seconds of a step.
        growth_interval: Steps without overflow before the scale is doubled.
    """

    unit: ClassVar[str] = "s"
    shares: tuple[Shares, ...]
    distribution: str
    rule: Rule
    runs: Mapping[Rule, ScalingRun]
    convergence: tuple[Convergence, ...]
    overflow_rules: Mapping[float, Mapping[str, float]]
    step_s: float
    growth_interval: int

    def at(self, power: int, *, distribution: str | None = None) -> Shares:
        """Return the shares at ``2^power``; of the run's distribution, if none is named.

        Raises:
            KeyError: There is none.
        """
        name = self.distribution if distribution is None else distribution
        return {(one.distribution, one.power): one for one in self.shares}[name, power]

    @property
    def run(self) -> ScalingRun:
        """The run under the rule that was asked for."""
        return self.runs[self.rule]

    @property
    def usable(self) -> tuple[int, ...]:
        """Powers of 2 at which under 0.1 % lose bits or vanish, and under 0.1 % of the steps overflow."""
        return tuple(
            one.power
            for one in self.shares
            if one.distribution == self.distribution
            and max(one.vanished + one.subnormal, one.step_overflow) < _TOLERATED
        )

    @property
    def finding(self) -> str:
        """The usable scales; what a dynamic one skips."""
        scales = f"Scales from 2^{self.usable[0]} to 2^{self.usable[-1]} keep" if self.usable else "No scale keeps"
        run = self.run
        rate = f"one step in {1 / run.steady:,.0f}" if run.steady else "no step"
        lost_s = (run.searching + run.skipped) * self.step_s
        return (
            f"{scales} the bits of all but {format_percent(_TOLERATED)} of {self.distribution}; {_RULES[self.rule]} "
            f"skips {counted(run.searching, 'step')} {'at first' if self.rule == 'static' else 'while it searches'} "
            f"and then {rate}: {format_seconds(lost_s)} of {format_seconds(self.total)}."
        )

    @property
    def total(self) -> float:
        """Seconds of the run."""
        return sum(self.parts.values())

    @property
    def parts(self) -> Mapping[str, float]:
        """Steps that counted, and those that did not."""
        return {
            "applied steps": self.run.applied * self.step_s,
            "skipped while searching": self.run.searching * self.step_s,
            "skipped later": self.run.skipped * self.step_s,
        }

    def tables(self) -> Sequence[Table]:
        """List shares by scale; rules of the scale; convergence by handling; what to do about overflows."""
        return [self._shares_table(), self._scales_table(), self._convergence_table(), self._rules_table()]

    def _scales_table(self) -> Table:
        rows = [
            (
                name,
                f"{run.searching:,}",
                f"{run.skipped:,}",
                format_seconds((run.searching + run.skipped) * self.step_s),
                f"2^{run.powers[-1]:.4g}",
            )
            for name, run in self.runs.items()
        ]
        headers = ("scale", "skipped while searching", "skipped later", "time lost", "scale at the end")
        return Table(title=f"The same {self._num_steps:,} steps by what moves the scale:", headers=headers, rows=rows)

    def _rules_table(self) -> Table:
        rules = list(next(iter(self.overflow_rules.values())))
        rows = [
            (f"{100 * share:g} %", *(f"{losses[rule]:.2g}" for rule in rules))
            for share, losses in self.overflow_rules.items()
        ]
        return Table(
            title="Loss over the first, mean of steps 500 to 1,000, by what is done about an overflow:",
            headers=("steps that overflow", *rules),
            rows=rows,
        )

    def _shares_table(self) -> Table:
        rows = [
            (
                one.distribution,
                f"2^{one.power}",
                format_percent(one.overflow, digits=2),
                f"{format_percent(one.cast_overflow, digits=2)} ± {format_percent(one.cast_overflow_error, digits=2)}",
                format_percent(one.vanished, digits=2),
                format_percent(one.subnormal, digits=2),
                format_percent(one.step_overflow, digits=2),
            )
            for one in self.shares
            if one.power in (0, 8, 15, 18, 24, 26, 28, 30)
        ]
        headers = ("gradients", "scale", "infinite", "of real casts", "zero", "subnormal", "steps that overflow")
        return Table(title="In FP16 (± is a 95 % confidence interval):", headers=headers, rows=rows)

    def _convergence_table(self) -> Table:
        rows = [
            (one.name, f"{one.final_loss:.2g}", format_percent(one.overflowed, digits=2), f"{one.scales_apart:g}x")
            for one in self.convergence
        ]
        steps = self.convergence[0].steps[-1]
        headers = ("handling", "loss / first", "steps that overflow", "ranks' scales apart")
        return Table(title=f"A quadratic after {steps:,} steps of the same length:", headers=headers, rows=rows)

    def charts(self) -> Sequence[Chart]:
        """Draw shares by scale; convergence; the scales of the run."""
        return [self._shares_chart(), self._convergence_chart(), self._scale_chart()]

    def _shares_chart(self) -> LineChart:
        series = []
        for name in dict.fromkeys(one.distribution for one in self.shares):
            of_it = [one for one in self.shares if one.distribution == name]
            powers = [one.power for one in of_it]
            line = f"{name}: infinite"
            series += lines_of(powers, {line: [100 * one.overflow for one in of_it]})
            series += lines_of(powers, points={f"{name}: cast": [100 * one.cast_overflow for one in of_it]}, group=line)
            lost = [100 * (one.vanished + one.subnormal) for one in of_it]
            series += lines_of(powers, dashed={f"{name}: subnormal or zero": lost})
        known = f"Usable from 2^{self.usable[0]} to 2^{self.usable[-1]}" if self.usable else "No scale is usable"
        return LineChart(
            slug="shares",
            title=f"{known} for {self.distribution}",
            caption="Share of gradients that FP16 makes infinite, or gives fewer bits, by scale; points: real casts.",
            x=Axis(title="scale (power of 2)"),
            y=Axis(title="gradients (%)"),
            series=series,
        )

    def _convergence_chart(self) -> LineChart:
        by_name = {one.name: one for one in self.convergence}
        unscaled = by_name["FP16, unscaled"].final_loss
        return LineChart(
            slug="convergence",
            title=f"Unscaled FP16 stops at {format_percent(unscaled)} of the first loss",
            caption="Loss over the first one by step, for ways to handle gradients; there are three spikes. BF16 and a "
            "static 2^24 go as FP32 does.",
            x=Axis(title="step"),
            y=Axis(title="loss / first loss", log=True),
            series=[
                Series(name=one.name, x=one.steps, y=one.losses, style="dashed" if one.name == "FP32" else "line")
                for one in self.convergence
                if one.name in _DRAWN
            ],
        )

    def _scale_chart(self) -> LineChart:
        skipped = {name: run.searching + run.skipped for name, run in self.runs.items()}
        return LineChart(
            slug="dynamic",
            title=f"A scale by interval skips {skipped['by interval']:,} of {self._num_steps:,} steps, by frequency "
            f"{skipped['by frequency']:,}",
            caption=f"The scale by step; it is doubled after {self.growth_interval:,} steps without an overflow, or "
            "with few.",
            x=Axis(title="step"),
            y=Axis(title="scale (power of 2)"),
            series=[Series(name=name, x=run.at, y=run.powers) for name, run in self.runs.items()],
        )

    @property
    def _num_steps(self) -> int:
        return self.run.applied + self.run.searching + self.run.skipped


def loss_scaling(
    *,
    distribution: Literal["normal", "lognormal"] = "normal",
    standard_deviation: Annotated[float, Within(1e-30, 1e30)] = 1e-4,
    log_mean: Annotated[float, Within(-1e3, 1e3)] = 0.0,
    log_deviation: Annotated[float, Within(1e-3, 1e2)] = 1.0,
    num_elements: Annotated[int, Within(1, 10**12)] = 1_000_000,
    num_workers: Annotated[int, Within(1, 2**20)] = 4,
    initial_scale: Annotated[float, Within(2.0**-60, 2.0**60)] = 65536.0,
    rule: Rule = "by interval",
    growth_interval: Annotated[int, Within(1, 10**9)] = 2000,
    largest_share: Annotated[float, SHARE] = 1e-3,
    num_steps: Annotated[int, Within(1, 10**6)] = 100_000,
    step_s: Annotated[float, DURATION_OR_0] = 0.1,
    seed: int = 0,
) -> LossScaling:
    """Compute overflow and underflow by scale, a run with a dynamic scale, and convergence by handling of gradients.

    >>> answer = loss_scaling(num_steps=10_000)
    >>> [round(answer.at(power).overflow, 3) for power in (26, 28, 30)], answer.usable[-1]
    ([0.0, 0.015, 0.542], 26)

    Args:
        distribution: Distribution of the gradients of the run.
        standard_deviation: Standard deviation of normal gradients.
        log_mean: Mean of the logarithm of lognormal ones.
        log_deviation: Its standard deviation.
        num_elements: Elements of a worker's gradient.
        num_workers: Workers, any of which may overflow.
        initial_scale: The scale at first.
        rule: Rule that moves the scale: nothing, every overflow and an interval without, or how often steps overflow.
        growth_interval: Steps after which a scale is doubled: without an overflow, or with few by frequency.
        largest_share: Share of that interval's steps from which on a scale by frequency is halved.
        num_steps: Steps of the run.
        step_s: Seconds of a step, applied or skipped.
        seed: Seed of what is drawn.
    """
    ranges = {
        "normal": Range(name=f"N(0, {standard_deviation:g})", log_mean=None, deviation=standard_deviation),
        "lognormal": Range(
            name=f"lognormal({log_mean:g}, {log_deviation:g})", log_mean=log_mean, deviation=log_deviation
        ),
    }
    rng = np.random.default_rng(seed)
    number = num_elements * num_workers
    of_run = ranges[distribution]
    shares = tuple(_shares(one, power, number=number, rng=rng) for one in ranges.values() for power in _POWERS)
    scales: dict[Rule, LossScale | FrequencyScale] = {
        "static": LossScale(initial_scale, growth_interval=None),
        "by interval": LossScale(initial_scale, growth_interval=growth_interval),
        "by frequency": FrequencyScale(initial_scale, interval=growth_interval, largest_share=largest_share),
    }
    drawn = rng.bit_generator.state
    runs = {}
    for name, scale in scales.items():
        rng.bit_generator.state = drawn  # the same steps under each rule
        runs[name] = run_with(
            lambda u: of_run.quantile_above(-math.expm1(math.log(u) / number)),
            scale=scale,
            num_steps=num_steps,
            rng=rng,
        )
    return LossScaling(
        shares=shares,
        rule=rule,
        distribution=of_run.name,
        runs=runs,
        convergence=_converged(growth_interval),
        overflow_rules={share: _by_rule(share, seed) for share in _OVERFLOWING},
        step_s=step_s,
        growth_interval=growth_interval,
    )


@functools.cache
def _converged(growth_interval: int) -> tuple[Convergence, ...]:
    return tuple(
        converge(handling, growth_interval=growth_interval, spikes=_SPIKES, spike=10.0, **_PROBLEM)
        for handling in HANDLINGS
    )


@functools.cache
def _by_rule(share: float, seed: int) -> Mapping[str, float]:
    """Return the mean loss of the second half of a run, over the first loss, by the treatment of overflows."""
    rng = np.random.default_rng(seed)
    steps = np.flatnonzero(rng.random(_PROBLEM["num_steps"]) < share)
    spikes = dict(zip(steps.tolist(), rng.integers(0, _PROBLEM["dimension"], len(steps)).tolist(), strict=True))
    runs = [
        converge(handling, growth_interval=1, spikes=spikes, spike=math.inf, **_PROBLEM) for handling in OVERFLOW_RULES
    ]
    return {run.name: float(np.mean(run.losses[len(run.losses) // 2 :])) for run in runs}


def _shares(sizes: Range, power: int, *, number: int, rng: np.random.Generator) -> Shares:
    scale = 2.0**power
    overflow = sizes.share_above(LARGEST / scale)
    vanished = 1 - sizes.share_above(SMALLEST / scale)
    with np.errstate(over="ignore"):
        cast = (sizes.draw(_NUM_CAST, rng) * scale).astype(np.float16)
    cast_overflow = float(np.isinf(cast).mean())
    return Shares(
        distribution=sizes.name,
        power=power,
        overflow=overflow,
        vanished=vanished,
        subnormal=1 - vanished - sizes.share_above(_SUBNORMAL / scale),
        step_overflow=1.0 if overflow == 1 else -math.expm1(number * math.log1p(-overflow)),
        cast_overflow=cast_overflow,
        cast_overflow_error=1.96 * math.sqrt(cast_overflow * (1 - cast_overflow) / _NUM_CAST),
        cast_vanished=float((cast == 0).mean()),
    )
