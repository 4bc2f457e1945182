"""How long a training run takes from its first step to its last, with failures and checkpoints.

Work is ``6 N D`` FLOPs for N parameters and D tokens (Kaplan et al. 2020, section 2.1), and G devices of peak P do ``G
P u`` of them in a second; the utilisation u is given or estimated from a layout (`estimate`). Failures and states
stretch the work as `plesio.cost.goodput` says; runs with failures drawn by chance show how far one may be from the
mean.

``docs/planning/studies/time-to-train.md`` has the model with its sources, its assumptions and its limits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from plesio.core.charts import Axis, Chart, LineChart, Table
from plesio.core.errors import ArgumentError
from plesio.core.inputs import Written
from plesio.core.only_with import OnlyWith
from plesio.core.units import format_bytes, format_seconds
from plesio.core.within import BANDWIDTH, DURATION, DURATION_OR_0, SHARE, Within
from plesio.cost.goodput import Goodput
from plesio_planning.estimate.hardware import parse_machine
from plesio_planning.estimate.named_models import find_model
from plesio_planning.estimate.sensitivity import CHANGE, Sensitivity, best_upgrade
from plesio_planning.estimate.training import DEVICE_MTBF_S, Conditions
from plesio_planning.estimate.training_charts import (
    format_amount,
    format_days,
    format_dollars,
    parts_chart,
    tornado_chart,
    tornado_table,
)
from plesio_planning.sim.checkpoints import CheckpointTimes, Runs, simulate_runs
from plesio_planning.studies.declared import lines_of, table_of
from plesio_planning.studies.study import Answer
from plesio_planning.studies.training_work import STATE_BYTES, DevicePoint, GivenPace, LaidOut, TrainingWork

Pace = Literal["mfu", "layout"]

_DAY_S = 86_400.0
_MOST_FAILURES = 1e8
"""That are simulated, of all runs together: some 4 s."""
_ROUND_RUNS = 300
"""Fixed cost of a failure of all runs at once, in runs: 12 µs, where each takes 40 ns."""
_FAILING = 5
"""Times as many failures, for the picture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTrain(Answer):
    """The time of a run.

    Attributes:
        machine: Devices and accelerator.
        pace: Source of a step's time: a utilisation that was given, or a layout.
        mfu: Model FLOPs utilisation of a step.
        work_shares: Uses of the work: shares that add up to 1.
        goodput: The run with its failures.
        state_bytes: Bytes of the whole model: 16 bytes a parameter.
        interval_s: Seconds between which the run ends, with failures by chance and the error of the utilisation.
        confidence: Confidence of that interval.
        simulated_slowdown: Seconds that a second of work took in simulated runs, on average.
        simulated_slowdown_ci95: 95 % confidence interval of that average.
        simulated_s: Quantiles of the simulated runs' seconds, of 0, 1, 2 ... 100 %.
        sensitivities: Inputs down and up by 20 %.
        by_devices: The run by number of devices: at the utilisation that was given, or laid out anew for each.
        by_devices_failing: The same with failures five times as often.
        cost: US dollars.
        caution: A sentence about what few programs can do; empty without.
    """

    unit: ClassVar[str] = "s"
    machine: str
    pace: Pace
    mfu: float
    work_shares: Mapping[str, float]
    goodput: Goodput
    state_bytes: float
    interval_s: tuple[float, float]
    confidence: float
    simulated_slowdown: float
    simulated_slowdown_ci95: tuple[float, float]
    simulated_s: tuple[float, ...]
    sensitivities: tuple[Sensitivity, ...]
    by_devices: Mapping[int, DevicePoint]
    by_devices_failing: Mapping[int, DevicePoint]
    cost: float
    caution: str

    @property
    def finding(self) -> str:
        """Ideal and expected days, what lies between, and what would help most."""
        run, (low_s, high_s) = self.goodput, self.interval_s
        upgrade = best_upgrade(self.sensitivities)
        return (
            f"{format_days(self.ideal_s)} of work on {self.machine} at {100 * self.mfu:.1f} % MFU become "
            f"{format_days(self.total)} with {format_amount(run.num_failures)} failures and a state every "
            f"{format_seconds(run.interval_s)}: a goodput of {100 * run.share:.1f} %, {format_dollars(self.cost)} "
            f"({100 * self.confidence:g} % interval: {format_days(low_s)} to {format_days(high_s)}). "
            f"{100 * CHANGE:g} % {upgrade.better} {upgrade.name} saves the most, "
            f"{format_days(self.total - upgrade.best_s)}.{self.caution}"
        )

    @property
    def total(self) -> float:
        """Expected seconds of the run."""
        return self.goodput.total_s

    @property
    def ideal_s(self) -> float:
        """Seconds of work, without failures and states."""
        return self.goodput.work_s

    @property
    def parts(self) -> Mapping[str, float]:
        """The uses of time by the work, and the time that failures and states add."""
        work = {name: share * self.ideal_s for name, share in self.work_shares.items()}
        return {**work, **self.goodput.parts}

    def tables(self) -> Sequence[Table]:
        """List the run's numbers, the tornado, and numbers of devices."""
        return [self._numbers(), tornado_table(self.sensitivities, self.total), self._devices()]

    def _numbers(self) -> Table:
        run, (low, high) = self.goodput, self.simulated_slowdown_ci95
        rows = [
            ("ideal", format_days(self.ideal_s)),
            ("expected", format_days(self.total)),
            ("expected over ideal", f"{self.total / self.ideal_s:.5f}"),
            ("simulated over ideal (95 %)", f"{self.simulated_slowdown:.5f} ({low:.5f} to {high:.5f})"),
            ("MFU", f"{100 * self.mfu:.1f} %"),
            ("weights, gradients, optimizer", format_bytes(self.state_bytes)),
            ("failures", f"{format_amount(run.num_failures)}, one in {format_seconds(run.mtbf_s)}"),
            ("a state takes", format_seconds(run.checkpoint_s)),
            ("coming back takes", format_seconds(run.restart_s)),
        ]
        return Table(title="The run:", headers=("", "value"), rows=rows)

    def _devices(self) -> Table:
        how = (
            "all at the MFU that was given for one (which falls with more of them: --pace layout estimates each)"
            if self.pace == "mfu"
            else "each laid out anew"
        )
        return table_of(
            f"By number of devices, {how}:",
            self.by_devices.items(),
            {
                "devices": lambda each: f"{each[0]:,}",
                "MFU": lambda each: f"{100 * each[1].mfu:.1f} %",
                "ideal": lambda each: format_days(each[1].goodput.work_s),
                "expected": lambda each: format_days(each[1].goodput.total_s),
                "goodput": lambda each: f"{100 * each[1].goodput.share:.1f} %",
            },
        )

    def charts(self) -> Sequence[Chart]:
        """Draw the parts, the tornado, numbers of devices, and simulated runs."""
        part, seconds = max(self.parts.items(), key=lambda one: one[1])
        parts = parts_chart(self.parts, title=f"{100 * seconds / self.total:.0f} % of the time go into {part}")
        return [parts, tornado_chart(self.sensitivities, self.total), self._scaling(), self._simulated()]

    def _scaling(self) -> LineChart:
        numbers = list(self.by_devices)
        first_s, last_s = (self.by_devices[number].goodput.total_s for number in (numbers[0], numbers[-1]))
        in_proportion = [first_s / _DAY_S * numbers[0] / number for number in numbers]
        how = (
            "at the MFU that was given for one of them: how it falls follows from a layout, which is not given here"
            if self.pace == "mfu"
            else "whose layout is computed anew for each number"
        )
        return LineChart(
            slug="devices",
            title=f"{numbers[-1] / numbers[0]:,.0f} times the devices are {first_s / last_s:,.3g} times as fast",
            caption=f"Expected days of the run by number of devices, {how}.",
            x=Axis(title="devices", log=True),
            y=Axis(title="time (days)", log=True),
            series=[
                *lines_of(numbers, {"as many failures as asked": _days(self.by_devices)}),
                *lines_of(self.by_devices_failing, {f"{_FAILING} times as many": _days(self.by_devices_failing)}),
                *lines_of(numbers, dashed={"in proportion": in_proportion}),
            ],
        )

    def _simulated(self) -> LineChart:
        days = [value / _DAY_S for value in self.simulated_s]
        return LineChart(
            slug="simulated",
            title=f"Failures alone spread nine runs of ten over {days[5]:.4g} to {days[95]:.4g} days",
            caption="Simulated runs whose failures come by chance: share that has ended by then.",
            x=Axis(title="time (days)"),
            y=Axis(title="runs that have ended (%)"),
            series=lines_of(days, {"runs": map(float, range(len(days)))}),
            marks={"ideal": self.ideal_s / _DAY_S, "expected": self.total / _DAY_S},
        )


