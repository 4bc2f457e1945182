"""`plesio lab validate`: the same runs in the process world and in the virtual world, and how far they are apart.

On this machine: policies x step times x workloads, with one slow worker of four. On a testbed: policies x bandwidths x
latencies, with four equal workers on hosts of their own. The virtual world gets the calibration of this machine, the
recipe with its cluster, and nothing of the runs that it predicts. A user's script runs as it does by itself; of it the
virtual world gets the time of a step in a short probe (`plesio.bench.advise_probe`).
"""

import math
import os
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from plesio.bench.advise_probe import Probed
from plesio.bench.calibrate import calibrate
from plesio.bench.compare import run_comparison
from plesio.bench.progress import ProgressSink
from plesio.bench.recipe import Recipe, make_recipe
from plesio.bench.recipe_step_time import ConstantSection
from plesio.core.errors import PlesioError
from plesio.core.predictions import Prediction, Scale
from plesio.core.results import RunResult
from plesio.core.units import format_seconds, parse_seconds
from plesio.cost.calibration import Calibration
from plesio.cost.cluster import Cluster
from plesio.policies import Policy
from plesio.runtime.coordinator.ledger import World

NUM_WORKERS = 4
SLOW_SPEED = 1 / 3
STEP_TIMES = ("30 ms", "60 ms")
NUM_ROUNDS = 60
"""Steps of each worker, if they shared the samples evenly."""
FLAGS: Mapping[tuple[str, ...], str] = {("run", "policies"): "--policies", ("run", "seeds"): "--seeds"}
"""The options that set a key, for messages about mistakes in a setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A task and its options."""

    task: str
    batch_size: int
    options: Mapping[str, Any] = field(default_factory=dict)


