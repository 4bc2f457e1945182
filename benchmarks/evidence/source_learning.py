"""Policies and learning, beside the source: a language model, spread over seeds, regularised networks."""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import final_metrics
from scipy import stats
from settings import flat_cluster, recipe_of

from plesio.bench.recipe import Recipe
from plesio.core.results import RunResult

sys.path.insert(0, str(Path(__file__).parents[1]))
from kept_runs import keep_runs
from record import mean_and_error, plus_minus, print_table

__all__ = ["language_model", "regularisation", "spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """How long training is, and on how many windows a step of all workers."""

    steps: str
    epochs: float
    batch: int


LM_SIZES = (
    _Size(steps="366 steps of 32 windows, as here", epochs=0.75, batch=32),
    _Size(steps="732 steps of 64 windows, as in `run.py main`", epochs=3.0, batch=64),
)
LM_TARGETS = (20.0, 13.0)
"""Perplexities: one that every policy gets to, and one near BSP's end."""
LM_RATES = (4e-3, 8e-3, 1.2e-2, 1.6e-2)
"""Tried on the seeds 100 and 101, where one worker trains on the batches of all."""
LM_WORKERS = 8
MBIT_PER_S = 160
LM_RUNS = {1.2e-2: ("bsp", "ssp:1", "ssp:5,period=3", "asp", "adaptive"), 4e-3: ("bsp", "ssp:5,period=3", "asp")}
"""Policies by rate: at the best one of synchronous training, and at a third of it."""
SPREAD_POLICIES = ("bsp", "ssp:5,period=3", "asp", "adaptive")
STALE = ("ssp:4,period=3", "asp", "local_sgd:8,delay=4")
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "dropout": {"dropout": 0.5},
    "weight-decay": {"weight_decay": 0.01},
    "batch-norm": {"batch_norm": True},
    "all": {"dropout": 0.5, "weight_decay": 0.01, "batch_norm": True},
}
"""The additions to the network of `regularised`."""
VARIANT_RATES = (0.2, 0.4, 0.8)


def language_model(*, seeds: Sequence[int], out: Path) -> None:
    """Train a transformer under AdamW: steps and time to a perplexity, the final one, bytes."""
    rates = {rate: [_synchronous(rate, size, out=out / "rates") for size in LM_SIZES] for rate in LM_RATES}
    rows = [[f"{rate:g}", *cells] for rate, cells in rates.items()]
    print_table("", columns=["learning rate", *(size.steps for size in LM_SIZES)], rows=rows)
    for rate, policies in LM_RUNS.items():
        runs = keep_runs(_language_model(rate, policies, seeds, size=LM_SIZES[0]), out=out / f"{rate:g}")
        _show_learning(rate, runs)


def _synchronous(rate: float, size: _Size, *, out: Path) -> str:
    """Return the perplexity of one worker that trains on the batches of all, on two seeds that no table has."""
    folder = out / f"{rate:g}" if size is LM_SIZES[0] else out / f"{rate:g}-{size.epochs:g}-epochs"
    return plus_minus(
        final_metrics(
            keep_runs(_language_model(rate, ["bsp"], [100, 101], size=size, num_workers=1), out=folder)["bsp"]
        )
    )


def _show_learning(rate: float, runs: Mapping[str, Sequence[RunResult]]) -> None:
    """Print a row for each policy: the metric, and steps, times and bytes relative to BSP's of the same seeds."""
    bsp, rows = runs["bsp"], []
    for policy, each in runs.items():
        pairs = list(zip(each, bsp, strict=True))
        metrics = list(zip(final_metrics(each), final_metrics(bsp), strict=True))
        cells = [plus_minus(final_metrics(each)), plus_minus([100 * (one / it - 1) for one, it in metrics], "+.1f")]
        for target in LM_TARGETS:
            reached = [(_reached(run, target), _reached(other, target)) for run, other in pairs]
            cells.append(plus_minus([samples / bsp_samples for (samples, _), (bsp_samples, _) in reached]))
            cells.append(plus_minus([at_s / bsp_s for (_, at_s), (_, bsp_s) in reached]))
        cells.append(plus_minus([run.wall_s / other.wall_s for run, other in pairs]))
        cells.append(plus_minus([run.bytes_sent_total / other.bytes_sent_total for run, other in pairs], ".3f"))
        rows.append([f"`{policy}`", *cells])
    reached_at = [f"{what} to {target:g}" for target in LM_TARGETS for what in ("steps", "time")]
    title = f"Learning rate {rate:g}; what follows the metric is relative to bsp's"
    columns = ["", "perplexity", "to bsp, %", *reached_at, "time of a run", "bytes"]
    print_table(title, columns=columns, rows=rows)
    for target in LM_TARGETS:
        reached = [_reached(run, target) for run in bsp]
        steps = plus_minus([samples / LM_SIZES[0].batch for samples, _ in reached], ".0f")
        print(f"bsp: {steps} steps, {plus_minus([at_s for _, at_s in reached])} s to {target:g}")


def _reached(run: RunResult, target: float) -> tuple[float, float]:
    """Return samples and seconds at the first evaluation at or below the target; NaN where there is none."""
    found = (point for point in run.evaluations if point.metric <= target)
    return next(((point.samples, point.at_s) for point in found), (math.nan, math.nan))


