"""A characterisation as data: the comparison of every combination, and what may be claimed of each strategy in it.

Claims are of one policy against the combination's baseline. Those about the same figure are one family, whichever
combination they are of: their p values are adjusted together (`plesio.report.inference`).

Two policies that make the same steps by construction (`makes_steps_of_bsp`) end with the same metric, but for
rounding. There is nothing to be found out, so metric and spread of such a pair are not tested and not counted in the
family, which would only make all others harder to show. Their speeds may differ and are tested. What the paper's
modified server wins back of the accuracy of its plain one (Table 7) is a family of its own (`regained`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from plesio.core.combination import Combination, Part
from plesio.core.errors import DataError
from plesio.core.results import RunResult
from plesio.policies import parse_policy
from plesio.policies.compression import NO_COMPRESSION
from plesio.policies.grid import is_grid
from plesio.report.characterisation.paper import PAPER
from plesio.report.inference import Judgement, adjusted, judge_difference, judge_ratio, judge_spread
from plesio.report.model import Comparison, PolicySummary
from plesio.report.statistics import Spread
from plesio.report.summarise import compare_runs

_OVERLOADED = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A policy against the baseline of its combination.

    Attributes:
        speed: Samples per second over the baseline's.
        metric: Final metric minus the baseline's.
        spread: Standard deviation of the final metric over the baseline's.
        same_steps: Whether both make the same steps by construction, so that metric and spread are not tested.
    """

    combination: Combination
    policy: str
    baseline: str
    same_steps: bool
    speed: Judgement | None
    metric: Judgement | None
    spread: Judgement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterisation:
    """A characterisation: its runs and their results."""

    parts: Sequence[Part]
    settings: Mapping[Combination, Comparison]
    claims: Sequence[Claim]

    @property
    def num_seeds(self) -> tuple[int, int]:
        """Fewest and most seeds that a policy was finished with."""
        counts = [len(summary.seeds) for one in self.settings.values() for summary in one.policies]
        return min(counts), max(counts)

    def measured(self, *, model: str, workers: int) -> Comparison | None:
        """Return what was measured of a model with nothing else varied: by real workers if there are any."""
        plain = (Combination(world=world, model=model, workers=workers) for world in ("testbed", "process", "virtual"))
        return next((self.settings[one] for one in plain if one in self.settings), None)

    def summary(self, strategy: str, *, model: str, workers: int) -> PolicySummary | None:
        """Return a strategy of the paper in that setting; None if it was not run or no run finished."""
        comparison = self.measured(model=model, workers=workers)
        if comparison is None:
            return None
        found = {summary.policy: summary for summary in comparison.policies if summary.seeds}
        return next((found[policy] for policy in PAPER.strategies[strategy].policies if policy in found), None)

    def tested(self, figure: Literal["speed", "metric", "spread"]) -> list[tuple[Claim, Judgement]]:
        """List the claims about a figure that have a p value, each with its judgement."""
        judged = ((claim, getattr(claim, figure)) for claim in self.claims)
        return [(claim, one) for claim, one in judged if one is not None and one.p_value is not None]

    def models(self) -> list[str]:
        return list(dict.fromkeys(combination.model for combination in self.settings))

    def unfinished(self) -> Iterator[str]:
        for combination, comparison in self.settings.items():
            yield from comparison.unfinished(f", {combination.text}")


