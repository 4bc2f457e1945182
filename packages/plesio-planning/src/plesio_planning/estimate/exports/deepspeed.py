"""DeepSpeed's configuration, a JSON file.

Names are those of DeepSpeed 0.19.8: ``deepspeed/runtime/constants.py``, ``runtime/zero/config.py`` and
``runtime/tensor_parallel/config.py``. Its file has no stages (they are an argument of ``PipelineModule``), no experts
and no context parallelism; recomputation is the program's, which a section ``activation_checkpointing`` is read as.
"""

import json
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.exports.file_format import (
    ImportedRun,
    degree_of,
    read_values,
    refuse,
    unread_names,
    value_of,
)
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Convolutional, Model

_ELSEWHERE = "export to megatron or torchtitan, or write 1"
_KNOWN = {
    "train_batch_size": "",
    "train_micro_batch_size_per_gpu": "",
    "gradient_accumulation_steps": "",
    "bf16": "",
    "fp16": "",
    "data_types": "",
    "tensor_parallel": "",
    "activation_checkpointing": "",
    "sequence_parallel_size": "",
    "zero_optimization": "stage overlap_comm offload_optimizer offload_param zero_quantized_weights "
    "zero_quantized_gradients",
}
"""Keys that are written or read, by section; all of a section without them."""


def write(model: Model, layout: Layout, global_batch: int) -> str:
    """Write the file.

    Raises:
        ConfigError: It has no place for something of the layout.
    """
    software = layout.software
    refuse(
        "DeepSpeed's file",
        layout,
        {
            "pp": (layout.pp > 1, _ELSEWHERE),
            "cp": (layout.cp > 1, _ELSEWHERE),
            "ep": (layout.ep > 1, _ELSEWHERE),
            "offload_activations": (layout.offload_activations, "leave it out"),
            "shard": (layout.shard is not None, "leave it out"),
            "sequence_parallel": (layout.sequence_parallel, "write `tp = 1`, or `sequence_parallel = False`"),
            "recomputation": (layout.recomputation not in ("none", "full"), "write none or full"),
            "recomputed_layers": (layout.recomputed_layers is not None, "leave it out"),
            "precision": (layout.precision == "fp8", "write bf16, fp16 or fp32"),
        },
    )
    if layout.keeps_remainders:
        raise ArgumentError("DeepSpeed keeps whole master weights; write `gradients = fp32`, or more devices")
    zero: dict[str, Any] = {"stage": layout.zero, "overlap_comm": software.overlaps_gradients}
    if layout.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if software.quantizes_exchanges:
        zero |= {"zero_quantized_weights": True, "zero_quantized_gradients": True}
    values: dict[str, Any] = {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": global_batch // (layout.dp * layout.micro_batch),
        "zero_optimization": zero,
        "bf16": {"enabled": layout.precision == "bf16"},
        "fp16": {"enabled": layout.precision == "fp16"},
    }
    if not layout.full_precision:
        values["data_types"] = {"grad_accum_dtype": "fp32" if layout.gradient_bytes == 4 else layout.precision}
    if layout.tp > 1:
        values["tensor_parallel"] = {"autotp_size": layout.tp}
    if layout.recomputation == "full" and not isinstance(model, Convolutional):
        values["activation_checkpointing"] = {"number_checkpoints": model.num_layers}
    return json.dumps(values, indent=2) + "\n"


def read(text: str) -> ImportedRun:
    """Read the file.

    Raises:
        ConfigError: It is no such file, or has what is not modelled.
    """
    values = read_values(
        text,
        "JSON",
        names=("zero_optimization", "train_micro_batch_size_per_gpu"),
        program="DeepSpeed (a config.json is a model)",
    )
    zero = _section(values, "zero_optimization")
    if _whole(values, "sequence_parallel_size", 1) > 1:
        raise ConfigError('"sequence_parallel_size" is of Ulysses, which is not modelled; write 1')
    offload = _section(zero, "offload_optimizer").get("device", "none")
    if _section(zero, "offload_param").get("device", "none") != "none" or offload == "nvme":
        raise ConfigError("parameters in the host and states on disks are not modelled; leave them out")
    fp16, bf16 = (bool(_section(values, name).get("enabled")) for name in ("fp16", "bf16"))
    layout = {
        "tp": _whole(_section(values, "tensor_parallel"), "autotp_size", 1),
        "pp": 1,
        "zero": value_of(zero, "stage", 0),
        "sequence_parallel": False,
        "micro_batch": _whole(values, "train_micro_batch_size_per_gpu", 1),
        "recomputation": "full" if "activation_checkpointing" in values else "none",
        "offload": offload == "cpu",
        "precision": "bf16" if bf16 else "fp16" if fp16 else "fp32",
    }
    dtype = _section(values, "data_types").get("grad_accum_dtype")
    settings = {
        **({} if dtype is None else {"gradient_bytes": 4 if dtype == "fp32" else 2}),
        **({"overlaps_gradients": bool(zero["overlap_comm"])} if "overlap_comm" in zero else {}),
        **({"quantizes_exchanges": True} if zero.get("zero_quantized_gradients") else {}),
    }
    batch = values.get("train_batch_size")
    return ImportedRun(
        layout=layout,
        settings=settings,
        global_batch=batch if type(batch) is int else None,
        unread=unread_names(values, _KNOWN),
    )


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    return value_of(values, name, {})


def _whole(values: dict[str, Any], name: str, usual: int) -> int:
    return usual if values.get(name) == "auto" else degree_of(values, name, usual)
