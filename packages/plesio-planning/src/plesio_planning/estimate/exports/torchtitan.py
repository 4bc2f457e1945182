"""torchtitan's configuration, a TOML file.

Names are those of ``torchtitan/config/job_config.py`` of torchtitan 0.2.0, the last version whose files are TOML. A
model is a name and a flavor there, so the file has no sizes.
"""

from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.exports.file_format import (
    ImportedRun,
    degree_of,
    layers_of_part,
    read_values,
    refuse,
    transformer_of,
    unread_names,
    value_of,
)
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Model

_FLOAT8 = "quantize.linear.float8"
_PART = "pipeline_parallel_layers_per_stage"
_SCHEDULES = ("1F1B", "Interleaved1F1B")
_KNOWN = {
    "training": "local_batch_size global_batch_size seq_len mixed_precision_param mixed_precision_reduce "
    "enable_cpu_offload",
    "parallelism": "data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward "
    "tensor_parallel_degree enable_async_tensor_parallel context_parallel_degree expert_parallel_degree "
    "expert_tensor_parallel_degree pipeline_parallel_degree pipeline_parallel_schedule "
    "pipeline_parallel_microbatch_size pipeline_parallel_first_stage_less_layers "
    "pipeline_parallel_last_stage_less_layers pipeline_parallel_layers_per_stage",
    "activation_checkpoint": "mode",
    "model": "converters",
}
"""Keys that are written or read, by section."""


def write(model: Model, layout: Layout, global_batch: int) -> str:
    """Write the file.

    Raises:
        ConfigError: It has no place for something of the layout.
    """
    model = transformer_of("torchtitan", model)
    refuse(
        "torchtitan",
        layout,
        {
            "zero": (layout.zero == 1, "write 0, 2 or 3"),
            "sequence_parallel": (layout.tp > 1 and not layout.sequence_parallel, "write `sequence_parallel = True`"),
            "recomputation": (layout.recomputation not in ("none", "full"), "write none or full"),
            "recomputed_layers": (layout.recomputed_layers is not None, "leave it out"),
            "offload_activations": (layout.offload_activations, "leave it out"),
            "schedule": (layout.schedule != "1f1b", "write 1f1b"),
            "precision": (layout.precision not in ("bf16", "fp8"), "write bf16 or fp8"),
            "shard": (layout.shard is not None and layout.shard % layout.cp > 0, f"write a multiple of {layout.cp}"),
        },
    )
    if layout.gradient_bytes != 4:
        raise ArgumentError("torchtitan reduces gradients in FP32; write `gradients = fp32`, or more devices")
    shard = layout.sharing // layout.cp if layout.shard else (layout.dp if layout.zero else 1)
    sections: dict[str, dict[str, Any]] = {
        "training": {
            # a pipeline's step is one pass of all its micro-batches
            "local_batch_size": global_batch // layout.dp if layout.pp > 1 else layout.micro_batch,
            "global_batch_size": global_batch,
            "seq_len": model.sequence_length,
            "mixed_precision_param": "bfloat16",
            "mixed_precision_reduce": "float32",
            "enable_cpu_offload": layout.offload,
        },
        "parallelism": {
            "data_parallel_replicate_degree": layout.dp // shard,
            "data_parallel_shard_degree": shard,
            "fsdp_reshard_after_forward": "always" if layout.zero == 3 else "never",
            "tensor_parallel_degree": layout.tp,
            "enable_async_tensor_parallel": layout.software.splits_tensor,
            "context_parallel_degree": layout.cp,
            "expert_parallel_degree": layout.ep,
            "expert_tensor_parallel_degree": layout.expert_tp if layout.ep > 1 else 1,
            "pipeline_parallel_degree": layout.pp,
        },
        "activation_checkpoint": {"mode": layout.recomputation},
    }
    if layout.pp > 1:
        stages = {
            "pipeline_parallel_schedule": "Interleaved1F1B" if layout.vpp > 1 else "1F1B",
            "pipeline_parallel_microbatch_size": layout.micro_batch,
        }
        if layout.vpp > 1:
            # embedding and output count as no layers, so that all parts have as many
            none = {"pipeline_parallel_first_stage_less_layers": 0, "pipeline_parallel_last_stage_less_layers": 0}
            stages |= {_PART: layers_of_part("torchtitan", model, layout), **none}
        sections["parallelism"] |= stages
    if layout.precision == "fp8":
        sections["model"] = {"converters": [_FLOAT8]}
    head = (
        "# torchtitan 0.2.0 (torchtitan/config/job_config.py); add [model] name and flavor, and what is not of a layout"
    )
    return "\n".join([head, *(_section(name, values) for name, values in sections.items())])


def _section(name: str, values: dict[str, Any]) -> str:
    return f"\n[{name}]\n" + "".join(f"{key} = {_text(value)}\n" for key, value in values.items()).rstrip("\n")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def read(text: str) -> ImportedRun:
    """Read the file.

    Raises:
        ConfigError: It is no such file, or has what is not modelled.
    """
    values = read_values(text, "TOML", names=("parallelism", "training"), program="torchtitan")
    training, parallelism = value_of(values, "training", {}), value_of(values, "parallelism", {})
    mode = value_of(value_of(values, "activation_checkpoint", {}), "mode", "selective", among=("none", "full"))
    tp, pp, cp = (degree_of(parallelism, f"{name}_parallel_degree") for name in ("tensor", "pipeline", "context"))
    schedule = value_of(parallelism, "pipeline_parallel_schedule", "1F1B", among=_SCHEDULES if pp > 1 else ())
    replicates = degree_of(parallelism, "data_parallel_replicate_degree")
    shards = value_of(parallelism, "data_parallel_shard_degree", -1)
    if shards < 1 and shards != -1:
        raise ConfigError(f'"data_parallel_shard_degree" is {shards}; write 1 or more, or -1 for all that remain')
    always = value_of(parallelism, "fsdp_reshard_after_forward", "default", among=("default", "always", "never"))
    shares = shards != 1
    zero = 0 if not shares else 3 if always == "always" or (always == "default" and pp == 1) else 2
    layout: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "zero": zero,
        "sequence_parallel": tp > 1,
        "micro_batch": (
            degree_of(parallelism, "pipeline_parallel_microbatch_size")
            if pp > 1
            else degree_of(training, "local_batch_size", 8)
        ),
        "recomputation": mode,
        "offload": value_of(training, "enable_cpu_offload", False),
        "precision": "fp8" if _FLOAT8 in value_of(value_of(values, "model", {}), "converters", []) else "bf16",
    }
    if shards > 0:
        layout["dp"] = replicates * shards
        if shares and replicates > 1:
            layout["shard"] = shards * cp
    elif replicates > 1:
        raise ConfigError("data_parallel_shard_degree is -1 beside replicas; write how many devices share a copy")
    if (ep := degree_of(parallelism, "expert_parallel_degree")) > 1:
        layout |= {"ep": ep, "etp": degree_of(parallelism, "expert_tensor_parallel_degree")}
    batch = value_of(training, "global_batch_size", -1)
    settings = {"splits_tensor": True} if value_of(parallelism, "enable_async_tensor_parallel", False) else {}
    return ImportedRun(
        layout=layout,
        sizes={"sequence_length": degree_of(training, "seq_len", 2048)} if "seq_len" in training else {},
        settings={"gradient_bytes": 4, **settings},
        global_batch=batch if batch > 0 else None,
        part_layers=degree_of(parallelism, _PART) if _PART in parallelism and schedule != "1F1B" else None,
        unread=unread_names(values, _KNOWN),
    )
