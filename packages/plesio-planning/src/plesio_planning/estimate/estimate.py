"""An estimate from the words that a person has: a model's name, a machine's, and what is known of the layout."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from plesio.core.charts import Chart, Table
from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.inputs import FieldsOf, Input, Written, checked, fields_of
from plesio.core.within import Within
from plesio_planning.estimate.capacity import that_fits
from plesio_planning.estimate.exploration import ClusterLinks, Exploration
from plesio_planning.estimate.failures import RunOnFailingDevices, run_on_failing_devices
from plesio_planning.estimate.frontier import Frontier, find_frontier
from plesio_planning.estimate.hardware import Machine
from plesio_planning.estimate.layout import SOFTWARE, Layout, Software, SoftwareName
from plesio_planning.estimate.memory import estimate_memory
from plesio_planning.estimate.model import Convolutional, Model, Transformer
from plesio_planning.estimate.named_models import find_model
from plesio_planning.estimate.search_charts import search_charts, search_finding, search_tables
from plesio_planning.estimate.sensitivity import Sensitivity, tornado
from plesio_planning.estimate.step import estimate_step
from plesio_planning.estimate.training import Conditions, Training, estimate_training
from plesio_planning.estimate.training_charts import format_layout, training_charts, training_finding, training_tables
from plesio_planning.estimate.usual_software import usual_software

__all__ = ["Estimate", "estimate"]

_BATCH_TOKENS = 2**22
"""Tokens of a step, if nobody says: about the 4M of Llama 2 (Touvron et al. 2023b)."""
_TOP = 10
"""Layouts that a search shows, if nobody says."""
_GRADIENT_BYTES = {"fp32": 4, "bf16": 2}
_BATCH_IMAGES = 32
"""Images of a device (Goyal et al. 2017)."""
_DERIVED: Mapping[str, Callable[[Transformer], int]] = {
    "head_size": lambda model: model.hidden_size // model.num_heads,
    "num_window_layers": lambda model: model.num_layers,
}
"""The values of sizes that follow from others where they are left out."""
_INPUTS = {"gradient_bytes": "gradients"}
"""Names of the inputs that set a program, where they differ."""


def _written(owner: type, names: str = "", **others: Written) -> dict[str, Written]:
    """Return how some fields of a class are written, or all: as usual but for ``others``, in the order of the help."""
    return dict.fromkeys(names.split() or [field.name for field in fields(owner)], Written()) | others


_EXPLORATION = _written(Exploration, accelerators=Written(metavar="NAME,..."))
_LAYOUT = _written(
    Layout,
    "tp pp vpp dp ep etp cp zero shard sequence_parallel micro_batch recomputation recomputed_layers offload schedule "
    "precision",
    dp=Written(instead="what remains"),
    etp=Written(instead="tp, or 1"),
    recomputed_layers=Written(instead="all"),
    zero=Written(instead="1"),
    shard=Written(instead="all replicas"),
    sequence_parallel=Written(instead="with tensor parallelism"),
    precision=Written(metavar="NAME"),
)
_MODEL = _written(
    Transformer,
    "sequence_length num_layers hidden_size num_heads num_kv_heads head_size ffn_size vocabulary_size gated biases "
    "dropout tied_embeddings parallel_blocks query_key_norms window num_window_layers num_experts experts_per_token "
    "expert_hosts capacity_factor shared_ffn_size num_dense_layers dense_ffn_size kv_rank query_rank rope_size",
    hidden_size=Written(option="hidden"),
    ffn_size=Written(option="ffn"),
    vocabulary_size=Written(option="vocabulary"),
    tied_embeddings=Written(option="tied"),
    shared_ffn_size=Written(option="shared-ffn"),
    dense_ffn_size=Written(option="dense-ffn"),
)
_SOFTWARE = {name: how for name, how in _written(Software).items() if name != "gradient_bytes"}
_CONDITIONS = _written(
    Conditions,
    "storage_bytes_per_s checkpoint_interval_s device_mtbf_s restart_s price_per_h pue carbon_kg_per_kwh step_error "
    "confidence",
    storage_bytes_per_s=Written(instead="BLOOM's a device"),
    checkpoint_interval_s=Written(instead="the best"),
    price_per_h=Written(option="price", metavar="DOLLARS", instead="the accelerator's"),
    carbon_kg_per_kwh=Written(option="carbon", metavar="KG"),
    step_error=Written(metavar="SHARE", instead="that of published steps"),
    confidence=Written(metavar="SHARE"),
)

_FIELDS: tuple[Input, ...] = (
    *fields_of(ClusterLinks, _written(ClusterLinks)),
    # a switch of these is off where it is left out, and has no third value
    *(replace(one, optional=one.kind != "switch") for one in fields_of(Exploration, _EXPLORATION)),
    *fields_of(Layout, _LAYOUT),
    *fields_of(Transformer, _MODEL, instead="the model's"),
    *fields_of(Software, _SOFTWARE, instead="the software's"),
    *fields_of(Conditions, _CONDITIONS),
)
"""In the order of the help; no two classes have a field of the same name here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All that is shown of an estimate.

    Attributes:
        frontier: Searched layouts; None if the layout was given.
        top: Layouts of the search that are shown.
        why_software: A sentence about the program that was chosen; empty if it was given.
        failures: The run on devices that fail; None if nobody asked.
    """

    training: Training
    sensitivities: tuple[Sensitivity, ...]
    frontier: Frontier | None = None
    top: int = _TOP
    why_software: str = ""
    failures: RunOnFailingDevices | None = None

    @property
    def findings(self) -> Sequence[str]:
        """The run's with its notes, the search's, and that of failures."""
        found = [training_finding(self.training, self.sensitivities), self.why_software, *self.training.notes]
        if self.frontier is not None:
            found.append(search_finding(self.training, self.frontier))
        if self.failures is not None:
            found.append(self.failures.finding)
        return [sentence for sentence in found if sentence]

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
    software: Annotated[Literal[SoftwareName, "auto"], Written(metavar="NAME")] = "current",
    year: Annotated[int | None, Within(2017, 2100), Written(instead="two years after the accelerator came out")] = None,
    gradients: Literal["fp32", "bf16"] | None = None,
    **options: Annotated[Any, FieldsOf(_FIELDS)],
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
        software: current, megatron-core, megatron-2022, megatron-2021, megatron-deepspeed-2022, fsdp-2023,
            deepspeed-2021; auto: the one that ran such a layout in that year.
        year: Year of the run, for auto.
        gradients: Precision in which gradients are kept and exchanged; else the software's.
        options: Fields of `ClusterLinks`, `Exploration`, `Layout`, `Transformer`, `Software` and `Conditions`.

    Raises:
        ConfigError: A name that is unknown, a layout that cannot be or does not fit, or a number out of range.
    """
    exploration = Exploration(**_of_class(Exploration, options))
    machine = ClusterLinks(**_of_class(ClusterLinks, options)).machine(cluster)
    machines = exploration.machines(machine)
    conditions = Conditions(**_of_class(Conditions, options))
    _check_price(conditions.price_per_h, machines)
    named, why = software, ""
    if named == "auto":
        zero = options.get("zero")
        if zero is None and not exploration.search:
            zero = 1
        named, why = usual_software(machine, zero=zero, year=year)
    elif year is not None:
        raise ArgumentError("`year` chooses among programs; write `software = auto`, or leave it out")
    # fields of several records share one namespace of options
    program = _of_class(Software, options)
    if gradients is not None:
        program["gradient_bytes"] = _GRADIENT_BYTES[gradients]
    sizes = _of_class(Transformer, options)
    run = _Run(
        model=find_model(model, **sizes),
        tokens=tokens,
        global_batch=global_batch,
        conditions=conditions,
        given={**_of_class(Layout, options), "software": replace(SOFTWARE[named], **program)},
        # only a program whose settings were left open may be replaced by the lean one
        may_be_lean=program.get("gradient_bytes", 2) == 2 and bool(program.get("master_weight_remainders", True)),
    )
    if exploration.search:
        found = run.searched(machines, top=exploration.top or _TOP, on_progress=on_progress)
    else:
        found = run.laid_out(machine, any_memory=exploration.any_memory)
        # an option that changed nothing is refused, rather than taken in silence
        _check_effects(found.training, usual=SOFTWARE[named], settings=program, model=model, sizes=sizes)
    failures = run_on_failing_devices(found.training) if exploration.failures else None
    return replace(found, why_software=why, failures=failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A training run without a machine.

    Attributes:
        tokens: Tokens (images) to train with.
        global_batch: Sequences (images) of a step; None for the default.
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
            global_batch=self._batch(machines[0]),
            near=self.global_batch is None,
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
        global_batch = self._batch(machine, multiple_of=layout.batch_unit)
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

    def _batch(self, machine: Machine, *, multiple_of: int = 1) -> int:
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


def _of_class(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields that are of this class; None is not given."""
    names = {field.name for field in fields(owner)}
    return {name: value for name, value in given.items() if name in names and value is not None}


def _check_effects(
    training: Training,
    *,
    usual: Software,
    settings: Mapping[str, Any],
    model: str | None,
    sizes: Mapping[str, Any],
) -> None:
    """Make sure that every setting and size which was given changes the step or the memory of the run.

    Whether one does depends on all the others, so that it is not looked up but tried: the step and the memory are
    estimated again as they would be without it. In a search it is not asked, because other layouts may be changed.
    ``usual`` is the program without the settings.

    Raises:
        ConfigError: Something changes nothing.
    """
    for name, without in [*_other_layouts(training, usual, settings), *_other_models(training, model, sizes)]:
        try:
            same = _estimated(training, *without) == _estimated(training, training.model, training.layout)
        except ConfigError:
            continue  # without it there is no run
        if same:
            raise ArgumentError(
                f"`{_INPUTS.get(name, name)}` has no effect on {training.model.name} on {training.machine.name} with "
                f"{format_layout(training.layout)}; leave it out"
            )


def _other_layouts(
    training: Training, usual: Software, settings: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Model, Layout]]]:
    """Yield the layout without each setting that is not the program's own, and without a recomputation."""
    layout = training.layout
    for name, value in settings.items():
        own = getattr(usual, name)
        if value != own:
            yield name, (training.model, replace(layout, software=replace(layout.software, **{name: own})))
    if layout.recomputation != "none":
        yield "recomputation", (training.model, replace(layout, recomputation="none", recomputed_layers=None))


def _other_models(
    training: Training, model: str | None, sizes: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Model, Layout]]]:
    """Yield the model without each size that is not its own."""
    for name in sizes:
        try:
            without = find_model(model, **{other: value for other, value in sizes.items() if other != name})
        except ConfigError:
            continue  # it needs that size
        # a size that only repeats the model's own is no mistake
        own = _DERIVED[name](without) if name in _DERIVED and isinstance(without, Transformer) else None
        if sizes[name] not in (own, getattr(without, name)):
            yield name, (without, training.layout)


def _estimated(training: Training, model: Model, layout: Layout) -> tuple[Any, ...]:
    global_batch = training.step.num_samples
    step = estimate_step(model, layout, training.machine, global_batch=global_batch, constants=training.constants)
    memory = estimate_memory(model, layout, training.machine, global_batch=global_batch)
    return step.parts, step.model_flops, memory
