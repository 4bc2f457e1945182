"""An estimate from the words that a person has: a model's name, a machine's, and what is known of the layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from plesio.core.charts import Chart, Table
from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.inputs import Written, checked
from plesio.core.within import BANDWIDTH, DURATION_OR_0, Within
from plesio.cost.activations import Recomputation
from plesio.planning.estimate.frontier import Frontier, find_frontier
from plesio.planning.estimate.hardware import Machine, find_accelerator, parse_machine
from plesio.planning.estimate.layout import SOFTWARE, Layout, SoftwareName
from plesio.planning.estimate.model import Convolutional, Model
from plesio.planning.estimate.named_models import find_model
from plesio.planning.estimate.search_charts import search_charts, search_finding, search_tables
from plesio.planning.estimate.sensitivity import Sensitivity, tornado
from plesio.planning.estimate.training import DEVICE_MTBF_S, Conditions, Training, estimate_training
from plesio.planning.estimate.training_charts import training_charts, training_finding, training_tables

__all__ = ["Estimate", "estimate"]

_BATCH_TOKENS = 2**22
"""Tokens of a step, if nobody says: about the 4M of Llama 2 (Touvron et al. 2023b)."""
_BATCH_IMAGES = 32
"""Images of a device (Goyal et al. 2017)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All that is shown of an estimate.

    Attributes:
        training: The run.
        sensitivities: Its tornado.
        frontier: What was searched; None if the layout was given.
        top: Layouts of the search that are shown.
    """

    training: Training
    sensitivities: tuple[Sensitivity, ...]
    frontier: Frontier | None = None
    top: int = 10

    @property
    def findings(self) -> Sequence[str]:
        """The run's with its notes, and the search's."""
        found = [training_finding(self.training, self.sensitivities), *self.training.notes]
        return found if self.frontier is None else [*found, search_finding(self.training, self.frontier)]

    @property
    def tables(self) -> Sequence[Table]:
        """The search's, then the run's."""
        run = training_tables(self.training, self.sensitivities)
        return run if self.frontier is None else [*search_tables(self.training, self.frontier, top=self.top), *run]

    @property
    def charts(self) -> Sequence[Chart]:
        """The search's, then the run's."""
        run = training_charts(self.training, self.sensitivities)
        return run if self.frontier is None else [*search_charts(self.training, self.frontier), *run]


@checked
def estimate(
    on_progress: Callable[[str, int, int], None] = lambda machine, done, total: None,
    /,
    *,
    model: Annotated[str, Written(metavar="NAME|FILE")],
    cluster: Annotated[str, Written(metavar="NxNAME")],
    tokens: float,
    global_batch: Annotated[int | None, Written(option="batch")] = None,
    sequence_length: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    vpp: int | None = None,
    dp: int | None = None,
    ep: int | None = None,
    cp: int | None = None,
    zero: int | None = None,
    micro_batch: int | None = None,
    recomputation: Recomputation | None = None,
    precision: Annotated[str, Written(metavar="NAME")] = "bf16",
    software: Annotated[SoftwareName, Written(metavar="NAME")] = "current",
    local_bytes_per_s: Annotated[float | None, BANDWIDTH] = None,
    network_bytes_per_s: Annotated[float | None, BANDWIDTH] = None,
    storage_bytes_per_s: Annotated[float | None, BANDWIDTH] = None,
    device_mtbf_s: Annotated[float, Written(option="mtbf")] = DEVICE_MTBF_S,
    restart_s: Annotated[float, DURATION_OR_0] = 600.0,
    price_per_h: Annotated[float | None, Written(option="price", metavar="DOLLARS")] = None,
    pue: float = 1.1,
    carbon_kg_per_kwh: Annotated[float, Written(option="carbon", metavar="KG")] = 0.385,
    step_error: Annotated[float | None, Written(metavar="SHARE")] = None,
    confidence: Annotated[float, Written(metavar="SHARE")] = 0.9,
    search: bool = False,
    top: Annotated[int, Within(1)] = 10,
    num_devices: Annotated[tuple[int, ...] | None, Within(1)] = None,
    accelerators: Annotated[tuple[str, ...] | None, Written(metavar="NAME,...")] = None,
) -> Estimate:
    """Estimate time, memory, cost and energy of a training run.

    From the model, the machine and how one is laid out over the other; or with the fastest layout of all. Needs no
    accelerator.

    >>> run = estimate(model="llama-70b", cluster="2048xh100", tokens=2e12, tp=8, pp=4).training
    >>> run.num_steps, round(run.goodput.share, 2)
    (476838, 0.98)

    Args:
        on_progress: Called now and then in a search: a machine's name, the layouts tried on it, and all of them.
        model: llama-70b, or a config.json.
        cluster: 2048xh100, or 16x4a100: hosts of 4.
        tokens: Tokens to train with: 2T, 300B; images of a CNN.
        global_batch: Sequences (images) of a step; else about 4M tokens, 32 images a device.
        sequence_length: Tokens of a sequence; else the model's.
        tp: Tensor parallelism: devices that share a layer. [1]
        pp: Pipeline parallelism: stages. [1]
        vpp: Parts of a stage, interleaved. [1]
        dp: Data parallelism: replicas. [what remains]
        ep: Expert parallelism: replicas that share experts. [1]
        cp: Context parallelism: devices that share a sequence. [1]
        zero: 0 to 3: replicas share optimizer, gradients, parameters. [1]
        micro_batch: Sequences of a replica at a time. [1]
        recomputation: What the backward pass computes again instead of keeping it. [none]
        precision: Precision of matrix products: fp32, tf32, fp16, bf16, fp8.
        software: current, megatron-core, megatron-2022, megatron-2021, fsdp-2023, deepspeed-2021.
        local_bytes_per_s: Bandwidth in a host: "450 GB/s"; else the accelerator's.
        network_bytes_per_s: Bandwidth of a host to others: "3200 Gbit/s"; else the accelerator's.
        storage_bytes_per_s: Bandwidth for states: "2 TB/s"; else BLOOM's a device.
        device_mtbf_s: Time between failures of one device: "50000 h".
        restart_s: Time from a failure until states are read.
        price_per_h: Price of a device and hour; else the accelerator's.
        pue: The building's energy over the devices'.
        carbon_kg_per_kwh: CO2e of a kWh.
        step_error: Standard deviation of a step's estimate; else that of published steps.
        confidence: Confidence of the interval.
        search: Find the fastest layout; keep the degrees given.
        top: Layouts that a search shows.
        num_devices: Machines that a search compares; else half and twice.
        accelerators: The same, of other accelerators.

    Raises:
        ConfigError: A name that is unknown, a layout that cannot be or does not fit, or a number out of range.
    """
    if not search and (num_devices, accelerators) != (None, None):
        raise ArgumentError("`num_devices` and `accelerators` compare machines; add `search`")
    machine = _machine(cluster, local_bytes_per_s=local_bytes_per_s, network_bytes_per_s=network_bytes_per_s)
    machines = _machines(machine, sizes=num_devices, accelerators=accelerators) if search else [machine]
    _check_price(price_per_h, machines)
    degrees = {"tp": tp, "pp": pp, "vpp": vpp, "dp": dp, "ep": ep, "cp": cp, "zero": zero, "micro_batch": micro_batch}
    wanted = {**degrees, "recomputation": recomputation}
    run = _Run(
        model=find_model(model, sequence_length=sequence_length),
        tokens=tokens,
        global_batch=global_batch,
        conditions=Conditions(
            device_mtbf_s=device_mtbf_s,
            restart_s=restart_s,
            storage_bytes_per_s=storage_bytes_per_s,
            price_per_h=price_per_h,
            pue=pue,
            carbon_kg_per_kwh=carbon_kg_per_kwh,
            step_error=step_error,
            confidence=confidence,
        ),
        given={name: value for name, value in wanted.items() if value is not None},
        kind={"precision": precision, "software": SOFTWARE[software]},
    )
    return run.searched(machines, top=top, on_progress=on_progress) if search else run.laid_out(machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A training run without a machine.

    Attributes:
        model: What is trained.
        tokens: Tokens (images) to train with.
        global_batch: Sequences (images) of a step; None for the default.
        conditions: Failures, prices and errors.
        given: The layout's degrees that are given, by name.
        kind: The layout's precision and software.
    """

    model: Model
    tokens: float
    global_batch: int | None
    conditions: Conditions
    given: Mapping[str, Any]
    kind: Mapping[str, Any]

    def searched(
        self, machines: Sequence[Machine], *, top: int, on_progress: Callable[[str, int, int], None]
    ) -> Estimate:
        """The fastest layout on the first machine, and the frontier of all."""
        frontier = find_frontier(
            self.model,
            machines,
            global_batch=self._batch(machines[0], multiple_of=1),
            fixed=self.given,
            on_progress=on_progress,
            tokens=self.tokens,
            conditions=self.conditions,
            **self.kind,
        )
        training = frontier.on(machines[0])
        return Estimate(training=training, sensitivities=tornado(training), frontier=frontier, top=top)

    def laid_out(self, machine: Machine) -> Estimate:
        """The layout that is given, with replicas on the devices that remain."""
        layout = self._layout(machine)
        multiple_of = layout.dp * layout.micro_batch * (layout.pp if layout.vpp > 1 else 1)
        training = estimate_training(
            self.model,
            layout,
            machine,
            global_batch=self._batch(machine, multiple_of=multiple_of),
            tokens=self.tokens,
            conditions=self.conditions,
        )
        return Estimate(training=training, sensitivities=tornado(training))

    def _layout(self, machine: Machine) -> Layout:
        tp = self.given.get("tp", 1)
        replica = tp * self.given.get("pp", 1) * self.given.get("cp", 1)
        remaining = {"dp": max(machine.num_devices // max(replica, 1), 1), "zero": 1}
        return Layout(**{**remaining, **self.given}, sequence_parallel=tp > 1, **self.kind)

    def _batch(self, machine: Machine, *, multiple_of: int) -> int:
        if self.global_batch is not None:
            return self.global_batch
        if isinstance(self.model, Convolutional):
            wanted = _BATCH_IMAGES * machine.num_devices
        else:
            wanted = max(_BATCH_TOKENS // self.model.sequence_length, 1)
        return -(-wanted // multiple_of) * multiple_of


def _machine(cluster: str, *, local_bytes_per_s: float | None, network_bytes_per_s: float | None) -> Machine:
    try:
        machine = parse_machine(cluster)
    except ConfigError as error:
        raise ArgumentError.about("cluster", error) from None
    if local_bytes_per_s is not None:
        machine = replace(machine, local=replace(machine.local, bytes_per_s=local_bytes_per_s))
    if network_bytes_per_s is not None:
        machine = replace(machine, nic=replace(machine.nic, bytes_per_s=network_bytes_per_s))
    return machine


def _check_price(price_per_h: float | None, machines: Sequence[Machine]) -> None:
    if price_per_h is not None and len({machine.accelerator.name for machine in machines}) > 1:
        raise ArgumentError("`price_per_h` is one accelerator's; leave it out to compare several")


def _machines(
    machine: Machine, *, sizes: Sequence[int] | None, accelerators: Sequence[str] | None
) -> Sequence[Machine]:
    """The machine itself first, then those that it is compared with."""
    if sizes is None and accelerators is None:
        sizes = [machine.num_devices // 2, 2 * machine.num_devices]
    numbers = [number for number in sizes or () if number not in (0, machine.num_devices)]
    same = [machine, *(_of_size(machine, number) for number in numbers)]
    try:
        kinds = [find_accelerator(name) for name in accelerators or ()]
    except ConfigError as error:
        raise ArgumentError.about("accelerators", error) from None
    others = [
        replace(one, accelerator=kind, local=kind.local, nic=kind.nic)
        for kind in kinds
        if kind != machine.accelerator
        for one in same
    ]
    return [*same, *others]


def _of_size(machine: Machine, num_devices: int) -> Machine:
    return replace(machine, num_devices=num_devices, devices_per_host=min(num_devices, machine.devices_per_host))
