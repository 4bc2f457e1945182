"""Flags of Megatron-LM's ``pretrain_gpt.py``, as a shell file.

Names are those of Megatron-LM core_v0.15.0: ``megatron/training/arguments.py``, and where those follow from the fields
of a configuration, ``TransformerConfig``, ``MLATransformerConfig``, ``ModelParallelConfig``, ``OptimizerConfig`` and
``DistributedDataParallelConfig`` of megatron-core 0.15.0. Its replicas are the devices that remain.
"""

import shlex
from collections.abc import Callable, Iterator
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.exports.file_format import ImportedRun, refuse, transformer_of
from plesio_planning.estimate.layout import Layout
from plesio_planning.estimate.model import Model, Transformer

__all__ = ["read", "write"]

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
    "untie-embeddings-and-output-weights num-experts moe-router-topk moe-ffn-hidden-size "
    "moe-shared-expert-intermediate-size moe-layer-freq moe-expert-capacity-factor moe-router-group-topk "
    "micro-batch-size global-batch-size tp-comm-overlap"
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
    flags = [*_of_layout(model, layout), *_of_model(model)]
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


def _of_model(model: Transformer) -> Iterator[str]:
    if model.parallel_blocks or model.window is not None:
        what = "parallel blocks" if model.parallel_blocks else "a sliding window"
        raise ArgumentError(f"{_NAME} has no option here for {what}, which {model.name} has; leave `export` out")
    yield f"num-layers {model.num_layers}"
    yield f"hidden-size {model.hidden_size}"
    yield f"num-attention-heads {model.num_heads}"
    yield f"ffn-hidden-size {model.dense_ffn_size or model.ffn_size}"
    yield f"seq-length {model.sequence_length}"
    yield f"max-position-embeddings {model.sequence_length}"
    yield f"vocab-size {model.vocabulary_size}"
    if model.kv_rank is not None:
        yield "multi-latent-attention"
        yield f"kv-lora-rank {model.kv_rank}"
        if model.query_rank is not None:
            yield f"q-lora-rank {model.query_rank}"
        yield f"qk-head-dim {model.attention_size // model.num_heads}"
        yield f"v-head-dim {model.attention_size // model.num_heads}"
        yield f"qk-pos-emb-head-dim {model.rope_size}"
    else:
        if model.num_kv_heads != model.num_heads:
            yield "group-query-attention"
            yield f"num-query-groups {model.num_kv_heads}"
        if model.head_size is not None:
            yield f"kv-channels {model.head_size}"
    if model.query_key_norms:
        yield "qk-layernorm"
    if model.gated:
        yield "swiglu"
    if not model.biases:
        yield from ("disable-bias-linear", "normalization RMSNorm", "position-embedding-type rope")
    if not model.dropout:
        yield from ("attention-dropout 0", "hidden-dropout 0")
    if not model.tied_embeddings:
        yield "untie-embeddings-and-output-weights"
    if model.num_experts > 1:
        yield from _of_experts(model)


def _of_experts(model: Transformer) -> Iterator[str]:
    yield f"num-experts {model.num_experts}"
    yield f"moe-router-topk {model.experts_per_token}"
    yield f"moe-ffn-hidden-size {model.ffn_size}"
    if model.shared_ffn_size:
        yield f"moe-shared-expert-intermediate-size {model.shared_ffn_size}"
    if model.num_dense_layers:
        yield f'moe-layer-freq "([0]*{model.num_dense_layers}+[1]*{model.num_layers - model.num_dense_layers})"'
    if model.capacity_factor != 1:
        yield f"moe-expert-capacity-factor {model.capacity_factor:g}"
    if model.expert_hosts is not None:
        yield f"moe-router-group-topk {model.expert_hosts}"


def read(text: str) -> ImportedRun:
    """Read the flags, of a shell file or of a line.

    Raises:
        ConfigError: There are none, or some are not modelled.
    """
    flags = _flags(text)
    if "tensor-model-parallel-size" not in flags and "num-layers" not in flags:
        raise ConfigError("neither --tensor-model-parallel-size nor --num-layers; write flags of Megatron-LM")
    number = _Numbers(flags)
    granularity, modules = flags.get("recompute-granularity", []), flags.get("recompute-modules", ["core_attn"])
    recomputation = granularity[0] if granularity else "none"
    if recomputation == "selective" and modules != ["core_attn"]:
        if not {"layernorm", "moe_act"} <= set(modules) <= set(_PARTIAL):
            raise ConfigError(f"--recompute-modules {' '.join(modules)} is not modelled; write core_attn")
        recomputation = "partial"
    zero = 1 if "use-distributed-optimizer" in flags else 0
    if "use-megatron-fsdp" in flags or "use-custom-fsdp" in flags:
        zero = _STRATEGIES.get("".join(flags.get("data-parallel-sharding-strategy", [])), 0)
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
    if flags.get("recompute-method") == ["block"]:
        layout["recomputed_layers"] = number("recompute-num-layers", 1)
    for name, flag in (("ep", "expert-model-parallel-size"), ("etp", "expert-tensor-parallel-size")):
        if flag in flags:
            layout[name] = number(flag, 1)
    if "num-virtual-stages-per-pipeline-rank" in flags:
        layout["vpp"] = number("num-virtual-stages-per-pipeline-rank", 1)
    lean = flags.get("main-grads-dtype") == ["bf16"]
    settings: dict[str, Any] = (
        {"gradient_bytes": 2, "master_weight_remainders": True} if lean else {"gradient_bytes": 4}
    )
    settings["overlaps_gradients"] = "overlap-grad-reduce" in flags
    if "tp-comm-overlap" in flags:
        settings["splits_tensor"] = True
    return ImportedRun(
        layout=layout,
        sizes=_sizes(flags, number) if "num-layers" in flags else {},
        settings=settings,
        global_batch=number("global-batch-size", 0) or None,
        part_layers=number("num-layers-per-virtual-pipeline-stage", 0) or None,
        instances=number("num-distributed-optimizer-instances", 1),
        unread=tuple(f"--{name}" for name in flags if name not in _KNOWN.split()),
    )


