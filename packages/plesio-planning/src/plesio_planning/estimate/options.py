"""The fields of a model, a layout, a program and its conditions that an estimate can be asked with."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from plesio.core.inputs import Input, Written, fields_of
from plesio_planning.estimate.exploration import ClusterLinks, Exploration
from plesio_planning.estimate.layout import Layout, Software
from plesio_planning.estimate.model import Transformer
from plesio_planning.estimate.training import Conditions

__all__ = ["FIELDS", "of_class"]


def _written(owner: type, names: str = "", **others: Written) -> dict[str, Written]:
    """Return how some fields of a class are written, or all: as usual but for ``others``, in the order of the help."""
    return {name: others.get(name, Written()) for name in names.split() or [field.name for field in fields(owner)]}


_EXPLORATION = _written(Exploration, accelerators=Written(metavar="NAME,..."))
_LAYOUT = _written(
    Layout,
    "tp pp vpp dp ep cp zero sequence_parallel micro_batch recomputation precision",
    dp=Written(instead="what remains"),
    zero=Written(instead="1"),
    sequence_parallel=Written(instead="with tensor parallelism"),
    precision=Written(metavar="NAME"),
)
_MODEL = _written(
    Transformer,
    "sequence_length num_layers hidden_size num_heads num_kv_heads head_size ffn_size vocabulary_size gated biases "
    "dropout tied_embeddings parallel_blocks query_key_norms window num_window_layers num_experts experts_per_token "
    "shared_ffn_size num_dense_layers dense_ffn_size kv_rank query_rank rope_size",
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

FIELDS: tuple[Input, ...] = (
    *fields_of(ClusterLinks, _written(ClusterLinks)),
    # a switch of these is off where it is left out, and has no third value
    *(replace(one, optional=one.kind != "switch") for one in fields_of(Exploration, _EXPLORATION)),
    *fields_of(Layout, _LAYOUT),
    *fields_of(Transformer, _MODEL, instead="the model's"),
    *fields_of(Software, _SOFTWARE, instead="the software's"),
    *fields_of(Conditions, _CONDITIONS),
)
"""In the order of the help; no two classes have a field of the same name here."""


def of_class(owner: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given fields that are of this class; None is not given."""
    names = {field.name for field in fields(owner)}
    return {name: value for name, value in given.items() if name in names and value is not None}
