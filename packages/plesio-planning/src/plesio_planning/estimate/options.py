"""The options of an estimate, and the records that each is a field of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.inputs import Input, Written, fields_of
from plesio_planning.estimate.exploration import ClusterLinks, Exploration
from plesio_planning.estimate.exports import ProgramFiles
from plesio_planning.estimate.hardware import ACCELERATORS, Machine, find_accelerator
from plesio_planning.estimate.layout import Layout, Software
from plesio_planning.estimate.model import Transformer
from plesio_planning.estimate.run_plan import Limits
from plesio_planning.estimate.sites import Sites
from plesio_planning.estimate.training import Conditions

_GRADIENT_BYTES = {"fp32": 4, "bf16": 2}


def _written(owner: type, names: str = "", **others: Written) -> dict[str, Written]:
    """Return how some fields of a class are written, or all: as usual but for ``others``, in the order of the help."""
    return dict.fromkeys(names.split() or [field.name for field in fields(owner)], Written()) | others


_EXPLORATION = _written(Exploration, accelerators=Written(metavar="NAME,..."))
_LAYOUT = _written(
    Layout,
    "tp pp vpp dp ep etp cp zero shard sequence_parallel micro_batch recomputation recomputed_layers offload "
    "offload_activations schedule precision",
    dp=Written(instead="what remains"),
    etp=Written(instead="tp, or 1"),
    recomputed_layers=Written(instead="all"),
    offload=Written(instead="off, or as a search needs"),
    offload_activations=Written(instead="off, or as a search needs"),
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
    "storage_bytes_per_s checkpoint_interval_s device_mtbf_s restart_s price_per_h price_error market preemption_s "
    "pue draw region carbon_kg_per_kwh step_error confidence",
    storage_bytes_per_s=Written(instead="BLOOM's a device"),
    checkpoint_interval_s=Written(instead="the best"),
    price_per_h=Written(option="price", metavar="DOLLARS", instead="the accelerator's"),
    price_error=Written(metavar="SHARE", instead="0 of a price given, else 0.2"),
    market=Written(metavar="MARKET"),
    preemption_s=Written(instead="10 days"),
    region=Written(metavar="COUNTRY"),
    draw=Written(metavar="SHARE", instead="by what the time goes into"),
    carbon_kg_per_kwh=Written(option="carbon", metavar="KG", instead="the region's, or 0.385"),
    step_error=Written(metavar="SHARE", instead="that of published steps"),
    confidence=Written(metavar="SHARE"),
)
_LIMITS = _written(Limits, by=Written(metavar="DAY"), start=Written(metavar="DAY", instead="today"))
_FILES = _written(ProgramFiles, layout_file=Written(option="import", metavar="FILE"), calibrate=Written(metavar="FILE"))

_OF_ONE_MACHINE = ("failures", "any_memory", "search", "top", "layout_file")
"""Options that have no effect where machines are found."""

FIELDS: tuple[Input, ...] = (
    *fields_of(ClusterLinks, _written(ClusterLinks)),
    *fields_of(Limits, _LIMITS),
    # a switch of these is off where it is left out, and has no third value
    *(replace(one, optional=one.kind != "switch") for one in fields_of(Exploration, _EXPLORATION)),
    *fields_of(ProgramFiles, _FILES),
    *fields_of(Sites, _written(Sites)),
    *fields_of(Layout, _LAYOUT),
    *fields_of(Transformer, _MODEL, instead="the model's"),
    *fields_of(Software, _SOFTWARE, instead="the software's"),
    *fields_of(Conditions, _CONDITIONS),
)
"""In the order of the help; no two classes have a field of the same name here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of an estimate by the record that each is a field of; all share one namespace.

    Attributes:
        layout: Attributes of `Layout`, by name.
        sizes: Attributes of `Transformer`, by name.
        settings: Attributes of `Software`, by name.
    """

    links: ClusterLinks
    limits: Limits
    exploration: Exploration
    files: ProgramFiles
    sites: Sites
    conditions: Conditions
    layout: Mapping[str, Any]
    sizes: Mapping[str, Any]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, options: Mapping[str, Any], *, gradients: Literal["fp32", "bf16"] | None) -> "RunOptions":
        """Divide the options among the records, and refuse those that have no effect beside others."""
        settings = _of_class(Software, options)
        if gradients is not None:
            settings["gradient_bytes"] = _GRADIENT_BYTES[gradients]
        asked = cls(
            links=ClusterLinks(**_of_class(ClusterLinks, options)),
            limits=Limits(**_of_class(Limits, options)),
            exploration=Exploration(**_of_class(Exploration, options)),
            files=ProgramFiles(**_of_class(ProgramFiles, options)),
            sites=Sites(**_of_class(Sites, options)),
            conditions=Conditions(**_of_class(Conditions, options)),
            layout=_of_class(Layout, options),
            sizes=_of_class(Transformer, options),
            settings=settings,
        )
        of_one_machine = {name: options.get(name) for name in _OF_ONE_MACHINE}
        asked.limits.check_alone(of_one_machine | {"num_sites": asked.sites.num_sites > 1})
        if not asked.limits.given:
            asked.exploration.check()
        return asked

    @property
    def laid_out(self) -> bool:
        """True if the layout is given, rather than searched."""
        return not self.exploration.search and not self.limits.given

    @property
    def settings_may_be_lean(self) -> bool:
        """True if no setting says how gradients and master weights are kept, or all say it as a lean program does."""
        return self.settings.get("gradient_bytes", 2) == 2 and bool(self.settings.get("master_weight_remainders", True))

    def machines(self, cluster: str | None) -> Sequence[Machine]:
        """Return the machines that are looked at: the one that was named first, or one of each kind."""
        precision = self.layout.get("precision", "bf16")
        machines = _machines(cluster, self.links, self.exploration, self.limits, precision=precision)
        if self.conditions.price_per_h is not None and len({machine.accelerator.name for machine in machines}) > 1:
            raise ArgumentError("`price_per_h` is one accelerator's; leave it out to compare several")
        return machines


def _machines(
    cluster: str | None, links: ClusterLinks, exploration: Exploration, limits: Limits, *, precision: str
) -> Sequence[Machine]:
    """Return the machines that are looked at: the one that was named first, or one of each kind."""
    if cluster is not None:
        if limits.given and exploration.accelerators is not None:
            raise ArgumentError("`accelerators` are tried where there is no `cluster`; leave one of them out")
        machine = links.machine(cluster)
        return [machine] if limits.given else exploration.machines(machine)
    if not limits.given:
        raise ArgumentError(
            "there is no `cluster`; write `cluster = 2048xh100`, or `by` or `budget_dollars` to find one"
        )
    names = exploration.accelerators
    if names is None:
        names = tuple(name for name, one in ACCELERATORS.items() if one.offered and precision in one.flops_per_s)
    try:
        kinds = [find_accelerator(name) for name in names]
    except ConfigError as error:
        raise ArgumentError.about("accelerators", error) from None
    return [links.machine(f"{1 if kind.own_adapters else kind.devices_per_host}x{kind.name}") for kind in kinds]


def _of_class(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields that are of this class; None is not given."""
    names = {field.name for field in fields(owner)}
    return {name: value for name, value in given.items() if name in names and value is not None}
