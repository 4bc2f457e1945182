"""A model as flags of Megatron-LM, and back; the names are those of `plesio_planning.estimate.exports.megatron`."""

from collections.abc import Iterator
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio_planning.estimate.exports.flags import Flags
from plesio_planning.estimate.model import Transformer

_GROUPS = 8
"""Groups of experts, of which a token may go to a few: those of DeepSeek-V2 and V3."""


def model_flags(model: Transformer) -> Iterator[str]:
    """Yield the flags of a model, without their dashes.

    Raises:
        ConfigError: There is none for something of it.
    """
    if model.parallel_blocks or model.window is not None:
        what = "parallel blocks" if model.parallel_blocks else "a sliding window"
        raise ArgumentError(f"Megatron-LM has no option here for {what}, which {model.name} has; leave `export` out")
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
    yield "moe-grouped-gemm"  # without it Megatron refuses to compute activations of experts again
    yield f"moe-router-topk {model.experts_per_token}"
    yield f"moe-ffn-hidden-size {model.ffn_size}"
    if model.shared_ffn_size:
        yield f"moe-shared-expert-intermediate-size {model.shared_ffn_size}"
    if model.num_dense_layers:
        yield f'moe-layer-freq "([0]*{model.num_dense_layers}+[1]*{model.num_layers - model.num_dense_layers})"'
    if model.capacity_factor != 1:
        yield f"moe-expert-capacity-factor {model.capacity_factor:g}"
    if model.expert_hosts is not None:
        if model.num_experts % _GROUPS or model.expert_hosts > _GROUPS:
            raise ArgumentError(
                f"`expert_hosts` {model.expert_hosts} are not of {_GROUPS} groups of experts; leave it out"
            )
        yield from (f"moe-router-num-groups {_GROUPS}", f"moe-router-group-topk {model.expert_hosts}")


def sizes_of(flags: Flags) -> dict[str, Any]:
    """Return the attributes of `Transformer` that flags say, by name.

    Raises:
        ConfigError: One is no number, or is not modelled.
    """
    number = flags.number
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
        "dropout": flags.of("hidden-dropout") not in ("0", "0.0"),
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
    return sizes | (_expert_sizes(flags, ffn=ffn) if "num-experts" in flags else {})


def _expert_sizes(flags: Flags, *, ffn: int) -> dict[str, Any]:
    number = flags.number
    sizes: dict[str, Any] = {
        "num_experts": number("num-experts", 1),
        "experts_per_token": number("moe-router-topk", 2),
        "ffn_size": number("moe-ffn-hidden-size", ffn),
        "shared_ffn_size": number("moe-shared-expert-intermediate-size", 0, least=0),
    }
    if "moe-router-group-topk" in flags:
        sizes["expert_hosts"] = number("moe-router-group-topk", 1)
    layers = flags.of("moe-layer-freq").replace(" ", "")
    if layers:
        dense = layers.strip("()").split("+")[0]
        if not dense.startswith("[0]*") or not dense[4:].isdecimal() or layers.count("[") != 2:
            raise ConfigError(f"--moe-layer-freq {layers} is not modelled; write ([0]*DENSE+[1]*OTHERS)")
        sizes |= {"num_dense_layers": int(dense[4:]), "dense_ffn_size": ffn}
    if "moe-expert-capacity-factor" in flags:
        words = flags.of("moe-expert-capacity-factor")
        try:
            sizes["capacity_factor"] = float(words)
        except ValueError:
            raise ConfigError(
                f"--moe-expert-capacity-factor {words} is no number; write one, as --moe-expert-capacity-factor 1.25"
            ) from None
    return sizes
