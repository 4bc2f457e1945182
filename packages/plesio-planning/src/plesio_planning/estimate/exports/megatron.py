"""Flags of Megatron-LM's ``pretrain_gpt.py``, as a shell file.

Names are those of Megatron-LM core_v0.15.0: ``megatron/training/arguments.py``, and where those follow from the fields
of a configuration, ``TransformerConfig``, ``MLATransformerConfig``, ``ModelParallelConfig``, ``OptimizerConfig`` and
``DistributedDataParallelConfig`` of megatron-core 0.15.0. Its replicas are the devices that remain.
"""

from collections.abc import Iterator
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.exports.file_format import ImportedRun, refuse, transformer_of
from plesio_planning.estimate.exports.flags import Flags
from plesio_planning.estimate.exports.megatron_model import model_flags, sizes_of
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Model, Transformer

_NAME = "Megatron-LM"
_LEAN = ("use-precision-aware-optimizer", "main-grads-dtype bf16")
_STRATEGIES = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_KNOWN = (
    "tensor-model-parallel-size pipeline-model-parallel-size context-parallel-size expert-model-parallel-size "
    "expert-tensor-parallel-size sequence-parallel recompute-granularity recompute-method recompute-num-layers "
    "recompute-modules bf16 fp16 fp8-format decoder-last-pipeline-num-layers account-for-loss-in-pipeline-split "
    "account-for-embedding-in-pipeline-split num-layers-per-virtual-pipeline-stage "
    "num-virtual-stages-per-pipeline-rank use-distributed-optimizer use-megatron-fsdp use-custom-fsdp "
    "data-parallel-sharding-strategy num-distributed-optimizer-instances overlap-grad-reduce overlap-param-gather "
    "use-precision-aware-optimizer main-grads-dtype optimizer-cpu-offload num-layers hidden-size num-attention-heads "
    "ffn-hidden-size seq-length max-position-embeddings vocab-size multi-latent-attention kv-lora-rank q-lora-rank "
    "qk-head-dim v-head-dim qk-pos-emb-head-dim group-query-attention num-query-groups kv-channels qk-layernorm swiglu "
    "disable-bias-linear normalization position-embedding-type attention-dropout hidden-dropout "
    "untie-embeddings-and-output-weights num-experts moe-grouped-gemm moe-router-topk moe-ffn-hidden-size "
    "moe-shared-expert-intermediate-size moe-layer-freq moe-expert-capacity-factor moe-router-num-groups "
    "moe-router-group-topk micro-batch-size global-batch-size tp-comm-overlap"
)
"""Flags that are written or read."""
_PARTIAL = ("layernorm", "moe_act", "mla_up_proj")


def write(model: Model, layout: Layout, global_batch: int) -> str:
    """Write the flags, each on a line.

    Raises:
        ConfigError: There is none for something of the layout or of the model.
    """
    model = transformer_of(_NAME, model)
    software = layout.software
    refuse(
        _NAME,
        layout,
        {
            "offload_activations": (layout.offload_activations, "leave it out"),
            "schedule": (layout.schedule != "1f1b", "write 1f1b"),
            "shard": (layout.shard is not None and layout.zero > 1, "leave it out, or export to torchtitan"),
            "precision": (layout.precision not in ("bf16", "fp16", "fp8", "fp32"), "write bf16, fp16, fp8 or fp32"),
            "recomputation": (layout.recomputation == "partial" and model.num_experts == 1, "write none or full"),
        },
    )
    if layout.gradient_bytes == 2 and not layout.keeps_remainders and not layout.full_precision:
        raise ArgumentError(f"{_NAME} keeps such `gradients` only beside remainders; add `master_weight_remainders`")
    flags = [*_of_layout(model, layout), *model_flags(model)]
    flags += [f"micro-batch-size {layout.micro_batch}", f"global-batch-size {global_batch}"]
    if software.splits_tensor and layout.tp > 1:
        flags.append("tp-comm-overlap")
    lines = " \\\n".join(f"  --{flag}" for flag in flags)
    head = "# Megatron-LM core_v0.15.0 (megatron/training/arguments.py); add data, optimizer and checkpoints"
    return f"{head}\n{lines}\n"


def _of_layout(model: Transformer, layout: Layout) -> Iterator[str]:
    yield f"tensor-model-parallel-size {layout.tp}"
    yield f"pipeline-model-parallel-size {layout.pp}"
    yield from _stages(model, layout)
    yield f"context-parallel-size {layout.cp}"
    if model.num_experts > 1:
        yield f"expert-model-parallel-size {layout.ep}"
        yield f"expert-tensor-parallel-size {layout.expert_tp}"
    if layout.sequence_parallel:
        yield "sequence-parallel"
    yield from _sharing(layout)
    if layout.recomputation == "full":
        yield "recompute-granularity full"
        method = "uniform" if layout.recomputed_layers is None else "block"
        yield f"recompute-method {method}"
        yield f"recompute-num-layers {layout.recomputed_layers or 1}"
    elif layout.recomputation == "selective":
        yield "recompute-granularity selective"
    elif layout.recomputation == "partial":
        yield "recompute-granularity selective"
        yield f"recompute-modules {' '.join(_PARTIAL if model.kv_rank else _PARTIAL[:2])}"
    if layout.precision in ("bf16", "fp16", "fp8"):
        yield "fp16" if layout.precision == "fp16" else "bf16"
    if layout.precision == "fp8":
        yield "fp8-format hybrid"


