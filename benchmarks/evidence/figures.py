"""Seed by seed against BSP: means, deviations, intervals and tests."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from plesio.core.results import RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The mean difference of paired values, half of its 95 % interval, and the p value of Student's paired test."""

    mean: float
    half_width: float
    p: float

    def text(self, form: str = "+.2f") -> str:
        """``mean ± half width``."""
        return f"{self.mean:{form}} ± {self.half_width:{form.lstrip('+')}}"


def difference(values: Sequence[float], others: Sequence[float]) -> Difference:
    """How much larger ``values`` are, in pairs."""
    differences = [one - other for one, other in zip(values, others, strict=True)]
    mean, count = statistics.fmean(differences), len(differences)
    spread = statistics.stdev(differences) if count > 1 else 0.0
    if spread == 0:
        return Difference(mean=mean, half_width=math.nan if count == 1 else 0.0, p=1.0)
    error = spread / math.sqrt(count)
    return Difference(
        mean=mean,
        half_width=float(stats.t.ppf(0.975, count - 1)) * error,
        p=float(stats.ttest_1samp(differences, 0.0).pvalue),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A policy's runs against BSP's of the same seeds.

    Attributes:
        metric: Mean of the final metrics; accuracies in percent.
        deviation: Their standard deviation over the seeds.
        metric_change: Against BSP, in points, or for a perplexity in percent of it.
        bytes: Sent, as a share of BSP's.
        time: Of the run, as a share of BSP's.
        to_target_s: Mean seconds to the target; inf where a run does not reach it.
    """

    metric: float
    deviation: float
    metric_change: Difference
    bytes: float
    time: float
    to_target_s: float


def compare(runs: Sequence[RunResult], bsp: Sequence[RunResult]) -> Comparison:
    """Put together the runs of a policy, in the order of BSP's seeds."""
    assert [run.seed for run in runs] == [run.seed for run in bsp], "paired"
    metrics, strict = final_metrics(runs), final_metrics(bsp)
    if runs[0].metric_goal == "max":
        change = difference(metrics, strict)
    else:
        relative = [100 * (one / other - 1) for one, other in zip(metrics, strict, strict=True)]
        change = difference(relative, [0.0] * len(relative))
    return Comparison(
        metric=statistics.fmean(metrics),
        deviation=statistics.stdev(metrics) if len(metrics) > 1 else 0.0,
        metric_change=change,
        bytes=sum(run.bytes_sent_total for run in runs) / sum(run.bytes_sent_total for run in bsp),
        time=sum(run.wall_s for run in runs) / sum(run.wall_s for run in bsp),
        to_target_s=statistics.fmean(math.inf if r.time_to_target_s is None else r.time_to_target_s for r in runs),
    )


def final_metrics(runs: Sequence[RunResult]) -> list[float]:
    """Accuracies in percent, anything else as it is; NaN where a run ended in numbers that are not finite."""
    scale = 100.0 if runs[0].metric_goal == "max" else 1.0
    return [scale * (math.nan if run.final_metric is None else run.final_metric) for run in runs]
