"""The needs of a whole training run: days, failures, money, energy, and their uncertainty.

Steps follow from the tokens; a step is `plesio_planning.estimate.step`'s, and what failures and states add is
`plesio.cost.goodput`'s. The state that is written is Adam's in mixed precision: a weight of 2 bytes, the master weight
and two moments, 14 bytes a parameter (in FP32: 12). All devices stand still while it is written, and read it when they
come back. On spot a host that is taken away ends the run as a failure does.

Energy is devices x hours x the power that they draw x PUE, and carbon that times a grid's intensity, as Touvron et al.
(2023a, section 6) count it, who take a device's most power for what it draws. Here large products draw that, and the
rest shares of it (``surroundings.toml``); hosts' processors and the network are not in it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Any, Literal

from plesio.core.checks import check_not_negative, check_positive
from plesio.core.errors import ArgumentError
from plesio.core.records import to_json
from plesio.core.within import BANDWIDTH, DURATION, DURATION_OR_0, SHARE, Within
from plesio.cost.goodput import Goodput, expected_goodput
from plesio.cost.reliability import cluster_mtbf_s
from plesio_planning.estimate.accuracy import step_error, step_notes
from plesio_planning.estimate.capacity import check_memory
from plesio_planning.estimate.constants import CONSTANTS, Constants
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.memory import Memory, estimate_memory
from plesio_planning.estimate.model import Model
from plesio_planning.estimate.step import Step, estimate_step
from plesio_planning.texts import read_texts

DEVICE_MTBF_S = 16_384 * 54 * 86_400 / 419
"""Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 H100 (Grattafiori et al. 2024, section 3.3.4)."""

DEVICE_STORAGE_BYTES_PER_S = 2.3e12 / 40 / 384
"""BLOOM: 2.3 TB in 40 s from 384 A100 (Workshop et al. 2022); storage is taken to grow with the machine."""


CHECKPOINT_BYTES = 14.0
"""Bytes of a parameter's state: its weight in half precision, master weight and two moments."""


