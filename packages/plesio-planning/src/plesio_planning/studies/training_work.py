"""The work of a training run and the pace at which a machine does it, on any number of devices.

Two ways to know the pace: somebody gives the model FLOPs utilisation, which is then the same on any number of devices,
or a model is laid out and estimated (`plesio_planning.estimate.search`), once for each number of devices: replicas are
added, the global batch stays, so each has fewer micro-batches, and the bubble and the gradient exchange take more.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.units import format_bytes, format_count
from plesio.cost.goodput import Goodput
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.model import Model
from plesio_planning.estimate.search import search_layouts
from plesio_planning.estimate.search_walk import FoundLayout
from plesio_planning.estimate.sensitivity import CHANGE, Sensitivity, tornado
from plesio_planning.estimate.training import CHECKPOINT_BYTES, Conditions, Training, estimate_training
from plesio_planning.estimate.training_charts import memory_caution, name_of_part

STATE_BYTES = 16
"""A parameter's weight and gradient in half precision, master weight and two moments (Rajbhandari et al. 2020)."""
_DOUBLINGS = 9
_BATCH = 1024
"""Sequences of a step, if nobody says: about the 4M tokens of Llama 2."""
_PLAIN = {
    "vpp": 1,
    "cp": 1,
    "zero": 1,
    "micro_batch": 1,
    "schedule": "1f1b",
    "recomputation": "none",
    "recomputed_layers": None,
    "offload": False,
    "offload_activations": False,
}
"""All of a layout but its degrees."""


@dataclass(frozen=True, slots=True)
class DevicePoint:
    """The run on another number of devices."""

    mfu: float
    goodput: Goodput


