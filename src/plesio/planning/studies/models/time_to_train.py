"""How long a training run takes from its first step to its last, with failures and checkpoints.

Work is ``6 N D`` FLOPs for N parameters and D tokens (Kaplan et al. 2020, section 2.1), and a machine of G devices does
``G P u`` of them in a second: P is a device's peak and u the model FLOPs utilisation, which is given here or estimated
from a model and its layout (`estimate`). Failures and states stretch the work as `planning.estimate.goodput` says;
runs with failures drawn by chance show how far a single one may be from the mean.

Where it stops being true: a utilisation that falls during the run, failures in bursts, loss spikes and restarts by
hand, evaluation, and queues.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import numpy as np

from plesio.core.charts import Axis, Chart, LineChart, Series, Table
from plesio.core.errors import ConfigError
from plesio.core.units import format_bytes, format_seconds
from plesio.core.within import BANDWIDTH, DURATION, DURATION_OR_0, Within
from plesio.planning.estimate.goodput import Goodput
from plesio.planning.estimate.hardware import Machine, parse_machine
from plesio.planning.estimate.layout import Layout
from plesio.planning.estimate.named_models import find_model
from plesio.planning.estimate.sensitivity import CHANGE, Sensitivity, best_upgrade, tornado
from plesio.planning.estimate.training import CHECKPOINT_BYTES, DEVICE_MTBF_S, Conditions, Training, estimate_training
from plesio.planning.estimate.training_charts import (
    format_amount,
    format_days,
    format_dollars,
    name_of_part,
    parts_chart,
    tornado_chart,
    tornado_table,
)
from plesio.planning.studies.study import Answer
from plesio.sim.checkpoints import Runs, simulate_runs

__all__ = ["TimeToTrain", "time_to_train"]

_DAY_S = 86_400.0
_FAILING = 5
"""Times as many failures, for the picture."""
_DOUBLINGS = 9
_STATE_BYTES = 16
"""A parameter's weight and gradient in half precision, master weight and two moments (Rajbhandari et al. 2020)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTrain(Answer):
    """What a run takes.

    Attributes:
        machine: Devices and accelerator.
        mfu: Model FLOPs utilisation of a step.
        work_shares: What the work goes into: shares that add up to 1.
        goodput: The run with its failures.
        state_bytes: Bytes of the whole model: 16 bytes a parameter.
        interval_s: Seconds between which the run ends, with failures by chance and the error of the utilisation.
        confidence: Confidence of that interval.
        simulated_slowdown: Seconds that a second of work took in simulated runs, on average.
        simulated_slowdown_ci95: 95 % confidence interval of that average.
        simulated_s: Quantiles of the simulated runs' seconds, of 0, 1, 2 ... 100 %.
        sensitivities: Inputs down and up by 20 %.
        by_devices: The run by number of devices, at the same utilisation.
        by_devices_failing: The same with failures five times as often.
        cost: US dollars.
    """

    unit: ClassVar[str] = "s"
    machine: str
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
    by_devices: Mapping[int, Goodput]
    by_devices_failing: Mapping[int, Goodput]
    cost: float

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
            f"{format_days(self.total - upgrade.best_s)}."
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
        """What the work goes into, and what failures and states add."""
        work = {name: share * self.ideal_s for name, share in self.work_shares.items()}
        return {**work, **self.goodput.parts}

    def tables(self) -> Sequence[Table]:
        """The run's numbers; the tornado; numbers of devices."""
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
        rows = [
            (f"{number:,}", format_days(run.work_s), format_days(run.total_s), f"{100 * run.share:.1f} %")
            for number, run in self.by_devices.items()
        ]
        return Table(title="By number of devices:", headers=("devices", "ideal", "expected", "goodput"), rows=rows)

    def charts(self) -> Sequence[Chart]:
        """The parts, the tornado, numbers of devices, and simulated runs."""
        part, seconds = max(self.parts.items(), key=lambda one: one[1])
        parts = parts_chart(self.parts, title=f"{100 * seconds / self.total:.0f} % of the time go into {part}")
        return [parts, tornado_chart(self.sensitivities, self.total), self._scaling(), self._simulated()]

    def _scaling(self) -> LineChart:
        most = max(self.by_devices)
        return LineChart(
            slug="devices",
            title=f"With {most:,} devices {100 * self.by_devices[most].share:.0f} % of the time is work that counts",
            caption="Goodput by number of devices: the share of the time that is work which no failure undoes.",
            x=Axis(title="devices", log=True),
            y=Axis(title="goodput (%)"),
            series=[
                Series(name=name, x=list(runs), y=[100 * run.share for run in runs.values()])
                for name, runs in (
                    ("as many failures as asked", self.by_devices),
                    (f"{_FAILING} times as many", self.by_devices_failing),
                )
            ],
        )

    def _simulated(self) -> LineChart:
        shares = [float(place) for place in range(len(self.simulated_s))]
        return LineChart(
            slug="simulated",
            title=f"Failures alone spread nine runs of ten over {_range(self.simulated_s[5], self.simulated_s[95])}",
            caption="Simulated runs whose failures come by chance: share that has ended by then.",
            x=Axis(title="time (days)"),
            y=Axis(title="runs that have ended (%)"),
            series=[Series(name="runs", x=[value / _DAY_S for value in self.simulated_s], y=shares)],
            marks={"ideal": self.ideal_s / _DAY_S, "expected": self.total / _DAY_S},
        )


