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

_EXPLORATION = {
    **{field.name: Written() for field in fields(Exploration)},
    "accelerators": Written(metavar="NAME,..."),
}
_LAYOUT = {
    "tp": Written(),
    "pp": Written(),
    "vpp": Written(),
    "dp": Written(instead="what remains"),
    "ep": Written(),
    "cp": Written(),
    "zero": Written(instead="1"),
    "sequence_parallel": Written(instead="with tensor parallelism"),
    "micro_batch": Written(),
    "recomputation": Written(),
    "precision": Written(metavar="NAME"),
}
_MODEL = {
    "sequence_length": Written(),
    "num_layers": Written(),
    "hidden_size": Written(option="hidden"),
    "num_heads": Written(),
    "num_kv_heads": Written(),
    "head_size": Written(),
    "ffn_size": Written(option="ffn"),
    "vocabulary_size": Written(option="vocabulary"),
    "gated": Written(),
    "biases": Written(),
    "dropout": Written(),
    "tied_embeddings": Written(option="tied"),
    "parallel_blocks": Written(),
    "query_key_norms": Written(),
    "window": Written(),
    "num_window_layers": Written(),
    "num_experts": Written(),
    "experts_per_token": Written(),
    "shared_ffn_size": Written(option="shared-ffn"),
    "num_dense_layers": Written(),
    "dense_ffn_size": Written(option="dense-ffn"),
    "kv_rank": Written(),
    "query_rank": Written(),
    "rope_size": Written(),
}
_SOFTWARE = {field.name: Written() for field in fields(Software) if field.name != "gradient_bytes"}
_CONDITIONS = {
    "storage_bytes_per_s": Written(instead="BLOOM's a device"),
    "checkpoint_interval_s": Written(instead="the best"),
    "device_mtbf_s": Written(),
    "restart_s": Written(),
    "price_per_h": Written(option="price", metavar="DOLLARS", instead="the accelerator's"),
    "pue": Written(),
    "carbon_kg_per_kwh": Written(option="carbon", metavar="KG"),
    "step_error": Written(metavar="SHARE", instead="that of published steps"),
    "confidence": Written(metavar="SHARE"),
}

FIELDS: tuple[Input, ...] = (
    *fields_of(ClusterLinks, {field.name: Written() for field in fields(ClusterLinks)}),
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
