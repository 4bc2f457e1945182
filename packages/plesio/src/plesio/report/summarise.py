"""Runs made a comparison: every number of `plesio.report.model` is computed here, once."""

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from plesio.core.errors import DataError
from plesio.core.results import RunResult, Staleness, Utilisation
from plesio.policies.grid import GridSetting, is_grid
from plesio.report.curves import Curve, mean_by_index, mean_on_shared_range
from plesio.report.goodput import goodput_of
from plesio.report.metric import Metric
from plesio.report.model import MEMORY_PARTS, Comparison, Contrast, PolicySummary, TargetTimes, WorkerMeans
from plesio.report.statistics import Spread, difference_of, ratio_of

BASELINE = "bsp"
"""The policy that others are held against, where it was run; else the first one is."""

_LOSS_POINTS = 200
_LOSS_WINDOW = 9


def compare_runs(runs: Sequence[RunResult]) -> Comparison:
    """Compute every figure of a comparison; policies keep the order in which they first appear.

    Raises:
        DataError: No runs; runs of different tasks, worlds, worker counts, metrics or targets; or one policy and seed
            finished twice.
    """
    if not runs:
        raise DataError("there are no runs to report on; `plesio compare RECIPE --out DIR` makes some")
    # the metric of one that ended before it was evaluated is not known
    evaluated = [run for run in runs if run.evaluations] or runs
    first = evaluated[0]
    for name in ("task", "world", "num_workers", "target"):
        _require_one_value(runs, name)
    for name in ("metric_name", "metric_goal"):
        _require_one_value(evaluated, name)
    names = tuple(dict.fromkeys(run.policy for run in runs))
    summaries = {name: _summarise(name, [run for run in runs if run.policy == name]) for name in names}
    baseline = summaries[BASELINE if BASELINE in names else names[0]]
    return Comparison(
        task=first.task,
        world=first.world,
        num_workers=first.num_workers,
        metric=Metric(name=first.metric_name, goal=first.metric_goal).doubted_by(
            [point.metric for point in run.evaluations] for run in runs if run.status == "finished"
        ),
        target=first.target,
        baseline=baseline.policy,
        seeds=tuple(sorted({run.seed for run in runs})),
        policies=tuple(_held_against(baseline, summary) for summary in summaries.values()),
        environments=tuple(dict.fromkeys(run.environment for run in runs if run.environment is not None)),
        runs=tuple(runs),
    )


def _require_one_value(runs: Sequence[RunResult], name: str) -> None:
    values = dict.fromkeys(getattr(run, name) for run in runs)
    if len(values) > 1:
        found = ", ".join(str(value) for value in values)
        raise DataError(f"runs with different {name} ({found}) cannot be compared; keep each kind in its own folder")


def _summarise(policy: str, runs: Sequence[RunResult]) -> PolicySummary:
    finished = sorted((run for run in runs if run.status == "finished"), key=lambda run: run.seed)
    seeds = tuple(run.seed for run in finished)
    if len(set(seeds)) < len(seeds):
        raise DataError(f"policy {policy} has two finished runs of one seed (seeds {seeds}); keep one of them")
    # one that was never evaluated has missed no target, and did not diverge
    evaluated = [run for run in finished if run.evaluations or run.final_metric is not None]
    links = dict.fromkeys(link for run in finished for link in run.bytes_sent)
    metric_curves = tuple(Curve.of((point.at_s, point.metric) for point in run.evaluations) for run in finished)
    loss_curves = [Curve.of((float(point.clock), point.loss) for point in run.losses) for run in finished]
    return PolicySummary(
        policy=policy,
        seeds=seeds,
        unfinished=tuple((run.seed, run.status, run.error) for run in runs if run.status != "finished"),
        time_s=_per_seed(finished, lambda run: run.training_s),
        samples_per_s=_per_seed(finished, lambda run: run.samples / run.training_s if run.training_s > 0 else None),
        final_metric=final_metrics(finished),
        to_target=_target_times(evaluated),
        num_evaluated=len(evaluated),
        identical=_are_identical(finished),
        bytes_sent=_per_seed(finished, lambda run: float(run.bytes_sent_total)),
        bytes_by_link={link: statistics.fmean(run.bytes_sent.get(link, 0) for run in finished) for link in links},
        wait_share=_share(finished, "wait_s"),
        communicate_share=_share(finished, "communicate_s"),
        workers=_worker_means(finished),
        staleness=_pooled(run.staleness for run in finished),
        stage_staleness=_stage_staleness(policy, finished),
        max_lead=max((run.max_lead for run in finished), default=0),
        lost_workers=tuple((run.seed, worker) for run in runs for worker in run.lost_workers),
        refused_updates=_refused_updates(runs),
        fallbacks=tuple((run.seed, line) for run in runs for line in run.fallbacks),
        metric_curves=metric_curves,
        metric_mean=mean_by_index([curve for curve in metric_curves if curve.x]),
        memory=_memory_parts(finished),
        cpu=_mean_of(used.cpu.mean for used in _utilisations(finished)),
        goodput=goodput_of(finished),
        loss_mean=mean_on_shared_range(loss_curves, num_points=_LOSS_POINTS, window=_LOSS_WINDOW),
    )