def _days(points: Mapping[int, DevicePoint]) -> list[float]:
    return [point.goodput.total_s / _DAY_S for point in points.values()]


def time_to_train(
    *,
    num_parameters: Annotated[float, Within(1, 1e15), OnlyWith("pace", "mfu")] = 70e9,
    tokens: Annotated[float, Within(1, 1e16)] = 1.4e12,
    cluster: str = "256xa100",
    pace: Pace = "mfu",
    mfu: Annotated[float, Within(1e-3, 1), OnlyWith("pace", "mfu")] = 0.4,
    model: Annotated[str, OnlyWith("pace", "layout")] = "llama-2-70b",
    tp: Annotated[int | None, Within(1, 2**16), OnlyWith("pace", "layout")] = None,
    pp: Annotated[int | None, Within(1, 2**16), OnlyWith("pace", "layout")] = None,
    global_batch: Annotated[int | None, Within(1, 10**9), Written(option="batch"), OnlyWith("pace", "layout")] = None,
    device_mtbf_s: Annotated[float, DURATION] = DEVICE_MTBF_S,
    restart_s: Annotated[float, DURATION_OR_0] = 600.0,
    storage_bytes_per_s: Annotated[float | None, BANDWIDTH] = None,
    checkpoint_interval_s: Annotated[float | None, DURATION] = None,
    price_per_h: Annotated[float, Within(0, 1e5), Written(option="price", metavar="DOLLARS")] = 2.0,
    step_error: Annotated[float, SHARE] = 0.1,
    confidence: Annotated[float, Within(0, 1, without="both")] = 0.9,
    num_runs: Annotated[int, Within(2, 100_000)] = 4000,
    seed: int = 0,
) -> TimeToTrain:
    """Compute the days of a run with failures and states, their parts, their spread, and their causes.

    >>> answer = time_to_train()
    >>> round(answer.ideal_s / 86400), round(answer.total / 86400), answer.state_bytes / 1e12
    (213, 215, 1.12)

    Args:
        num_parameters: N, trained.
        tokens: D, to train with.
        cluster: Number of devices and accelerator: 256xa100.
        pace: Source of a step's time: the utilisation given, or a model's layout, with that model's parameters;
            replicas are what devices remain.
        mfu: Model FLOPs utilisation, 0 to 1.
        model: Model.
        tp: Tensor parallelism; the fastest without.
        pp: Pipeline stages; the fastest without.
        global_batch: Sequences of a step; without, near 1,024, as many as the layout divides.
        device_mtbf_s: Mean time between failures of one device; the default is Llama 3's.
        restart_s: Time from a failure until states are read.
        storage_bytes_per_s: Bandwidth for states; none is BLOOM's of each device.
        checkpoint_interval_s: Work between two states; the best without.
        price_per_h: US dollars for a device and hour.
        step_error: Relative standard deviation of a step's time.
        confidence: Confidence of the interval, 0 to 1.
        num_runs: Simulated runs.
        seed: Seed of their failures.

    Raises:
        ConfigError: An input that is out of range, a layout that is none, or a model that the machine cannot hold.
    """
    conditions = Conditions(
        device_mtbf_s=device_mtbf_s,
        restart_s=restart_s,
        storage_bytes_per_s=storage_bytes_per_s,
        checkpoint_interval_s=checkpoint_interval_s,
        price_per_h=price_per_h,
        step_error=step_error,
        confidence=confidence,
    )
    work: TrainingWork
    if pace == "layout":
        work = LaidOut(find_model(model), tp, pp, global_batch, tokens, parse_machine(cluster), conditions)
    else:
        work = GivenPace(num_parameters, 6 * num_parameters * tokens, mfu, parse_machine(cluster), conditions)
    return _answer(work, pace=pace, num_runs=num_runs, seed=seed)