Market = Literal["on-demand", "reserved", "spot"]
"""Ways to pay for devices."""
Region = Literal[
    "australia",
    "brazil",
    "canada",
    "china",
    "france",
    "germany",
    "india",
    "japan",
    "norway",
    "poland",
    "south-korea",
    "sweden",
    "united-kingdom",
    "united-states",
    "world",
]
"""Countries whose grid's emissions are known here."""
_SURROUNDINGS = read_texts("surroundings", package="plesio_planning.estimate")
_CARBON_KG_PER_KWH = 0.385
_PREEMPTION_S = 10 * 86_400.0
_WAITING_DRAW = 0.4
"""The same of what is not in ``surroundings.toml``: exchanges, bubbles, failures."""
_ASSUMED_PRICE_ERROR = 0.2
"""Relative standard deviation of a price that nobody gave: an assumption, as clouds' prices differ by more."""
_MOST_TOKENS = 1e18
"""Far beyond all text there is; more are a slip of the pen."""
_MOST_PRICE_PER_H = 1e6
"""The same of dollars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions under which a machine is used.

    Attributes:
        device_mtbf_s: Mean time between failures of a device, with its share of host and network.
        restart_s: Time from a failure until the run begins to read its last state: noticing it, replacing the host,
            starting all processes. An assumption.
        storage_bytes_per_s: Bandwidth at which all devices together write and read states; else BLOOM's a device.
        checkpoint_interval_s: Work between two states; else the best.
        price_per_h: US dollars for a device and hour; else the accelerator's.
        price_error: Relative standard deviation of the price; else 0 of one that is given, and 0.2.
        market: How devices are paid for: on-demand, reserved (0.6 of the price) or spot (0.4, and hosts are taken
            away); a price that is given is the market's.
        preemption_s: Mean time until a host on spot is taken away; else 10 days, as 5 to 15 % of instances are a day
            (Google Cloud, on preemptible instances).
        region: Country whose grid's emissions in 2023 count (Ember).
        draw: Share of their most power that devices draw; else by what their time goes into.
        pue: The building's energy over the devices' (Touvron et al. 2023a).
        carbon_kg_per_kwh: Emissions of the grid; else the region's, or 0.385 (Touvron et al. 2023a: the mean of the
            United States).
        step_error: Relative standard deviation of an estimated step's time; else that of published steps, and more
            where none is like it.
        confidence: Confidence of the interval.
    """

    device_mtbf_s: float = DEVICE_MTBF_S
    restart_s: Annotated[float, DURATION_OR_0] = 600.0
    storage_bytes_per_s: Annotated[float | None, BANDWIDTH] = None
    checkpoint_interval_s: Annotated[float | None, DURATION] = None
    price_per_h: float | None = None
    price_error: Annotated[float | None, SHARE] = None
    market: Market = "on-demand"
    preemption_s: Annotated[float | None, DURATION] = None
    region: Region | None = None
    draw: Annotated[float | None, Within(0, 1, without="low")] = None
    pue: float = 1.1
    carbon_kg_per_kwh: float | None = None
    step_error: Annotated[float | None, SHARE] = None
    confidence: float = 0.9

    def __post_init__(self) -> None:
        check_positive(device_mtbf_s=self.device_mtbf_s)
        check_not_negative(
            restart_s=self.restart_s,
            carbon_kg_per_kwh=self.carbon_kg_per_kwh or 0.0,
            step_error=self.step_error or 0.0,
            price_error=self.price_error or 0.0,
        )
        if self.storage_bytes_per_s is not None:
            check_positive(storage_bytes_per_s=self.storage_bytes_per_s)
        if self.checkpoint_interval_s is not None:
            check_positive(checkpoint_interval_s=self.checkpoint_interval_s)
        if self.price_per_h is not None and not 0 <= self.price_per_h <= _MOST_PRICE_PER_H:
            raise ArgumentError(
                f"`price_per_h` is {self.price_per_h:g}; write 0 or more dollars, up to {_MOST_PRICE_PER_H:,.0f}"
            )
        if self.preemption_s is not None and self.market != "spot":
            raise ArgumentError("`preemption_s` is of spot; write `market = spot`, or leave it out")
        if self.region is not None and self.carbon_kg_per_kwh is not None:
            raise ArgumentError("`region` and `carbon_kg_per_kwh` both say the grid's emissions; leave one of them out")
        if not 1 <= self.pue < math.inf:
            raise ArgumentError(f"`pue` is {self.pue:g}; write 1 or more")
        if not 0 < self.confidence < 1:
            raise ArgumentError(f"`confidence` is {self.confidence:g}; write a share between 0 and 1")

    def interval_factor(self, error: float) -> float:
        """Return ``e^(zσ)``, by which the ends of an interval differ from a value with this relative error."""
        return math.exp(NormalDist().inv_cdf((1 + self.confidence) / 2) * error)

    def all_storage_bytes_per_s(self, num_devices: int) -> float:
        """Return the bytes per second that so many devices write and read states at."""
        return self.storage_bytes_per_s or num_devices * DEVICE_STORAGE_BYTES_PER_S

    @property
    def grid_kg_per_kwh(self) -> float:
        """Emissions of the grid."""
        if self.carbon_kg_per_kwh is not None:
            return self.carbon_kg_per_kwh
        return _CARBON_KG_PER_KWH if self.region is None else float(_SURROUNDINGS["carbon_kg_per_kwh"][self.region])

    def price_of(self, on_demand: float) -> float:
        """Return dollars for a device and hour: those given, or the market's share of the price on demand."""
        return on_demand * float(_SURROUNDINGS["price"][self.market]) if self.price_per_h is None else self.price_per_h

    def mtbf_s(self, num_devices: int, *, num_hosts: int) -> float:
        """Return the mean time between two events that end the run: failures, and on spot preemptions."""
        failing_s = cluster_mtbf_s(part_mtbf_s=self.device_mtbf_s, num_parts=num_devices)
        if self.market != "spot":
            return failing_s
        return 1 / (1 / failing_s + num_hosts / (self.preemption_s or _PREEMPTION_S))

    def goodput(self, work_s: float, *, checkpoint_bytes: float, num_devices: int, num_hosts: int = 1) -> Goodput:
        """Return the seconds that ``work_s`` take so many devices, with states of so many bytes.

        Raises:
            ConfigError: The run would hardly ever end.
        """
        checkpoint_s = checkpoint_bytes / self.all_storage_bytes_per_s(num_devices)
        return expected_goodput(
            work_s,
            checkpoint_s=checkpoint_s,
            restart_s=self.restart_s + checkpoint_s,  # the last state is read as fast as it was written
            mtbf_s=self.mtbf_s(num_devices, num_hosts=num_hosts),
            interval_s=self.checkpoint_interval_s,
            remedy="a longer `device_mtbf_s`, a higher `storage_bytes_per_s`, or a shorter `restart_s`",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A run, from its inputs to its cost.

    Attributes:
        conditions: Conditions under which it is used.
        constants: How close devices come to their data sheets.
        tokens: Tokens to be trained with; images of a convolutional network.
        memory: Memory of the device that needs the most.
    """

    model: Model
    layout: Layout
    machine: Machine
    conditions: Conditions
    constants: Constants
    tokens: float
    step: Step
    memory: Memory
    goodput: Goodput
    num_steps: int
    checkpoint_bytes: float

    @property
    def parts(self) -> Mapping[str, float]:
        """Seconds of the run by what they go into; they add up to the total."""
        steps = {name: self.num_steps * value for name, value in self.step.parts.items() if value}
        return {**steps, **self.goodput.parts}

    @property
    def total_s(self) -> float:
        """Expected seconds of the run."""
        return self.goodput.total_s

    @property
    def days(self) -> float:
        """Expected days of the run."""
        return self.total_s / 86_400

    @property
    def ideal_days(self) -> float:
        """Days without failures and without states."""
        return self.goodput.work_s / 86_400

    @property
    def device_hours(self) -> float:
        """Devices times hours."""
        return self.machine.num_devices * self.total_s / 3600

    @property
    def cost(self) -> float:
        """US dollars."""
        return self.device_hours * self.conditions.price_of(self.machine.accelerator.price_per_h)

    @property
    def draw(self) -> float:
        """Share of their most power that the devices draw, on average over the run."""
        if self.conditions.draw is not None:
            return self.conditions.draw
        shares: Mapping[str, float] = _SURROUNDINGS["draw"]
        return sum(seconds * shares.get(name, _WAITING_DRAW) for name, seconds in self.parts.items()) / self.total_s

    @property
    def energy_kwh(self) -> float:
        """Energy of the devices and the building."""
        return self.device_hours * self.draw * self.machine.accelerator.power_w / 1000 * self.conditions.pue

    @property
    def carbon_kg(self) -> float:
        """Kilograms of CO2 equivalents."""
        return self.energy_kwh * self.conditions.grid_kg_per_kwh

    @property
    def step_error(self) -> float:
        """Relative standard deviation of the step's time."""
        given = self.conditions.step_error
        if given is not None:
            return given
        return step_error(self.model, self.layout, self.machine, global_batch=self.step.num_samples)

    @property
    def notes(self) -> Sequence[str]:
        """Facts to consider before comparing it with a real run."""
        return step_notes(self.model, self.layout, self.machine, global_batch=self.step.num_samples)

    @property
    def time_error(self) -> float:
        """σ, the relative standard deviation of the run's time: ``σ² = step_error² + (deviation / T)²``.

        These are the error of an estimated step, and failures that come by chance, at a mean time between them that is
        taken as known.
        """
        return math.hypot(self.step_error, self.goodput.deviation_s / self.total_s)

    @property
    def price_error(self) -> float:
        """Relative standard deviation of the price."""
        given = self.conditions.price_error
        if given is not None:
            return given
        return _ASSUMED_PRICE_ERROR if self.conditions.price_per_h is None else 0.0

    @property
    def interval_s(self) -> tuple[float, float]:
        """Seconds between which the run's time is, with the conditions' confidence: ``T e^(±zσ)``."""
        factor = self.conditions.interval_factor(self.time_error)
        return self.total_s / factor, self.total_s * factor

    @property
    def cost_interval(self) -> tuple[float, float]:
        """US dollars between which the cost is, by the errors of the time and of the price."""
        factor = self.conditions.interval_factor(math.hypot(self.time_error, self.price_error))
        return self.cost / factor, self.cost * factor

    def again(
        self,
        *,
        machine: Machine | None = None,
        conditions: Conditions | None = None,
        constants: Constants | None = None,
    ) -> "Training":
        """Estimate the same run on another machine, under other conditions or with other constants.

        Whether it fits into memory is not asked again.
        """
        return estimate_training(
            self.model,
            self.layout,
            machine or self.machine,
            global_batch=self.step.num_samples,
            tokens=self.tokens,
            conditions=conditions or self.conditions,
            constants=constants or self.constants,
            any_memory=True,
        )

    def to_json(self) -> dict[str, Any]:
        """Return inputs and results as JSON values."""
        low_s, high_s = self.interval_s
        results = {
            "total_s": self.total_s,
            "interval_s": [low_s, high_s],
            "step_error": self.step_error,
            "parts_s": self.parts,
            "step_s": self.step.total_s,
            "num_steps": self.num_steps,
            "mfu": self.step.mfu,
            "hfu": self.step.hfu,
            "tokens_per_s": self.step.tokens_per_s,
            "goodput": self.goodput.share,
            "num_failures": self.goodput.num_failures,
            "memory_bytes": self.memory.total_bytes,
            "device_hours": self.device_hours,
            "cost_usd": self.cost,
            "cost_interval_usd": list(self.cost_interval),
            "draw": self.draw,
            "energy_kwh": self.energy_kwh,
            "carbon_kg": self.carbon_kg,
        }
        return {"results": to_json(results), "inputs": to_json(self)}


def estimate_training(
    model: Model,
    layout: Layout,
    machine: Machine,
    *,
    global_batch: int,
    tokens: float,
    conditions: Conditions | None = None,
    constants: Constants = CONSTANTS,
    any_memory: bool = False,
) -> Training:
    """Time, money and energy of a run of ``tokens``.

    >>> from plesio_planning.estimate.hardware import parse_machine
    >>> from plesio_planning.estimate.named_models import find_model
    >>> layout = Layout(tp=8, pp=4, dp=64, zero=1, sequence_parallel=True)
    >>> run = estimate_training(find_model("llama-70b"), layout, parse_machine("2048xh100"),
    ...                         global_batch=1024, tokens=2e12)
    >>> run.num_steps, 10 < run.ideal_days < run.days < 25
    (476838, True)

    Args:
        model: Model to train.
        layout: How.
        machine: Machine to run on.
        global_batch: Sequences (or images) of a step.
        tokens: Tokens of all steps (or images).
        conditions: Failures, storage, prices; None is the defaults.
        constants: How close devices come to their data sheets.
        any_memory: Estimate also what does not fit into the devices' memory.

    Raises:
        ConfigError: The model cannot be laid out so, does not fit, or the run would hardly ever end.
    """
    conditions = conditions or Conditions()
    check_positive(tokens=tokens)
    if tokens > _MOST_TOKENS:
        raise ArgumentError(f"`tokens` is {tokens:g}; write {_MOST_TOKENS:g} or less, as in 2T")
    memory_of = estimate_memory if any_memory else check_memory
    memory = memory_of(model, layout, machine, global_batch=global_batch)
    step = estimate_step(model, layout, machine, global_batch=global_batch, constants=constants)
    num_steps = math.ceil(tokens / step.num_tokens)
    per_parameter = 12.0 if layout.full_precision else CHECKPOINT_BYTES
    checkpoint_bytes = per_parameter * model.num_parameters
    goodput = conditions.goodput(
        num_steps * step.total_s,
        checkpoint_bytes=checkpoint_bytes,
        num_devices=machine.num_devices,
        num_hosts=machine.num_hosts,
    )
    return Training(
        model=model,
        layout=layout,
        machine=machine,
        conditions=conditions,
        constants=constants,
        tokens=tokens,
        step=step,
        memory=memory,
        goodput=goodput,
        num_steps=num_steps,
        checkpoint_bytes=checkpoint_bytes,
    )
