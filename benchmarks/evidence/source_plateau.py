"""Is the validation metric a signal of too much slack? Rules on recorded curves, beside the trial rule on the loss.

Each run is BSP for a fifth of its steps and then under one static policy to its end; a run of BSP alone is changed to
nothing else. A run is *harmed* or *healthy* by how far below BSP of the same seed it ends (`Curves`); those between are
left out. A rule sees what was recorded and names the step of its first alarm after the change. An alarm in the first
half of what is left is *in time*: there is something left to save.

The parameters of a rule are those with the most harmed runs found in time on the development seeds among those with at
most a tenth of the healthy runs alarmed; the table is of other seeds. The trial rule is as adaptive has it, on the mean
losses of reviews of 8 steps; it was chosen before, on other runs.
"""

import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from curve_rules import REVIEW, Case, Rule, fall, oscillation, stall, trial
from settings import flat_cluster, recipe_of

from plesio.core.results import Evaluation, RunResult
from plesio.policies.adaptive.numbers import Numbers

sys.path.insert(0, str(Path(__file__).parents[1]))
from kept_runs import keep_runs
from record import print_table

__all__ = ["plateau"]

MOST_FALSE = 0.1
DEVELOPMENT_SEEDS = (100, 101)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Runs of a task whose policy changes once.

    Attributes:
        task: As in a recipe, with the batch of one worker.
        change: The step after which the policy is another.
        harm: Points below BSP's end above which a run is harmed.
        healthy: Points below it up to which it is healthy.
    """

    task: Mapping[str, Any]
    num_workers: int
    rounds: int
    change: int
    loose: tuple[str, ...]
    harm: float
    healthy: float

    @property
    def round_samples(self) -> int:
        """Samples of a step of all workers."""
        return self.num_workers * int(self.task["batch_size"])


CURVES: Mapping[str, Curves] = {
    "digits": Curves(
        task={
            "name": "optimizers:with_optimizer",
            "batch_size": 16,
            "options": {"of": "digits", "optimizer": "momentum", "learning_rate": 0.3},
        },
        num_workers=8,
        rounds=120,
        change=24,
        loose=("local_sgd:4", "local_sgd:16"),
        harm=2.0,
        healthy=1.0,
    ),
    "stdlib_lm": Curves(
        task={
            "name": "stdlib_lm",
            "batch_size": 4,
            "options": {"width": 48, "depth": 1, "context": 64, "corpus_bytes": 1_000_000, "learning_rate": 1.2e-2},
        },
        num_workers=8,
        rounds=240,
        change=48,
        loose=("bsp,compress=qsgd:8", "local_sgd:8", "ssp:5,period=3", "asp"),
        harm=5.0,
        healthy=2.5,
    ),
}
"""Points are percent of accuracy, and percent of perplexity (a hundred times its logarithm)."""


GRIDS: Mapping[str, tuple[Callable[[int, float], Rule], Sequence[int], Sequence[float]]] = {
    "plateau": (stall, (2, 4, 6, 8, 12, 16), (0.0, 1.0, 2.0, 4.0)),
    "oscillation": (oscillation, (4, 6, 8, 12), (1.5, 2.0, 3.0, 4.0, 6.0)),
    "fall": (fall, (1, 2, 4), (1.0, 2.0, 4.0, 8.0)),
}


def plateau(*, seeds: Sequence[int], out: Path) -> None:
    """Which rule finds the runs that a loose policy harms, and which healthy ones it alarms."""
    known = list(_cases(DEVELOPMENT_SEEDS, out=out))
    unseen = list(_cases(seeds, out=out))
    for name, cases in (("development", known), ("report", unseen)):
        harmed, healthy = _harmed(cases), _healthy(cases)
        print(
            f"\n{name}: {len(harmed)} harmed, {len(healthy)} healthy, {len(cases) - len(harmed) - len(healthy)} between"
        )
        print("  harmed: " + "; ".join(f"{case.name} (-{case.lost:.1f})" for case in harmed))
    rules: dict[str, Rule] = {
        "loss, trial of 4 reviews as it is": trial(Numbers()),
        "loss, trial of 8 reviews": trial(Numbers(trial=8)),
    }
    for name, (make_rule, counts, sizes) in GRIDS.items():
        (count, size), rule = _best(make_rule, list(product(counts, sizes)), known)
        rules[f"{name}({count}, {size:g})"] = rule
    rows = []
    for name, rule in rules.items():
        cells = [
            _counted(rule, cases, late=late) for cases in (_harmed(unseen), _healthy(unseen)) for late in (False, True)
        ]
        by_task = Counter(case.task for case in _healthy(unseen) if rule(case) < math.inf)
        rows.append([name, *cells, ", ".join(f"{task} {n}" for task, n in by_task.items())])
    columns = ["rule", "harmed, in time", "by the end", "healthy, alarm by half", "by the end", "of them"]
    print_table("", columns=columns, rows=rows)


def _best(
    make_rule: Callable[[int, float], Rule], grid: Sequence[tuple[int, float]], cases: Sequence[Case]
) -> tuple[tuple[int, float], Rule]:
    """By what is found in time, then by false alarms; a rule that alarms too many healthy runs comes last."""

    def worth(place: tuple[int, float]) -> tuple[float, ...]:
        rule = make_rule(*place)
        found, wrong = (_share(rule, some) for some in (_harmed(cases), _healthy(cases)))
        return (-wrong, found) if wrong > MOST_FALSE else (1.0, found, -wrong)

    best = max(grid, key=worth)
    return best, make_rule(*best)


def _share(rule: Rule, cases: Sequence[Case]) -> float:
    return sum(rule(case) <= case.deadline for case in cases) / max(1, len(cases))


def _counted(rule: Rule, cases: Sequence[Case], *, late: bool) -> str:
    number = sum(rule(case) <= (case.last if late else case.deadline) for case in cases)
    return f"{number} of {len(cases)}"


def _harmed(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case.harmed]


def _healthy(cases: Sequence[Case]) -> list[Case]:
    return [case for case in cases if case.healthy]


def _cases(seeds: Sequence[int], *, out: Path) -> Iterator[Case]:
    for name, curves in CURVES.items():
        recipe = recipe_of(
            curves.task,
            {
                "samples": curves.rounds * curves.round_samples,
                "evaluate_every": curves.rounds * curves.round_samples // 60,
            },
            num_workers=curves.num_workers,
            cluster=flat_cluster(curves.num_workers, mbit_per_s=160),
            policies=["bsp", *(f"switch:bsp/{loose}@{curves.change}" for loose in curves.loose)],
            seeds=seeds,
            stragglers="transient",
        )
        runs = keep_runs(recipe, out=out / name)
        for policy, each in runs.items():
            for run, bsp in zip(each, runs["bsp"], strict=True):
                yield _case(curves, run, bsp, name=f"{name}, {policy}, seed {run.seed}")


def _case(curves: Curves, run: RunResult, bsp: RunResult, *, name: str) -> Case:
    metrics = tuple(_points(run, point) for point in run.evaluations)
    lost = _points(bsp, bsp.evaluations[-1]) - metrics[-1]
    return Case(
        name=name,
        task=run.task,
        clocks=tuple(point.samples / curves.round_samples for point in run.evaluations),
        metrics=metrics,
        reviews=tuple(_reviews(run, rounds=curves.rounds)),
        change=curves.change,
        last=curves.rounds,
        lost=lost,
        harmed=lost > curves.harm,
        healthy=lost <= curves.healthy,
    )


def _points(run: RunResult, point: Evaluation) -> float:
    """More is better; those of knowing nothing where the parameters are not finite."""
    if run.metric_goal == "max":
        return 100 * point.metric if math.isfinite(point.metric) else 0.0
    return -100 * math.log(point.metric if math.isfinite(point.metric) else 256.0)


def _reviews(run: RunResult, *, rounds: int) -> Iterator[tuple[int, float, float]]:
    """Mean losses of 8 steps; their error is from the scatter of the steps, each a mean over the workers."""
    for clock in range(REVIEW, rounds + 1, REVIEW):
        losses = [point.loss for point in run.losses if clock - REVIEW < point.clock <= clock]
        if len(losses) > 1:
            yield clock, statistics.fmean(losses), statistics.stdev(losses) / math.sqrt(len(losses))