def _answer(work: TrainingWork, *, pace: Pace, num_runs: int, seed: int) -> TimeToTrain:
    conditions, here = work.conditions, work.here()
    _check_work(here.goodput, num_runs=num_runs)
    simulated = _simulated(here.goodput, num_runs=num_runs, seed=seed)
    device_hours = work.machine.num_devices * here.goodput.total_s / 3600
    return TimeToTrain(
        machine=work.machine.name,
        pace=pace,
        mfu=here.mfu,
        work_shares=work.shares,
        goodput=here.goodput,
        state_bytes=STATE_BYTES * work.num_parameters,
        interval_s=_interval(
            simulated, mfu_error=conditions.step_error or 0.0, confidence=conditions.confidence, seed=seed
        ),
        confidence=conditions.confidence,
        simulated_slowdown=simulated.slowdown,
        simulated_slowdown_ci95=simulated.slowdown_ci95,
        simulated_s=tuple(np.quantile(simulated.elapsed_s, np.linspace(0, 1, 101)).tolist()),
        sensitivities=work.sensitivities(),
        by_devices=work.by_devices(),
        by_devices_failing=work.by_devices(failing=_FAILING),
        cost=device_hours * (conditions.price_per_h or 0.0),
        caution=work.caution,
    )


def _check_work(run: Goodput, *, num_runs: int) -> None:
    """Make sure that the simulation ends within seconds."""
    if run.num_failures * (num_runs + _ROUND_RUNS) > _MOST_FAILURES:
        most = int(_MOST_FAILURES / run.num_failures) - _ROUND_RUNS
        instead = f"at most {most} for `num_runs`, " if most > 1 else ""
        raise ArgumentError(
            f"failures are {run.num_failures:,.0f} in each run, and `num_runs` of {num_runs} take too long; "
            f"write {instead}a longer `device_mtbf_s`, or fewer `tokens`"
        )


def _simulated(run: Goodput, *, num_runs: int, seed: int) -> Runs:
    """Simulate runs of as many whole segments as are nearest to the work."""
    num_segments = max(round(run.work_s / run.interval_s), 1)
    times = CheckpointTimes(
        interval_s=run.work_s / num_segments, checkpoint_s=run.checkpoint_s, mtbf_s=run.mtbf_s, restart_s=run.restart_s
    )
    return simulate_runs(times, num_segments=num_segments, num_runs=num_runs, seed=seed)


def _interval(simulated: Runs, *, mfu_error: float, confidence: float, seed: int) -> tuple[float, float]:
    """Return quantiles of simulated runs, each of which has an error of its utilisation, too, lognormal around none."""
    random = np.random.default_rng(seed + 1)
    ends_s = simulated.elapsed_s * np.exp(mfu_error * random.standard_normal(len(simulated.elapsed_s)))
    low_s, high_s = np.quantile(ends_s, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return low_s, high_s