def _flags(text: str) -> dict[str, list[str]]:
    """Return the words after each flag; of one that is there twice, those after the last."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ConfigError(f"no flags of a shell: {error}") from None
    found: dict[str, list[str]] = {}
    values: list[str] | None = None
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            values = found[name] = []
            if value:
                values.append(value)
        elif values is not None:
            values.append(word)
    return found


class _Numbers:
    """Whole numbers of flags."""

    def __init__(self, flags: dict[str, list[str]]) -> None:
        self._flags = flags

    def __call__(self, name: str, usual: int) -> int:
        """Return the number of a flag, or the usual one without the flag."""
        words = self._flags.get(name)
        if words is None:
            return usual
        if not words or not words[0].isdecimal():
            raise ConfigError(f"--{name} {' '.join(words)} is no whole number; write one, as --{name} {usual or 8}")
        return int(words[0])


def _sizes(flags: dict[str, list[str]], number: Callable[[str, int], int]) -> dict[str, Any]:
    hidden, heads = number("hidden-size", 0), number("num-attention-heads", 0)
    gated = "swiglu" in flags
    # Megatron's default for gated networks makes up for their third matrix
    ffn = number("ffn-hidden-size", 0) or (4 * hidden * 2 // 3 // 64 * 64 if gated else 4 * hidden)
    sizes: dict[str, Any] = {
        "num_layers": number("num-layers", 0),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": number("num-query-groups", heads) if "group-query-attention" in flags else heads,
        "ffn_size": ffn,
        "sequence_length": number("seq-length", 2048),
        "gated": gated,
        "biases": "disable-bias-linear" not in flags,
        "dropout": flags.get("hidden-dropout") not in (["0"], ["0.0"]),
        "tied_embeddings": "untie-embeddings-and-output-weights" not in flags,
        "query_key_norms": "qk-layernorm" in flags,
    }
    if "vocab-size" in flags:
        sizes["vocabulary_size"] = number("vocab-size", 0)
    if "kv-channels" in flags:
        sizes["head_size"] = number("kv-channels", 0)
    if "multi-latent-attention" in flags:
        sizes |= {
            "kv_rank": number("kv-lora-rank", 512),
            "query_rank": number("q-lora-rank", 0) or None,
            "head_size": number("qk-head-dim", 128),
            "rope_size": number("qk-pos-emb-head-dim", 64),
        }
    return sizes | (_expert_sizes(flags, number, ffn=ffn) if "num-experts" in flags else {})


def _expert_sizes(flags: dict[str, list[str]], number: Callable[[str, int], int], *, ffn: int) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        "num_experts": number("num-experts", 1),
        "experts_per_token": number("moe-router-topk", 2),
        "ffn_size": number("moe-ffn-hidden-size", ffn),
        "shared_ffn_size": number("moe-shared-expert-intermediate-size", 0),
    }
    if "moe-router-group-topk" in flags:
        sizes["expert_hosts"] = number("moe-router-group-topk", 1)
    layers = "".join(flags.get("moe-layer-freq", []))
    if layers:
        dense = layers.strip("()").split("+")[0]
        if not dense.startswith("[0]*") or not dense[4:].isdecimal() or layers.count("[") != 2:
            raise ConfigError(f"--moe-layer-freq {layers} is not modelled; write ([0]*DENSE+[1]*OTHERS)")
        sizes |= {"num_dense_layers": int(dense[4:]), "dense_ffn_size": ffn}
    if "moe-expert-capacity-factor" in flags:
        words = " ".join(flags["moe-expert-capacity-factor"])
        try:
            sizes["capacity_factor"] = float(words)
        except ValueError:
            raise ConfigError(
                f"--moe-expert-capacity-factor {words} is no number; write one, as --moe-expert-capacity-factor 1.25"
            ) from None
    return sizes