def _range(low_s: float, high_s: float) -> str:
    return f"{low_s / _DAY_S:.4g} to {high_s / _DAY_S:.4g} days"


def time_to_train(
    *,
    parameters: Annotated[float, Within(1, 1e15)] = 70e9,
    tokens: Annotated[float, Within(1, 1e16)] = 1.4e12,
    machine: str = "256xa100",
    pace: Literal["mfu", "layout"] = "mfu",
    mfu: Annotated[float, Within(1e-3, 1)] = 0.4,
    model: str = "llama-2-70b",
    tp: Annotated[int, Within(1, 2**16)] = 8,
    pp: Annotated[int, Within(1, 2**16)] = 4,
    num_sequences: Annotated[int, Within(1, 10**9)] = 1024,
    device_mtbf_s: Annotated[float, DURATION] = DEVICE_MTBF_S,
    restart_s: Annotated[float, DURATION_OR_0] = 600.0,
    storage_bytes_per_s: Annotated[float | None, BANDWIDTH] = None,
    price_per_h: Annotated[float, Within(0, 1e5)] = 2.0,
    mfu_error: Annotated[float, Within(0, 10)] = 0.1,
    confidence: Annotated[float, Within(0, 1, without="both")] = 0.9,
    num_runs: Annotated[int, Within(2, 100_000)] = 4000,
    seed: int = 0,
) -> TimeToTrain:
    """Days of a run with failures and states, their parts, their spread, and what they depend on.

    >>> answer = time_to_train()
    >>> round(answer.ideal_s / 86400), round(answer.total / 86400), answer.state_bytes / 1e12
    (213, 215, 1.12)

    Args:
        parameters: N, trained.
        tokens: D, to train with.
        machine: Number of devices and accelerator.
        pace: What decides a step: the utilisation given, or a model's layout, with that model's parameters.
        mfu: Model FLOPs utilisation, 0 to 1, for the pace mfu.
        model: Model for the pace layout.
        tp: Tensor parallelism, for the pace layout.
        pp: Pipeline stages, for the pace layout.
        num_sequences: Global batch, for the pace layout.
        device_mtbf_s: Mean time between failures of one device; the default is Llama 3's.
        restart_s: Time from a failure until states are read.
        storage_bytes_per_s: Bandwidth for states; none is BLOOM's of each device.
        price_per_h: US dollars for a device and hour.
        mfu_error: Relative standard deviation of the utilisation.
        confidence: Confidence of the interval, 0 to 1.
        num_runs: Simulated runs.
        seed: Seed of their failures.

    Raises:
        ConfigError: An input that is out of range, or a layout that is none.
    """
    conditions = Conditions(
        device_mtbf_s=device_mtbf_s,
        restart_s=restart_s,
        storage_bytes_per_s=storage_bytes_per_s,
        price_per_h=price_per_h,
        step_error=mfu_error,
        confidence=confidence,
    )
    if pace == "layout":
        training = _laid_out(
            model, machine, tp=tp, pp=pp, global_batch=num_sequences, tokens=tokens, conditions=conditions
        )
        work, shares, rows = _Work.of(training), _step_shares(training), tornado(training)
    else:
        work = _Work(parameters, 6 * parameters * tokens, mfu, parse_machine(machine), conditions)
        shares = {"arithmetic at the peak": mfu, "what keeps devices from their peak": 1 - mfu}
        rows = _tornado(work)
    return _answer(work, work_shares=shares, sensitivities=rows, num_runs=num_runs, seed=seed)