def _language_model(
    rate: float, policies: Sequence[str], seeds: Sequence[int], *, size: _Size, num_workers: int = LM_WORKERS
) -> Recipe:
    """Make a recipe of as many steps of as many windows, for any number of workers."""
    options = {"width": 48, "depth": 1, "context": 64, "corpus_bytes": 1_000_000, "learning_rate": rate}
    return recipe_of(
        {"name": "stdlib_lm", "batch_size": size.batch // num_workers, "options": options},
        {"epochs": size.epochs, "evaluate_every": 256, "target": LM_TARGETS[-1]},
        num_workers=num_workers,
        cluster=flat_cluster(num_workers, mbit_per_s=MBIT_PER_S),
        policies=policies,
        seeds=seeds,
    )


def spread(*, seeds: Sequence[int], out: Path) -> None:
    """How much final accuracies scatter over seeds, as a ratio to BSP's and to ASP's deviation."""
    task = {"name": "digits", "batch_size": 16, "options": {"learning_rate": 0.4}}
    run = {"epochs": 12, "evaluate_every": 359}
    links = flat_cluster(8, mbit_per_s=MBIT_PER_S)
    recipe = recipe_of(
        task, run, num_workers=8, cluster=links, policies=SPREAD_POLICIES, seeds=seeds, stragglers="transient"
    )
    runs = keep_runs(recipe, out=out)
    metrics = {policy: final_metrics(each) for policy, each in runs.items()}
    rows = []
    for policy, values in metrics.items():
        cells = [
            plus_minus(values),
            f"{statistics.stdev(values):.2f}",
            _deviation_ratio(values, metrics["bsp"]),
            _deviation_ratio(values, metrics["asp"]),
            f"{min(values):.2f}",
        ]
        rows.append([f"`{policy}`", *cells])
    title = f"digits, {len(seeds)} seeds; deviations over seeds, their ratios with 95 % by the F distribution"
    print_table(title, columns=["", "accuracy", "deviation", "over bsp's", "over asp's", "least"], rows=rows)


def _deviation_ratio(values: Sequence[float], others: Sequence[float]) -> str:
    """Return the ratio of two deviations and its interval of 95 %, both samples taken as normal."""
    if values is others:
        return ""
    ratio = statistics.stdev(values) / statistics.stdev(others)
    low, high = (float(stats.f.ppf(share, len(values) - 1, len(others) - 1)) for share in (0.025, 0.975))
    return f"{ratio:.2f} ({ratio / math.sqrt(high):.2f} to {ratio / math.sqrt(low):.2f})"


def regularisation(*, seeds: Sequence[int], out: Path) -> None:
    """Show the cost of staleness to networks with and without dropout, weight decay and BatchNorm."""
    plain: dict[str, list[float]] = {}
    rows = []
    for name, options in VARIANTS.items():
        rate = _best_rate(options, out=out / "rates" / name)
        runs = keep_runs(_regularised({**options, "learning_rate": rate}, ["bsp", *STALE], seeds), out=out / name)
        cells = []
        for policy in STALE:
            pairs = zip(final_metrics(runs[policy]), final_metrics(runs["bsp"]), strict=True)
            changes = [one - other for one, other in pairs]
            plain.setdefault(policy, changes)
            cells.append(plus_minus(changes, "+.2f") + _against(changes, plain[policy]))
        first = [name, f"{rate:g}", plus_minus(final_metrics(runs["bsp"]))]
        rows.append(first + cells)
    title = "Points of held-out accuracy; each variant at its own rate, the best of synchronous training"
    print_table(title, columns=["", "rate", "bsp", *(f"`{policy}` - bsp" for policy in STALE)], rows=rows)


def _against(changes: Sequence[float], plain: Sequence[float]) -> str:
    """How much better than without, with Welch's p, after a comma; nothing for the first row."""
    if changes is plain or not all(map(math.isfinite, [*changes, *plain])):
        return ""
    p = float(stats.ttest_ind(changes, plain, equal_var=False).pvalue)
    return f", {statistics.fmean(changes) - statistics.fmean(plain):+.2f} to none (p {p:.2f})"


def _best_rate(options: Mapping[str, Any], *, out: Path) -> float:
    """Return the rate of `VARIANT_RATES` with the best mean over two seeds, with one worker on the batches of all."""
    means = {}
    for rate in VARIANT_RATES:
        recipe = _regularised({**options, "learning_rate": rate}, ["bsp"], [100, 101], num_workers=1)
        mean, _ = mean_and_error(final_metrics(keep_runs(recipe, out=out / f"{rate:g}")["bsp"]))
        means[rate] = -math.inf if math.isnan(mean) else mean
    return max(means, key=means.__getitem__)


def _regularised(
    options: Mapping[str, Any], policies: Sequence[str], seeds: Sequence[int], *, num_workers: int = 8
) -> Recipe:
    return recipe_of(
        {"name": "regularised:regularised_digits", "batch_size": 256 // num_workers, "options": dict(options)},
        {"epochs": 12, "evaluate_every": 359},
        num_workers=num_workers,
        cluster=flat_cluster(num_workers, mbit_per_s=MBIT_PER_S),
        policies=policies,
        seeds=seeds,
        stragglers="transient",
    )