def summarise_characterisation(
    parts: Sequence[Part], runs: Mapping[Combination, Sequence[RunResult]]
) -> Characterisation:
    """Summarise all figures of a characterisation.

    Raises:
        DataError: There are no runs, or those of a combination cannot be compared.
    """
    if not runs:
        raise DataError("there are no runs to report on; `plesio lab characterise RECIPE --out DIR` makes some")
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
    both = (summary.policy, baseline.policy)
    same = all(makes_steps_of_bsp(policy, workers=combination.workers) for policy in both) or (
        _digests(comparison, summary.policy) == _digests(comparison, baseline.policy) != {}
    )

    def judged(judge: Callable[..., Judgement | None], ours: Spread | None, theirs: Spread | None) -> Judgement | None:
        return None if ours is None or theirs is None else judge(ours, baseline=theirs)

    def untested(one: Judgement | None) -> Judgement | None:
        return replace(one, p_value=None, g=None) if same and one is not None else one

    return Claim(
        combination=combination,
        policy=summary.policy,
        baseline=comparison.baseline,
        same_steps=same,
        speed=judged(judge_ratio, summary.samples_per_s, baseline.samples_per_s),
        metric=untested(judged(judge_difference, summary.final_metric, baseline.final_metric)),
        spread=untested(judged(judge_spread, summary.final_metric, baseline.final_metric)),
    )


def _digests(comparison: Comparison, policy: str) -> dict[int, str]:
    """Collect digests of the final parameters by seed; equal ones mean equal steps, as by racks where there is one."""
    return {
        run.seed: run.parameters_sha256
        for run in comparison.runs
        if run.policy == policy and run.status == "finished" and run.parameters_sha256 is not None
    }


def makes_steps_of_bsp(policy: str, *, workers: int) -> bool:
    """Tell whether a policy makes the steps of ``bsp``, but for rounding, whatever the task and the times are.

    Those are: each with the mean gradient of all workers, sent in full and in time. One worker alone is its own mean.

    >>> [makes_steps_of_bsp(policy, workers=4) for policy in ("fsdp", "bsp,exchange=store", "bsp,backup=1", "asp")]
    [True, True, False, False]
    >>> [makes_steps_of_bsp(policy, workers=1) for policy in ("asp", "local_sgd:8", "bsp,compress=qsgd:8", "adaptive")]
    [True, True, False, False]
    """
    if is_grid(policy):
        return False
    means = parse_policy(policy)
    if means.first != means or means.compression != NO_COMPRESSION or means.hook is not None or means.delay:
        return False
    whole = means.period == 1 or means.update == "delta"
    if workers == 1:
        return whole
    return means.synchronous and means.period == 1 and means.update == "gradient" and not getattr(means, "backup", 0)


def _by_family(claims: Sequence[Claim]) -> list[Claim]:
    """Adjust the claims' p values within each of the three families."""
    families = (adjusted([getattr(claim, name) for claim in claims]) for name in ("speed", "metric", "spread"))
    return [
        replace(claim, speed=speed, metric=metric, spread=spread)
        for claim, speed, metric, spread in zip(claims, *families, strict=True)
    ]


def regained(found: Characterisation) -> dict[str, Judgement]:
    """Compare the final metrics of the modified asynchronous server and the plain one with the most workers, by model.

    That the modified one wins accuracy back is the source's main claim (Table 7). The p values of all models are one
    family.
    """
    judged: dict[str, Judgement] = {}
    for model in found.models():
        plain, modified = (
            found.summary(one, model=model, workers=max(PAPER.workers)) for one in PAPER.regained.strategies
        )
        if modified is not None and plain is not None and modified.final_metric and plain.final_metric:
            judged[model] = judge_difference(modified.final_metric, baseline=plain.final_metric)
    return {model: one for model, one in zip(judged, adjusted(list(judged.values())), strict=True) if one is not None}


def compute_step_s(comparison: Comparison, policy: str) -> float | None:
    """Return the seconds that a worker computed for a step, pacing included; None if no run finished."""
    done = [run for run in comparison.runs if run.policy == policy and run.status == "finished"]
    num_steps = sum(worker.steps for run in done for worker in run.workers)
    return sum(worker.compute_s for run in done for worker in run.workers) / num_steps if num_steps else None


def overloads(found: Characterisation) -> Iterator[tuple[Combination, str, float]]:
    """Find where the baseline's workers computed a step for longer than one alone does, by more than a quarter.

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