@dataclass(frozen=True, slots=True)
class _Work:
    """FLOPs at a utilisation on a machine."""

    parameters: float
    flops: float
    mfu: float
    machine: Machine
    conditions: Conditions

    @classmethod
    def of(cls, training: Training) -> "_Work":
        flops = training.num_steps * training.step.model_flops
        parameters = float(training.model.num_parameters)
        return cls(parameters, flops, training.step.mfu, training.machine, training.conditions)

    def goodput(self, *, num_devices: int | None = None) -> Goodput:
        number = num_devices or self.machine.num_devices
        work_s = self.flops / (number * self.machine.accelerator.peak("bf16") * self.mfu)
        return self.conditions.goodput(work_s, checkpoint_bytes=CHECKPOINT_BYTES * self.parameters, num_devices=number)

    def by_devices(self) -> Mapping[int, Goodput]:
        """Goodput by number of devices: a quarter of them, then twice as many each time, as long as runs end."""
        runs = {}
        for power in range(_DOUBLINGS):
            number = max(self.machine.num_devices * 2**power // 4, 1)
            try:
                runs[number] = self.goodput(num_devices=number)
            except ConfigError:
                break
        return runs

    def cost(self) -> float:
        device_hours = self.machine.num_devices * self.goodput().total_s / 3600
        return device_hours * (self.conditions.price_per_h or 0.0)


def _answer(
    work: _Work,
    *,
    work_shares: Mapping[str, float],
    sensitivities: tuple[Sensitivity, ...],
    num_runs: int,
    seed: int,
) -> TimeToTrain:
    """The work with its failures: by formula, simulated, and on other numbers of devices."""
    conditions, goodput = work.conditions, work.goodput()
    simulated = _simulated(goodput, num_runs=num_runs, seed=seed)
    often = replace(conditions, device_mtbf_s=conditions.device_mtbf_s / _FAILING)
    return TimeToTrain(
        machine=work.machine.name,
        mfu=work.mfu,
        work_shares=work_shares,
        goodput=goodput,
        state_bytes=_STATE_BYTES * work.parameters,
        interval_s=_interval(
            simulated, mfu_error=conditions.step_error or 0.0, confidence=conditions.confidence, seed=seed
        ),
        confidence=conditions.confidence,
        simulated_slowdown=simulated.slowdown,
        simulated_slowdown_ci95=simulated.slowdown_ci95,
        simulated_s=tuple(np.quantile(simulated.elapsed_s, np.linspace(0, 1, 101)).tolist()),
        sensitivities=sensitivities,
        by_devices=work.by_devices(),
        by_devices_failing=replace(work, conditions=often).by_devices(),
        cost=work.cost(),
    )


def _step_shares(training: Training) -> dict[str, float]:
    """What a step of the layout goes into: shares that add up to 1."""
    parts = training.step.parts
    return {name_of_part(name): value / training.step.total_s for name, value in parts.items() if value}


def _laid_out(
    model: str, machine: str, *, tp: int, pp: int, global_batch: int, tokens: float, conditions: Conditions
) -> Training:
    parsed = parse_machine(machine)
    dp = max(parsed.num_devices // max(tp * pp, 1), 1)
    layout = Layout(tp=tp, pp=pp, dp=dp, zero=1, sequence_parallel=tp > 1)
    return estimate_training(
        find_model(model), layout, parsed, global_batch=global_batch, tokens=tokens, conditions=conditions
    )


def _tornado(work: _Work) -> tuple[Sensitivity, ...]:
    """As `plesio.planning.estimate.sensitivity.tornado`, of work whose utilisation is given."""
    conditions = work.conditions

    def changed(field: str, value: float | None, factor: float) -> _Work:
        assert value is not None
        return replace(work, conditions=replace(conditions, **{field: factor * value}))

    inputs: dict[str, Callable[[float], _Work]] = {
        "MFU": lambda factor: replace(work, mfu=factor * work.mfu),
        "time between failures": partial(changed, "device_mtbf_s", conditions.device_mtbf_s),
        "restart": partial(changed, "restart_s", conditions.restart_s),
        "storage bandwidth": partial(
            changed, "storage_bytes_per_s", conditions.all_storage_bytes_per_s(work.machine.num_devices)
        ),
        "price": partial(changed, "price_per_h", conditions.price_per_h),
    }
    rows = []
    for name, scaled in inputs.items():
        low, high = scaled(1 - CHANGE), scaled(1 + CHANGE)
        rows.append(
            Sensitivity(
                name=name,
                low_s=low.goodput().total_s,
                high_s=high.goodput().total_s,
                low_cost=low.cost(),
                high_cost=high.cost(),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.swing_s))


def _simulated(run: Goodput, *, num_runs: int, seed: int) -> Runs:
    """Runs of as many whole segments as are nearest to the work."""
    num_segments = max(round(run.work_s / run.interval_s), 1)
    return simulate_runs(
        num_segments=num_segments,
        interval_s=run.work_s / num_segments,
        checkpoint_s=run.checkpoint_s,
        mtbf_s=run.mtbf_s,
        restart_s=run.restart_s,
        num_runs=num_runs,
        seed=seed,
    )


def _interval(simulated: Runs, *, mfu_error: float, confidence: float, seed: int) -> tuple[float, float]:
    """Quantiles of simulated runs, each of which has an error of its utilisation, too, lognormal around none."""
    random = np.random.default_rng(seed + 1)
    ends_s = simulated.elapsed_s * np.exp(mfu_error * random.standard_normal(len(simulated.elapsed_s)))
    low_s, high_s = np.quantile(ends_s, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    return low_s, high_s