WORKLOADS = (
    Workload(task="digits", batch_size=32),
    Workload(
        task="stdlib_lm",
        batch_size=4,
        options={"context": 64, "width": 48, "depth": 1, "corpus_bytes": 400_000},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSetting:
    """A recipe of the matrix, and its step time as it is written."""

    step_time: str
    recipe: Recipe

    @property
    def name(self) -> str:
        cluster = self.recipe.workers.cluster
        where = "" if cluster is None else f"-{cluster.name}"
        return re.sub("[ :]", "", f"{self.recipe.task.name}-{self.step_time}{where}").replace("/", "p")


TESTBED_WORKLOAD = Workload(task="digits", batch_size=32)
TESTBED_STEP_TIME = "40 ms"
BANDWIDTHS = ("100 Mbit/s", "300 Mbit/s", "1 Gbit/s")
LATENCIES = ("0.1 ms", "5 ms", "20 ms")
NUM_TESTBED_ROUNDS = 48
RACK_WORKLOAD = Workload(
    task="stdlib_lm", batch_size=1, options={"context": 16, "width": 96, "depth": 1, "corpus_bytes": 100_000}
)
"""It computes little and sends 0.6 MB, so that a machine with other work measures links, and not its cores."""
RACK_BANDWIDTHS = ("50 Mbit/s", "150 Mbit/s")
NUM_RACK_ROUNDS = 24


def matrix(
    *,
    policies: Sequence[str],
    seeds: Sequence[int],
    workloads: Sequence[Workload] = WORKLOADS,
    step_times: Sequence[str] = STEP_TIMES,
    num_rounds: int = NUM_ROUNDS,
) -> list[ValidationSetting]:
    """Return the settings that run in both worlds, each workload's one after the other.

    Args:
        policies: Specs.
        seeds: A row of the result is a median over them: one run that something else disturbed does not decide it.
        workloads: Tasks.
        step_times: Step times of a worker of speed 1, with units.
        num_rounds: Steps of each worker.

    Raises:
        ConfigError: A policy or a seed cannot be used.
    """
    return [
        ValidationSetting(
            step_time=step_time,
            recipe=_recipe(workload, step_time, policies=policies, seeds=seeds, num_rounds=num_rounds),
        )
        for workload in workloads
        for step_time in step_times
    ]


def matrix_on_hosts(
    *,
    policies: Sequence[str],
    seeds: Sequence[int],
    oversubscriptions: Sequence[float] = (),
) -> list[ValidationSetting]:
    """Return the settings for testbeds and the virtual world: one workload, four hosts behind links of every kind.

    Args:
        policies: Specs.
        seeds: As for `matrix`.
        oversubscriptions: If there are any, the hosts are in two racks whose uplinks have these, and no latencies.

    Raises:
        ConfigError: A policy, a seed or an oversubscription cannot be used.
    """
    in_racks = [
        _hosts(
            f"{bandwidth}, uplink 1:{ratio:g}",
            bandwidth=bandwidth,
            latency=LATENCIES[0],
            more=f"racks = 2\nuplink_oversubscription = {ratio!r}",
        )
        for bandwidth in RACK_BANDWIDTHS
        for ratio in oversubscriptions
    ]
    clusters = in_racks or [
        _hosts(f"{bandwidth}, {latency}", bandwidth=bandwidth, latency=latency)
        for bandwidth in BANDWIDTHS
        for latency in LATENCIES
    ]
    return [
        ValidationSetting(
            step_time=TESTBED_STEP_TIME,
            recipe=_recipe(
                RACK_WORKLOAD if oversubscriptions else TESTBED_WORKLOAD,
                TESTBED_STEP_TIME,
                policies=policies,
                seeds=seeds,
                num_rounds=NUM_RACK_ROUNDS if oversubscriptions else NUM_TESTBED_ROUNDS,
                cluster=cluster,
            ),
        )
        for cluster in clusters
    ]


def _hosts(name: str, *, bandwidth: str, latency: str, more: str = "") -> Cluster:
    text = f"""
name = "{name}"
hosts = {NUM_WORKERS}
collectives = "gloo"
{more}
[nic]
bandwidth = "{bandwidth}"
latency = "{latency}"
"""
    return Cluster.from_toml(text, name="two racks" if more else "four hosts")


def validate(
    settings: Sequence[ValidationSetting],
    *,
    out: Path,
    progress: ProgressSink,
    world: World = "process",
    on_measured: Callable[[str], None] = lambda what: None,
) -> list[Prediction]:
    """Run the settings in both worlds; what ``out`` has of them already is kept.

    Args:
        settings: The `matrix`.
        out: Folder of the calibrations, and of each comparison in both worlds.
        progress: Takes the progress of the runs.
        world: World of the measurements.
        on_measured: Takes the progress of the calibrations.

    Raises:
        PlesioError: A run failed.
    """
    predictions: list[Prediction] = []
    calibrations: dict[str, Calibration] = {}
    for setting in settings:
        recipe = setting.recipe
        task = recipe.task.name
        # a calibration takes a minute, and all settings of a task share it
        if task not in calibrations:
            calibrations[task] = _calibrated(recipe, out / "calibration" / f"{task}.json", on_measured=on_measured)
        calibration = calibrations[task]
        measured = run_comparison(
            recipe, out=_made(out / world / setting.name), resume=True, progress=progress, world=world
        )
        # the prediction is given the calibration, and nothing of the runs above
        predicted = run_comparison(
            recipe,
            out=_made(out / "virtual" / setting.name),
            resume=True,
            progress=progress,
            world="virtual",
            calibration=calibration,
            on_testbed=world == "testbed",
        )
        where = {"step_time": setting.step_time}
        if recipe.workers.cluster is not None:
            where = {"links": recipe.workers.cluster.name}
        trivially = _Trivial(
            paces_s=_paces_s(setting), batch_size=recipe.task.batch_size or 1, num_bytes=4 * calibration.num_parameters
        )
        predictions += _compared(recipe, predicted, measured, where=where, trivially=trivially)
    return predictions


def validate_script(
    recipe: Recipe,
    probed: Probed,
    *,
    out: Path,
    progress: ProgressSink,
    on_remark: Callable[[str], None],
) -> list[Prediction]:
    """Run a script on processes of this machine, and predict the runs from a probe; what ``out`` has is kept.

    Workers that are more than the cores take turns: a step is predicted to take so many times as long.

    Args:
        recipe: The script's, whose steps take as long as they do.
        probed: Findings of the probe, with one worker computing at a time.
        out: Folder of the comparison in both worlds.
        progress: Takes the progress of the runs.
        on_remark: Takes a line about the script.

    Raises:
        PlesioError: A run failed.
    """
    count = recipe.workers.count
    step_s = probed.gradient_s * max(1.0, count / len(os.sched_getaffinity(0)))
    step_time = ConstantSection.model_validate({"kind": "constant", "mean": f"{1e6 * step_s:.0f} us"})
    foretold = recipe.model_copy(update={"workers": recipe.workers.model_copy(update={"step_time": step_time})})
    runs = partial(run_comparison, resume=True, progress=progress, on_remark=on_remark)
    measured = runs(recipe, out=_made(out / "process"))
    # the prediction is given the probe's findings, and nothing of the runs above
    predicted = runs(foretold, out=_made(out / "virtual"), world="virtual")
    num_bytes = probed.sizes.parameter_bytes
    trivially = _Trivial(paces_s=[step_s] * count, batch_size=probed.batch_size, num_bytes=num_bytes)
    where = {"workers": str(count), "step_time": format_seconds(step_s)}
    return list(_compared(recipe, predicted, measured, where=where, trivially=trivially))


def _recipe(
    workload: Workload,
    step_time: str,
    *,
    policies: Sequence[str],
    seeds: Sequence[int],
    num_rounds: int,
    cluster: Cluster | None = None,
) -> Recipe:
    """Make a recipe with one slow worker on this machine, or with equal ones on the hosts of ``cluster``."""
    unequal = [{"rank": NUM_WORKERS - 1, "speed": SLOW_SPEED}] if cluster is None else []
    return make_recipe(
        {
            "task": {"name": workload.task, "batch_size": workload.batch_size, "options": dict(workload.options)},
            "run": {
                "policies": list(policies),
                "seeds": list(seeds),
                "samples": num_rounds * NUM_WORKERS * workload.batch_size,
            },
            "workers": {
                "count": NUM_WORKERS,
                "step_time": {"kind": "constant", "mean": step_time},
                "unequal": unequal,
                "cluster": cluster,
            },
        },
        folder=Path(),
        where="plesio lab validate",
        flags=FLAGS,
    )


def _calibrated(recipe: Recipe, path: Path, *, on_measured: Callable[[str], None]) -> Calibration:
    if path.exists():
        return Calibration.read(path)
    calibration = calibrate(recipe.task, num_workers=recipe.workers.count, on_measured=on_measured)
    calibration.write(path)
    return calibration


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trivial:
    """Predicts without a simulation: steps take their time, and exchanging takes none.

    Attributes:
        paces_s: Duration of each worker's steps.
        batch_size: Samples in a worker's step.
        num_bytes: Bytes of the parameters.
    """

    paces_s: Sequence[float]
    batch_size: int
    num_bytes: int

    def of(self, policy: Policy, *, steps: float) -> dict[str, float]:
        count = len(self.paces_s)
        free = policy.spec.startswith(("asp", "ssp:inf"))
        rates = [1 / pace_s if free else 1 / max(self.paces_s) for pace_s in self.paces_s]
        collective = policy.exchange == "collective"
        exchanged = 2 * (count - 1) / count * self.num_bytes if collective else 2.0 * self.num_bytes
        shares = (1 - pace_s * rate for pace_s, rate in zip(self.paces_s, rates, strict=True))
        return {
            "throughput": self.batch_size * sum(rates),
            "wait share": statistics.fmean(shares),
            "bytes": steps * exchanged / (policy.period * policy.fragments),
            "staleness": count - 1.0,
        }


def _compared(
    recipe: Recipe,
    predicted: list[RunResult],
    measured: list[RunResult],
    *,
    where: Mapping[str, str],
    trivially: _Trivial,
) -> Iterator[Prediction]:
    """Yield the quantities of each policy, as medians over its seeds."""
    for run in (*predicted, *measured):
        if run.status != "finished":
            raise PlesioError(f"{run.policy}, seed {run.seed}, in the {run.world} world {run.status}: {run.error}")
    # what one would expect of any policy: the metric that bsp was measured with, or else the first policy
    reference = "bsp" if "bsp" in recipe.run.policies else recipe.run.policies[0]
    reference_metric = _median([run.final_metric for run in measured if run.policy == reference])
    for policy in recipe.policies:
        foreseen = [run for run in predicted if run.policy == policy.spec and run.seed in recipe.run.seeds]
        seen = [run for run in measured if run.policy == policy.spec and run.seed in recipe.run.seeds]
        trivial = trivially.of(policy, steps=_median([run.steps for run in foreseen]))
        trivial[f"final {seen[0].metric_name}"] = reference_metric
        for quantity, (scale, value_of) in _quantities(seen[0]).items():
            if all(value_of(run) is None for run in seen):
                continue  # never evaluated
            if quantity == "staleness" and policy.synchronous:
                continue  # 0 by definition, in both worlds
            yield Prediction(
                setting={"task": seen[0].task, **where, "policy": policy.spec},
                quantity=quantity,
                scale=scale,
                predicted=_median([value_of(run) for run in foreseen]),
                measured=_median([value_of(run) for run in seen]),
                baseline=trivial[quantity],
            )


def _quantities(run: RunResult) -> dict[str, tuple[Scale, Callable[[RunResult], float | None]]]:
    return {
        "throughput": ("relative", lambda run: run.samples_per_s),
        "wait share": ("points", _wait_share),
        "bytes": ("relative", lambda run: float(run.bytes_sent_total)),
        "staleness": ("relative", lambda run: run.staleness.mean),
        f"final {run.metric_name}": (
            "points" if run.metric_name == "accuracy" else "relative",
            lambda run: run.final_metric,
        ),
    }


def _wait_share(run: RunResult) -> float:
    waited_s = sum(worker.wait_s for worker in run.workers)
    return waited_s / sum(worker.compute_s + worker.wait_s + worker.communicate_s for worker in run.workers)


def _median(values: Sequence[float | None]) -> float:
    """Return the median of what is known; not a number where nothing is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else math.nan


def _paces_s(setting: ValidationSetting) -> list[float]:
    step_s = parse_seconds(setting.step_time)
    if not setting.recipe.workers.unequal:
        return [step_s] * NUM_WORKERS
    return [step_s] * (NUM_WORKERS - 1) + [step_s / SLOW_SPEED]
