"""An estimate from the words that a person has: a model's name, a machine's, and what is known of the layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from plesio.core.charts import Chart, Table
from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.inputs import FieldsOf, Written, checked
from plesio.core.within import BANDWIDTH, Within
from plesio_planning.estimate.capacity import that_fits
from plesio_planning.estimate.failures import RunOnFailingDevices, run_on_failing_devices
from plesio_planning.estimate.frontier import Frontier, find_frontier
from plesio_planning.estimate.hardware import Accelerator, Machine, find_accelerator, machine_of, parse_machine
from plesio_planning.estimate.layout import SOFTWARE, Layout, Software, SoftwareName
from plesio_planning.estimate.model import Convolutional, Model, Transformer
from plesio_planning.estimate.named_models import find_model
from plesio_planning.estimate.no_effect import check_effects
from plesio_planning.estimate.options import FIELDS, of_class
from plesio_planning.estimate.search_charts import search_charts, search_finding, search_tables
from plesio_planning.estimate.sensitivity import Sensitivity, tornado
from plesio_planning.estimate.training import Conditions, Training, estimate_training
from plesio_planning.estimate.training_charts import training_charts, training_finding, training_tables

__all__ = ["Estimate", "estimate"]

_BATCH_TOKENS = 2**22
"""Tokens of a step, if nobody says: about the 4M of Llama 2 (Touvron et al. 2023b)."""
_TOP = 10
"""Layouts that a search shows, if nobody says."""
_GRADIENT_BYTES = {"fp32": 4, "bf16": 2}
_BATCH_IMAGES = 32
"""Images of a device (Goyal et al. 2017)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All that is shown of an estimate.

    Attributes:
        training: The run.
        sensitivities: Its tornado.
        frontier: Searched layouts; None if the layout was given.
        top: Layouts of the search that are shown.
        failures: The run on devices that fail; None if nobody asked.
    """

    training: Training
    sensitivities: tuple[Sensitivity, ...]
    frontier: Frontier | None = None
    top: int = _TOP
    failures: RunOnFailingDevices | None = None

    @property
    def findings(self) -> Sequence[str]:
        """The run's with its notes, the search's, and that of failures."""
        found = [training_finding(self.training, self.sensitivities), *self.training.notes]
        if self.frontier is not None:
            found.append(search_finding(self.training, self.frontier))
        return found if self.failures is None else [*found, self.failures.finding]

    @property
    def tables(self) -> Sequence[Table]:
        """The search's, then the run's, then those of failures."""
        found = [] if self.frontier is None else [*search_tables(self.training, self.frontier, top=self.top)]
        found += training_tables(self.training, self.sensitivities)
        return found if self.failures is None else [*found, *self.failures.tables]

    @property
    def charts(self) -> Sequence[Chart]:
        """The search's, then the run's, then those of failures."""
        found = [] if self.frontier is None else [*search_charts(self.training, self.frontier)]
        found += training_charts(self.training, self.sensitivities)
        return found if self.failures is None else [*found, *self.failures.charts]


@checked
def estimate(
    on_progress: Callable[[str, int, int], None] = lambda machine, done, total: None,
    /,
    *,
    model: Annotated[str | None, Written(metavar="NAME|FILE")] = None,
    cluster: Annotated[str, Written(metavar="NxNAME")],
    tokens: float,
    global_batch: Annotated[int | None, Written(option="batch")] = None,
    software: Annotated[SoftwareName, Written(metavar="NAME")] = "current",
    gradients: Literal["fp32", "bf16"] | None = None,
    local_bytes_per_s: Annotated[float | None, BANDWIDTH] = None,
    network_bytes_per_s: Annotated[float | None, BANDWIDTH] = None,
    failures: bool = False,
    any_memory: bool = False,
    search: bool = False,
    top: Annotated[int | None, Within(1)] = None,
    num_devices: Annotated[tuple[int, ...] | None, Within(1)] = None,
    accelerators: Annotated[tuple[str, ...] | None, Written(metavar="NAME,...")] = None,
    **fields: Annotated[Any, FieldsOf(FIELDS)],
) -> Estimate:
    """Estimate time, memory, cost and energy of a training run.

    From the model, the machine and how one is laid out over the other; or with the fastest layout of all. Needs no
    accelerator.

    >>> run = estimate(model="llama-70b", cluster="2048xh100", tokens=2e12, tp=8, pp=4).training
    >>> run.num_steps, round(run.goodput.share, 2)
    (476838, 0.98)

    Args:
        on_progress: Called now and then in a search: a machine's name, the layouts tried on it, and all of them.
        model: llama-70b, or a config.json; without, the sizes say it.
        cluster: 2048xh100, or 16x4a100: hosts of 4.
        tokens: Tokens to train with: 2T, 300B; images of a CNN.
        global_batch: Sequences (images) of a step; else about 4M tokens, 32 images a device.
        software: current, megatron-core, megatron-2022, megatron-2021, fsdp-2023, deepspeed-2021.
        gradients: Precision in which gradients are kept and exchanged; else the software's.
        local_bytes_per_s: Bandwidth in a host: "450 GB/s"; else the accelerator's.
        network_bytes_per_s: Bandwidth of a host to others: "3200 Gbit/s"; else the accelerator's.
        failures: Show every way to go on when devices fail, up to a million of them.
        any_memory: Estimate also what does not fit into the devices' memory.
        search: Find the fastest layout; keep the degrees given.
        top: Layouts that a search shows; else 10.
        num_devices: Machines that a search compares; else half and twice.
        accelerators: The same, of other accelerators.
        fields: Fields of `Layout`, `Transformer`, `Software` and `Conditions`, as `plesio_planning.estimate.options`
            lists.

    Raises:
        ConfigError: A name that is unknown, a layout that cannot be or does not fit, or a number out of range.
    """
    if not search and (num_devices, accelerators) != (None, None):
        raise ArgumentError("`num_devices` and `accelerators` compare machines; add `search`")
    if not search and top is not None:
        raise ArgumentError("`top` is of a search; add `search`")
    if search and any_memory:
        raise ArgumentError("`any_memory` has no effect with `search`, which finds what fits; leave one of them out")
    machine = _machine(cluster, local_bytes_per_s=local_bytes_per_s, network_bytes_per_s=network_bytes_per_s)
    machines = _machines(machine, sizes=num_devices, accelerators=accelerators) if search else [machine]
    conditions = Conditions(**of_class(Conditions, fields))
    _check_price(conditions.price_per_h, machines)
    # fields of four records share one namespace of options
    program = of_class(Software, fields)
    if gradients is not None:
        program["gradient_bytes"] = _GRADIENT_BYTES[gradients]
    degrees, sizes = of_class(Layout, fields), of_class(Transformer, fields)
    run = _Run(
        model=find_model(model, **sizes),
        tokens=tokens,
        global_batch=global_batch,
        conditions=conditions,
        kind={"precision": degrees.pop("precision", "bf16"), "software": replace(SOFTWARE[software], **program)},
        given=degrees,
    )
    # only a program whose settings were left open may be replaced by the lean one
    may_be_lean = _may_be_lean(program)
    if search:
        found = run.searched(machines, top=top or _TOP, may_be_lean=may_be_lean, on_progress=on_progress)
    else:
        found = run.laid_out(machine, any_memory=any_memory, may_be_lean=may_be_lean)
        # an option that changed nothing is refused, rather than taken in silence
        check_effects(found.training, usual=SOFTWARE[software], settings=program, model=model, sizes=sizes)
    return replace(found, failures=run_on_failing_devices(found.training)) if failures else found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A training run without a machine.

    Attributes:
        model: Model to train.
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
        self,
        machines: Sequence[Machine],
        *,
        top: int,
        may_be_lean: bool,
        on_progress: Callable[[str, int, int], None],
    ) -> Estimate:
        """Find the fastest layout on the first machine, and the frontier of all.

        Args:
            machines: Machines to run on.
            top: Layouts that are shown.
            may_be_lean: Whether the program may keep less where nothing else fits.
            on_progress: Called now and then.
        """
        frontier = find_frontier(
            self.model,
            machines,
            global_batch=self._batch(machines[0], multiple_of=1),
            fixed=self.given,
            may_be_lean=may_be_lean,
            on_progress=on_progress,
            tokens=self.tokens,
            conditions=self.conditions,
            **self.kind,
        )
        training = frontier.on(machines[0])
        return Estimate(training=training, sensitivities=tornado(training), frontier=frontier, top=top)

    def laid_out(self, machine: Machine, *, any_memory: bool, may_be_lean: bool) -> Estimate:
        """Estimate the layout that is given, with replicas on the devices that remain.

        Args:
            machine: Machine to run on.
            any_memory: Whether it need not fit into the memory.
            may_be_lean: Whether the program may keep less where nothing else fits.
        """
        layout = self._layout(machine)
        multiple_of = layout.dp * layout.micro_batch * (layout.pp if layout.vpp > 1 else 1)
        global_batch = self._batch(machine, multiple_of=multiple_of)
        if may_be_lean:
            layout = that_fits(self.model, layout, machine, global_batch=global_batch)
        training = estimate_training(
            self.model,
            layout,
            machine,
            global_batch=global_batch,
            tokens=self.tokens,
            conditions=self.conditions,
            any_memory=any_memory,
        )
        return Estimate(training=training, sensitivities=tornado(training))

    def _layout(self, machine: Machine) -> Layout:
        tp = self.given.get("tp", 1)
        replica = tp * self.given.get("pp", 1) * self.given.get("cp", 1)
        remaining = {"dp": max(machine.num_devices // max(replica, 1), 1), "zero": 1}
        return Layout(**{**remaining, "sequence_parallel": tp > 1, **self.given}, **self.kind)

    def _batch(self, machine: Machine, *, multiple_of: int) -> int:
        if self.global_batch is not None:
            return self.global_batch
        if isinstance(self.model, Convolutional):
            wanted = _BATCH_IMAGES * machine.num_devices
        else:
            wanted = max(_BATCH_TOKENS // self.model.sequence_length, 1)
        return -(-wanted // multiple_of) * multiple_of


def _may_be_lean(program: Mapping[str, Any]) -> bool:
    """Return True if the given settings leave it open to keep less of a parameter."""
    return program.get("gradient_bytes", 2) == 2 and bool(program.get("master_weight_remainders", True))


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
    """Return the machine itself first, then those that it is compared with."""
    if sizes is None and accelerators is None:
        sizes = [_half(machine), 2 * machine.num_devices]
    numbers = [number for number in sizes or () if number not in (0, machine.num_devices)]
    same = [machine, *(_of_size(machine, number) for number in numbers)]
    try:
        kinds = [find_accelerator(name) for name in accelerators or ()]
        others = [_of_kind(one, kind) for kind in kinds if kind != machine.accelerator for one in same]
    except ConfigError as error:
        raise ArgumentError.about("accelerators", error) from None
    if not same[1:] and not others:
        given = "num_devices" if sizes else "accelerators"
        raise ArgumentError(f"`{given}` has no machine beside {machine.name} itself; write another, or leave it out")
    return [*same, *others]


def _half(machine: Machine) -> int:
    """Return half of the devices, in whole hosts where those must be whole; 0 for a single device."""
    if machine.num_hosts == 1 or machine.accelerator.own_adapters:
        return machine.num_devices // 2
    return machine.num_hosts // 2 * machine.devices_per_host


def _of_size(machine: Machine, num_devices: int) -> Machine:
    """Return more or fewer of the same hosts, or a smaller one."""
    if not machine.accelerator.own_adapters:
        return replace(machine, num_devices=num_devices, devices_per_host=min(num_devices, machine.devices_per_host))
    a_host = machine.accelerator.host_of(num_devices)
    nic = replace(machine.nic, bytes_per_s=machine.nic.bytes_per_s * a_host / machine.devices_per_host)
    return replace(machine, num_devices=num_devices, devices_per_host=a_host, nic=nic)


def _of_kind(machine: Machine, kind: Accelerator) -> Machine:
    """Return as many other accelerators, in hosts of the same size if both kinds are on boards."""
    on_boards = not (machine.accelerator.own_adapters or kind.own_adapters)
    return machine_of(kind, machine.num_devices, devices_per_host=machine.devices_per_host if on_boards else None)
