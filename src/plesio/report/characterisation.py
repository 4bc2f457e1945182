"""A characterisation as data: the comparison of every combination, and what may be claimed of each strategy in it.

Claims are of one policy against the combination's baseline. Those about the same figure are one family, whichever
combination they are of: their p values are adjusted together (`plesio.report.inference`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from plesio.core.combination import Combination, Part
from plesio.core.errors import DataError
from plesio.core.results import RunResult
from plesio.report import source_004 as source
from plesio.report.inference import Judgement, adjusted, judge_difference, judge_ratio, judge_spread
from plesio.report.model import Comparison, PolicySummary
from plesio.report.statistics import Spread
from plesio.report.summarise import compare_runs

__all__ = [
    "STRATEGIES",
    "Characterisation",
    "Claim",
    "compute_step_s",
    "overloads",
    "state_bytes",
    "summarise_characterisation",
]

_OVERLOADED = 1.25

STRATEGIES: Mapping[str, Sequence[str]] = {
    source.DDP: ("bsp",),
    source.FSDP: ("fsdp",),
    source.SYNCHRONOUS: ("bsp,exchange=store",),
    source.ASYNCHRONOUS: ("asp,rate=undivided",),
    source.MODIFIED: ("modified_async", "asp"),
}
"""The paper's strategies, and the policies that are theirs; the first that was run stands for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A policy against the baseline of its combination.

    Attributes:
        speed: Samples per second over the baseline's.
        metric: Final metric minus the baseline's.
        spread: Standard deviation of the final metric over the baseline's.
    """

    combination: Combination
    policy: str
    baseline: str
    speed: Judgement | None
    metric: Judgement | None
    spread: Judgement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterisation:
    """What was run, and what came out.

    Attributes:
        parts: What was crossed with what.
        settings: The comparison of each combination.
        claims: In the order of the settings.
    """

    parts: Sequence[Part]
    settings: Mapping[Combination, Comparison]
    claims: Sequence[Claim]

    @property
    def num_seeds(self) -> tuple[int, int]:
        """Fewest and most seeds that a policy was finished with."""
        counts = [len(summary.seeds) for one in self.settings.values() for summary in one.policies]
        return min(counts), max(counts)

    def measured(self, *, model: str, workers: int) -> Comparison | None:
        """What was measured of a model with nothing else varied: by real workers if there are any."""
        plain = (Combination(world=world, model=model, workers=workers) for world in ("testbed", "process", "virtual"))
        return next((self.settings[one] for one in plain if one in self.settings), None)

    def summary(self, strategy: str, *, model: str, workers: int) -> PolicySummary | None:
        """A strategy of the paper in that setting; None if it was not run or no run finished."""
        comparison = self.measured(model=model, workers=workers)
        if comparison is None:
            return None
        found = {summary.policy: summary for summary in comparison.policies if summary.seeds}
        return next((found[policy] for policy in STRATEGIES[strategy] if policy in found), None)

    def models(self) -> list[str]:
        """Names of the models, in the order of the runs."""
        return list(dict.fromkeys(combination.model for combination in self.settings))

    def unfinished(self) -> Iterator[str]:
        """A line for each run that did not finish."""
        for combination, comparison in self.settings.items():
            for summary in comparison.policies:
                for seed, status, error in summary.unfinished:
                    yield f"{summary.policy}, {combination.text}, seed {seed}, {status}{f': {error}' if error else '.'}"


def summarise_characterisation(
    parts: Sequence[Part], runs: Mapping[Combination, Sequence[RunResult]]
) -> Characterisation:
    """All figures of a characterisation.

    Raises:
        DataError: There are no runs, or those of a combination cannot be compared.
    """
    if not runs:
        raise DataError("there are no runs to report on; `plesio characterise RECIPE --out DIR` makes some")
    settings = {combination: compare_runs(of_it) for combination, of_it in runs.items()}
    claims = [
        _claim(combination, summary, comparison)
        for combination, comparison in settings.items()
        for summary in comparison.policies
        if summary.policy != comparison.baseline and summary.seeds and comparison.baseline_summary.seeds
    ]
    return Characterisation(parts=parts, settings=settings, claims=_by_family(claims))


def _claim(combination: Combination, summary: PolicySummary, comparison: Comparison) -> Claim:
    baseline = comparison.baseline_summary

    def judged(judge: Callable[..., Judgement | None], ours: Spread | None, theirs: Spread | None) -> Judgement | None:
        return None if ours is None or theirs is None else judge(ours, baseline=theirs)

    return Claim(
        combination=combination,
        policy=summary.policy,
        baseline=comparison.baseline,
        speed=judged(judge_ratio, summary.samples_per_s, baseline.samples_per_s),
        metric=judged(judge_difference, summary.final_metric, baseline.final_metric),
        spread=judged(judge_spread, summary.final_metric, baseline.final_metric),
    )


def _by_family(claims: Sequence[Claim]) -> list[Claim]:
    """The claims with p values adjusted within each of the three families."""
    families = (adjusted([getattr(claim, name) for claim in claims]) for name in ("speed", "metric", "spread"))
    return [
        Claim(
            combination=claim.combination,
            policy=claim.policy,
            baseline=claim.baseline,
            speed=speed,
            metric=metric,
            spread=spread,
        )
        for claim, speed, metric, spread in zip(claims, *families, strict=True)
    ]


def compute_step_s(comparison: Comparison, policy: str) -> float | None:
    """What a worker computed for a step, pacing included; None if no run finished."""
    done = [run for run in comparison.runs if run.policy == policy and run.status == "finished"]
    num_steps = sum(worker.steps for run in done for worker in run.workers)
    return sum(worker.compute_s for run in done for worker in run.workers) / num_steps if num_steps else None


def overloads(found: Characterisation) -> Iterator[tuple[Combination, str, float]]:
    """Where the baseline's workers computed a step for longer than one alone does, by more than a quarter.

    Each is (where, policy, ratio). Steps are paced so that each worker behaves like a machine of its own; there this
    machine was too small or too busy.
    """
    for combination, comparison in found.settings.items():
        alone = found.measured(model=combination.model, workers=1)
        if (
            alone is None
            or alone is comparison
            or combination.world == "virtual"
            or comparison is not found.measured(model=combination.model, workers=combination.workers)
        ):
            continue
        many, one = (compute_step_s(where, comparison.baseline) for where in (comparison, alone))
        if many and one and many > _OVERLOADED * one:
            yield combination, comparison.baseline, many / one


def state_bytes(summary: PolicySummary) -> float | None:
    """What a worker holds of the model: parameters, gradients and optimizer state; None where it was not measured."""
    if not summary.memory:
        return None
    return sum(summary.memory[part] for part in ("parameters", "gradients", "optimizer"))