def _stages(model: Transformer, layout: Layout) -> Iterator[str]:
    """Yield the flags of stages.

    An embedding and an output that count as layers make up what these lack, or the last stage has fewer.
    """
    parts = layout.pp * layout.vpp
    more = next((more for more in range(3) if (model.num_layers + more) % parts == 0), None)
    last = model.num_layers - -(-model.num_layers // layout.pp) * (layout.pp - 1)
    if more is None and layout.vpp == 1 and last > 0:
        yield f"decoder-last-pipeline-num-layers {last}"
        return
    if more is None:
        raise ArgumentError(
            f"{_NAME} has no option for {model.num_layers} layers in {parts} parts; write a `pp` that divides them"
        )
    if more:
        yield "account-for-loss-in-pipeline-split"
    if more == 2:
        yield "account-for-embedding-in-pipeline-split"
    if layout.vpp > 1:
        yield f"num-layers-per-virtual-pipeline-stage {(model.num_layers + more) // parts}"


def _sharing(layout: Layout) -> Iterator[str]:
    overlaps = layout.software.overlaps_gradients
    if layout.zero:
        yield "use-distributed-optimizer"
    if layout.zero > 1:
        yield "use-megatron-fsdp"
        strategy = next(name for name, zero in _STRATEGIES.items() if zero == layout.zero)
        yield f"data-parallel-sharding-strategy {strategy}"
    if layout.shard is not None:
        yield f"num-distributed-optimizer-instances {layout.dp * layout.cp // layout.shard}"
    if overlaps:
        yield "overlap-grad-reduce"
        if layout.zero:
            yield "overlap-param-gather"
    if layout.keeps_remainders:
        yield from _LEAN
    elif layout.offload:
        yield _LEAN[0]
    if layout.offload:
        yield "optimizer-cpu-offload"


def read(text: str) -> ImportedRun:
    """Read the flags, of a shell file or of a line.

    Raises:
        ConfigError: There are none, or some are not modelled.
    """
    flags = Flags.read(text)
    if "tensor-model-parallel-size" not in flags and "num-layers" not in flags:
        raise ConfigError("neither --tensor-model-parallel-size nor --num-layers; write flags of Megatron-LM")
    number = flags.number
    recomputation, modules = flags.of("recompute-granularity", "none"), flags.of("recompute-modules", "core_attn")
    if recomputation == "selective" and modules != "core_attn":
        if not {"layernorm", "moe_act"} <= set(modules.split()) <= set(_PARTIAL):
            raise ConfigError(f"--recompute-modules {modules} is not modelled; write core_attn")
        recomputation = "partial"
    zero = 1 if "use-distributed-optimizer" in flags else 0
    if "use-megatron-fsdp" in flags or "use-custom-fsdp" in flags:
        zero = _STRATEGIES.get(flags.of("data-parallel-sharding-strategy"), 0)
    layout: dict[str, Any] = {
        "tp": number("tensor-model-parallel-size", 1),
        "pp": number("pipeline-model-parallel-size", 1),
        "cp": number("context-parallel-size", 1),
        "zero": zero,
        "sequence_parallel": "sequence-parallel" in flags,
        "micro_batch": number("micro-batch-size", 1),
        "recomputation": recomputation,
        "offload": "optimizer-cpu-offload" in flags,
        "precision": "fp8"
        if "fp8-format" in flags
        else next((one for one in ("bf16", "fp16") if one in flags), "fp32"),
    }
    if flags.of("recompute-method") == "block":
        layout["recomputed_layers"] = number("recompute-num-layers", 1)
    for name, flag in (("ep", "expert-model-parallel-size"), ("etp", "expert-tensor-parallel-size")):
        if flag in flags:
            layout[name] = number(flag, 1)
    if "num-virtual-stages-per-pipeline-rank" in flags:
        layout["vpp"] = number("num-virtual-stages-per-pipeline-rank", 1)
    lean = flags.of("main-grads-dtype") == "bf16"
    settings: dict[str, Any] = (
        {"gradient_bytes": 2, "master_weight_remainders": True} if lean else {"gradient_bytes": 4}
    )
    settings["overlaps_gradients"] = "overlap-grad-reduce" in flags
    if "tp-comm-overlap" in flags:
        settings["splits_tensor"] = True
    return ImportedRun(
        layout=layout,
        sizes=sizes_of(flags) if "num-layers" in flags else {},
        settings=settings,
        global_batch=number("global-batch-size", 0) or None,
        part_layers=number("num-layers-per-virtual-pipeline-stage", 0) or None,
        instances=number("num-distributed-optimizer-instances", 1),
        unread=tuple(f"--{name}" for name in flags.words if name not in _KNOWN.split()),
    )
