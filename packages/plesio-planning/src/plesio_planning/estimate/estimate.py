"""An estimate from the words that a person has: a model's name, a machine's, and what is known of the layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from plesio.core.charts import Chart, Table
from plesio.core.errors import ArgumentError
from plesio.core.inputs import FieldsOf, Written, checked
from plesio_planning.estimate.capacity import that_fits
from plesio_planning.estimate.exploration import ClusterLinks, Exploration
from plesio_planning.estimate.failures import RunOnFailingDevices, run_on_failing_devices
from plesio_planning.estimate.frontier import Frontier, find_frontier
from plesio_planning.estimate.hardware import Machine
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
        fields: Fields of `ClusterLinks`, `Exploration`, `Layout`, `Transformer`, `Software` and `Conditions`, as
            `plesio_planning.estimate.options` lists.

    Raises:
        ConfigError: A name that is unknown, a layout that cannot be or does not fit, or a number out of range.
    """
    exploration = Exploration(**of_class(Exploration, fields))
    machine = ClusterLinks(**of_class(ClusterLinks, fields)).machine(cluster)
    machines = exploration.machines(machine)
    conditions = Conditions(**of_class(Conditions, fields))
    _check_price(conditions.price_per_h, machines)
    # fields of several records share one namespace of options
    program = of_class(Software, fields)
    if gradients is not None:
        program["gradient_bytes"] = _GRADIENT_BYTES[gradients]
    sizes = of_class(Transformer, fields)
    run = _Run(
        model=find_model(model, **sizes),
        tokens=tokens,
        global_batch=global_batch,
        conditions=conditions,
        given={**of_class(Layout, fields), "software": replace(SOFTWARE[software], **program)},
        # only a program whose settings were left open may be replaced by the lean one
        may_be_lean=program.get("gradient_bytes", 2) == 2 and bool(program.get("master_weight_remainders", True)),
    )
    if exploration.search:
        found = run.searched(machines, top=exploration.top or _TOP, on_progress=on_progress)
    else:
        found = run.laid_out(machine, any_memory=exploration.any_memory)
        # an option that changed nothing is refused, rather than taken in silence
        check_effects(found.training, usual=SOFTWARE[software], settings=program, model=model, sizes=sizes)
    return replace(found, failures=run_on_failing_devices(found.training)) if exploration.failures else found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A training run without a machine.

    Attributes:
        tokens: Tokens (images) to train with.
        global_batch: Sequences (images) of a step; None for the default.
        conditions: Failures, prices and errors.
        given: The layout's attributes that are given, its software always, by name.
        may_be_lean: Whether the program may keep less where nothing else fits.
    """

    model: Model
    tokens: float
    global_batch: int | None
    conditions: Conditions
    given: Mapping[str, Any]
    may_be_lean: bool

    def searched(
        self, machines: Sequence[Machine], *, top: int, on_progress: Callable[[str, int, int], None]
    ) -> Estimate:
        """Find the fastest layout on the first machine, and the frontier of all."""
        frontier = find_frontier(
            self.model,
            machines,
            global_batch=self._batch(machines[0], multiple_of=1),
            fixed=self.given,
            may_be_lean=self.may_be_lean,
            on_progress=on_progress,
            tokens=self.tokens,
            conditions=self.conditions,
        )
        training = frontier.on(machines[0])
        return Estimate(training=training, sensitivities=tornado(training), frontier=frontier, top=top)

    def laid_out(self, machine: Machine, *, any_memory: bool) -> Estimate:
        """Estimate the layout that is given, with replicas on the devices that remain."""
        layout = self._layout(machine)
        multiple_of = layout.dp * layout.micro_batch * (layout.pp if layout.vpp > 1 else 1)
        global_batch = self._batch(machine, multiple_of=multiple_of)
        if self.may_be_lean:
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
        return Layout(**{**remaining, "sequence_parallel": tp > 1, **self.given})

    def _batch(self, machine: Machine, *, multiple_of: int) -> int:
        if self.global_batch is not None:
            return self.global_batch
        if isinstance(self.model, Convolutional):
            wanted = _BATCH_IMAGES * machine.num_devices
        else:
            wanted = max(_BATCH_TOKENS // self.model.sequence_length, 1)
        return -(-wanted // multiple_of) * multiple_of


def _check_price(price_per_h: float | None, machines: Sequence[Machine]) -> None:
    if price_per_h is not None and len({machine.accelerator.name for machine in machines}) > 1:
        raise ArgumentError("`price_per_h` is one accelerator's; leave it out to compare several")