class TrainingWork(ABC):
    """A run on a machine."""

    __slots__ = ()
    machine: Machine
    conditions: Conditions

    @property
    @abstractmethod
    def num_parameters(self) -> float:
        """Parameters of the model."""

    @property
    @abstractmethod
    def shares(self) -> Mapping[str, float]:
        """The uses of the work's time: shares that add up to 1."""

    @property
    def caution(self) -> str:
        """A sentence about what few programs can do; empty without."""
        return ""

    @abstractmethod
    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """Move inputs down and up by 20 %."""

    @abstractmethod
    def on(self, num_devices: int, conditions: Conditions) -> DevicePoint:
        """Compute the run on so many devices.

        Raises:
            ConfigError: It does not fit, cannot be laid out so, or would hardly ever end.
        """

    def here(self) -> DevicePoint:
        """Compute the run on the machine that was asked for."""
        return self.on(self.machine.num_devices, self.conditions)

    def by_devices(self, *, failing: float = 1.0) -> Mapping[int, DevicePoint]:
        """Compute from a quarter of the devices on, twice as many each time; impossible numbers are left out.

        Devices fail ``failing`` times as often.
        """
        conditions = replace(self.conditions, device_mtbf_s=self.conditions.device_mtbf_s / failing)
        points = {}
        for power in range(_DOUBLINGS):
            number = max(self.machine.num_devices * 2**power // 4, 1)
            try:
                points[number] = self.on(number, conditions)
            except ConfigError:
                continue
        return points


@dataclass(frozen=True, slots=True)
class GivenPace(TrainingWork):
    """FLOPs at a utilisation that is given.

    Attributes:
        parameters: N.
        mfu: Model FLOPs utilisation, on any number of devices.
    """

    parameters: float
    flops: float
    mfu: float
    machine: Machine
    conditions: Conditions

    @property
    def num_parameters(self) -> float:
        """The given number of parameters."""
        return self.parameters

    @property
    def shares(self) -> Mapping[str, float]:
        """Arithmetic, and the rest."""
        return {"arithmetic at the peak": self.mfu, "what keeps devices from their peak": 1 - self.mfu}

    def on(self, num_devices: int, conditions: Conditions) -> DevicePoint:
        """Compute the run on so many devices, of which each takes an equal part of the model's state."""
        self._check_memory(num_devices)
        work_s = self.flops / (num_devices * self.machine.accelerator.peak("bf16") * self.mfu)
        goodput = conditions.goodput(
            work_s, checkpoint_bytes=CHECKPOINT_BYTES * self.parameters, num_devices=num_devices
        )
        return DevicePoint(self.mfu, goodput)

    def _check_memory(self, num_devices: int) -> None:
        state, memory = STATE_BYTES * self.parameters, self.machine.accelerator.memory_bytes
        if state > num_devices * memory:
            raise ArgumentError(
                f"`num_parameters` is {format_count(self.parameters)}, whose weights, gradients and optimizer take "
                f"{format_bytes(state)}, and {num_devices} {self.machine.accelerator.name} have "
                f"{format_bytes(num_devices * memory)}; write a `cluster` of {int(state / memory) + 1} devices or more"
            )

    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """Return the rows of `plesio_planning.estimate.sensitivity.tornado`."""
        conditions = self.conditions

        def changed(field: str, value: float | None, factor: float) -> GivenPace:
            assert value is not None
            inputs: dict[str, Any] = {field: factor * value}
            return replace(self, conditions=replace(conditions, **inputs))

        inputs: dict[str, Callable[[float], GivenPace]] = {
            "MFU": lambda factor: replace(self, mfu=factor * self.mfu),
            "time between failures": partial(changed, "device_mtbf_s", conditions.device_mtbf_s),
            "restart": partial(changed, "restart_s", conditions.restart_s),
            "storage bandwidth": partial(
                changed, "storage_bytes_per_s", conditions.all_storage_bytes_per_s(self.machine.num_devices)
            ),
            "price": partial(changed, "price_per_h", conditions.price_per_h),
        }
        rows = []
        for name, scaled in inputs.items():
            low, high = scaled(1 - CHANGE), scaled(1 + CHANGE)
            rows.append(
                Sensitivity(
                    name=name,
                    low_s=low.here().goodput.total_s,
                    high_s=high.here().goodput.total_s,
                    low_cost=low._cost(),
                    high_cost=high._cost(),
                )
            )
        return tuple(sorted(rows, key=lambda row: -row.swing_s))

    def _cost(self) -> float:
        device_hours = self.machine.num_devices * self.here().goodput.total_s / 3600
        return device_hours * (self.conditions.price_per_h or 0.0)


@dataclass(frozen=True, slots=True)
class LaidOut(TrainingWork):
    """A model in the fastest layout of these degrees, whose replicas are as many as the devices allow.

    Attributes:
        tp: Tensor parallelism; None for the fastest.
        pp: Pipeline stages; None for the fastest.
        global_batch: Sequences of a step; None for those near the default that the layout divides.
    """

    model: Model
    tp: int | None
    pp: int | None
    global_batch: int | None
    tokens: float
    machine: Machine
    conditions: Conditions

    @property
    def num_parameters(self) -> float:
        """The model's."""
        return float(self.model.num_parameters)

    @property
    def shares(self) -> Mapping[str, float]:
        """The uses of a step's time."""
        step = self._training(self.machine.num_devices, self.conditions).step
        return {name_of_part(name): value / step.total_s for name, value in step.parts.items() if value}

    @property
    def caution(self) -> str:
        """About a program that keeps less of a parameter than most do."""
        return memory_caution(self._training(self.machine.num_devices, self.conditions))

    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """Return the tornado of the estimate."""
        return tornado(self._training(self.machine.num_devices, self.conditions))

    def on(self, num_devices: int, conditions: Conditions) -> DevicePoint:
        """Compute the run with as many replicas as so many devices allow."""
        training = self._training(num_devices, conditions)
        return DevicePoint(training.step.mfu, training.goodput)

    def _training(self, num_devices: int, conditions: Conditions) -> Training:
        machine = replace(self.machine, num_devices=num_devices)
        degrees = {name: value for name, value in (("tp", self.tp), ("pp", self.pp)) if value is not None}
        try:
            best = self._fastest(machine, degrees)
        except ConfigError as error:
            if not degrees:
                raise
            instead = self._fastest(machine, {}).layout
            reason = str(error).partition(";")[0]
            raise ArgumentError(f"{reason}; write `tp = {instead.tp}` and `pp = {instead.pp}`") from None
        return estimate_training(
            self.model,
            best.layout,
            machine,
            global_batch=best.step.num_samples,
            tokens=self.tokens,
            conditions=conditions,
        )

    def _fastest(self, machine: Machine, degrees: Mapping[str, int]) -> FoundLayout:
        return search_layouts(
            self.model,
            machine,
            global_batch=self.global_batch or _BATCH,
            near=self.global_batch is None,
            may_be_lean=True,
            fixed={**_PLAIN, **degrees},
        ).best