def _are_identical(finished: Sequence[RunResult]) -> bool:
    ends = [(run.parameters_sha256, run.final_metric) for run in finished if run.parameters_sha256 is not None]
    return len(ends) == len(finished) > 1 and len({*ends}) == 1


def _held_against(baseline: PolicySummary, summary: PolicySummary) -> PolicySummary:
    if summary is baseline or not (summary.seeds and baseline.seeds):
        return summary
    metric = None
    if summary.final_metric is not None and baseline.final_metric is not None:
        metric = difference_of(summary.final_metric, baseline=baseline.final_metric)
    contrast = Contrast(
        speed=ratio_of(summary.samples_per_s, denominator=baseline.samples_per_s),
        bytes_sent=ratio_of(summary.bytes_sent, denominator=baseline.bytes_sent),
        metric=metric,
        to_target=ratio_of(_if_all_reached(baseline), denominator=_if_all_reached(summary)),
    )
    return dataclasses.replace(summary, contrast=contrast)


def _if_all_reached(summary: PolicySummary) -> Spread | None:
    """Return the times to target, unless a seed is missing: the mean of the others would flatter the policy."""
    target = summary.to_target
    return target.reached if target is not None and target.num_reached == target.num_runs else None


def final_metrics(finished: Iterable[RunResult]) -> Spread | None:
    """Return the final metrics by seed; None where no run has one that is finite."""
    return _per_seed(finished, lambda run: run.final_metric)


def _per_seed(runs: Iterable[RunResult], value_of: Callable[[RunResult], float | None]) -> Spread | None:
    values = {run.seed: value_of(run) for run in runs}
    return Spread.of({seed: value for seed, value in values.items() if value is not None and math.isfinite(value)})


def _target_times(finished: Sequence[RunResult]) -> TargetTimes | None:
    if not finished or finished[0].target is None:
        return None
    reached = _per_seed(finished, lambda run: run.time_to_target_s)
    median_s = None if reached is None else statistics.median(reached.values)
    return TargetTimes(median_s=median_s, reached=reached, num_runs=len(finished))


def _share(runs: Iterable[RunResult], name: str) -> float | None:
    """Return the part of all workers' accounted time that went into ``name``; None where nothing was accounted for."""
    times = [times for run in runs for times in run.workers]
    total_s = sum(worker.compute_s + worker.wait_s + worker.communicate_s for worker in times)
    return sum(getattr(worker, name) for worker in times) / total_s if total_s > 0 else None


def _worker_means(runs: Sequence[RunResult]) -> tuple[WorkerMeans, ...]:
    times = [times for run in runs for times in run.workers]

    def mean_s(worker: int, name: str) -> float:
        return statistics.fmean(getattr(entry, name) for entry in times if entry.worker == worker)

    return tuple(
        WorkerMeans(
            worker=worker,
            compute_s=mean_s(worker, "compute_s"),
            wait_s=mean_s(worker, "wait_s"),
            communicate_s=mean_s(worker, "communicate_s"),
        )
        for worker in sorted({entry.worker for entry in times})
    )


def _memory_parts(runs: Iterable[RunResult]) -> dict[str, float]:
    splits = [worker.memory for run in runs for worker in run.workers if worker.memory is not None]
    if not splits:
        return {}
    by_part = [
        (
            split.before_bytes,
            split.parameters_bytes,
            split.gradients_bytes,
            split.optimizer_bytes,
            (split.activations_bytes or 0) - split.reused_bytes,
            split.other_bytes or 0,
            split.shared_bytes,
            split.cached_bytes or 0,
            split.evaluation_bytes,
            split.rest_bytes,
        )
        for split in splits
    ]
    means = (statistics.fmean(values) for values in zip(*by_part, strict=True))
    return dict(zip(MEMORY_PARTS, means, strict=True))


def _utilisations(runs: Iterable[RunResult]) -> list[Utilisation]:
    return [worker.utilisation for run in runs for worker in run.workers if worker.utilisation is not None]


def _mean_of(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.fmean(known) if known else None


def _stage_staleness(policy: str, runs: Sequence[RunResult]) -> tuple[Staleness, ...]:
    if not is_grid(policy):
        return ()
    stages = GridSetting.parse(policy).stages
    own = [(it.worker % stages, it.staleness) for run in runs for it in run.workers if it.staleness is not None]
    return tuple(_pooled(staleness for number, staleness in own if number == stage) for stage in range(stages))


def _pooled(parts: Iterable[Staleness]) -> Staleness:
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update(dict(enumerate(part.counts)))
    return Staleness.of({tau: number for tau, number in counts.items() if number > 0})


def _refused_updates(runs: Iterable[RunResult]) -> dict[str, dict[int, int]]:
    total: Counter[tuple[str, int]] = Counter()
    for run in runs:
        for worker, by_reason in run.refused_updates.items():
            total.update({(reason, int(worker)): number for reason, number in by_reason.items()})
    refused: dict[str, dict[int, int]] = {}
    for (reason, rank), number in sorted(total.items()):
        refused.setdefault(reason, {})[rank] = number
    return refused
