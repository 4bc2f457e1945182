"""Models that have a name, and those that a Hugging Face config.json describes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError, nearest
from plesio.planning.estimate.model import Convolutional, Model, Transformer

__all__ = ["MODELS", "find_model", "read_hugging_face"]


def gpt(
    name: str, *, layers: int, hidden: int, heads: int, sequence_length: int = 2048, vocabulary: int = 51200
) -> Transformer:
    """A GPT with networks four times as wide as the layer and with dropout, as in Megatron's papers."""
    return Transformer(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        ffn_size=4 * hidden,
        vocabulary_size=vocabulary,
        sequence_length=sequence_length,
        biases=True,
        dropout=True,
        tied_embeddings=True,
    )


def _llama(
    name: str,
    *,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    kv_heads: int | None = None,
    sequence_length: int = 4096,
    vocabulary: int = 32000,
    experts: int = 1,
    experts_per_token: int = 1,
) -> Transformer:
    return Transformer(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads or heads,
        ffn_size=ffn,
        vocabulary_size=vocabulary,
        sequence_length=sequence_length,
        gated=True,
        num_experts=experts,
        experts_per_token=experts_per_token,
    )


_LLAMA_3 = {"kv_heads": 8, "sequence_length": 8192, "vocabulary": 128256}

MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        # Radford et al. 2019, table 2; Brown et al. 2020, table 2.1; the vocabulary padded as Megatron does
        gpt("gpt2", layers=12, hidden=768, heads=12, sequence_length=1024, vocabulary=50304),
        gpt("gpt2-xl", layers=48, hidden=1600, heads=25, sequence_length=1024, vocabulary=50304),
        gpt("gpt3-6.7b", layers=32, hidden=4096, heads=32),
        gpt("gpt3-13b", layers=40, hidden=5120, heads=40),
        gpt("gpt3-175b", layers=96, hidden=12288, heads=96),
        # Narayanan et al. 2021, table 1
        gpt("gpt-1.7b", layers=24, hidden=2304, heads=24),
        gpt("gpt-3.6b", layers=30, hidden=3072, heads=32),
        gpt("gpt-7.5b", layers=36, hidden=4096, heads=32),
        gpt("gpt-18b", layers=40, hidden=6144, heads=48),
        gpt("gpt-39b", layers=48, hidden=8192, heads=64),
        gpt("gpt-76b", layers=60, hidden=10240, heads=80),
        gpt("gpt-145b", layers=80, hidden=12288, heads=96),
        gpt("gpt-310b", layers=96, hidden=16384, heads=128),
        gpt("gpt-530b", layers=105, hidden=20480, heads=128),
        gpt("gpt-1t", layers=128, hidden=25600, heads=160),
        # Korthikanti et al. 2022, table 3 (its others are in the tables above)
        gpt("gpt-22b", layers=48, hidden=6144, heads=64),
        # Touvron et al. 2023a, table 2; 2023b, table 1 and appendix A
        _llama("llama-7b", layers=32, hidden=4096, heads=32, ffn=11008, sequence_length=2048),
        _llama("llama-13b", layers=40, hidden=5120, heads=40, ffn=13824, sequence_length=2048),
        _llama("llama-33b", layers=60, hidden=6656, heads=52, ffn=17920, sequence_length=2048),
        _llama("llama-65b", layers=80, hidden=8192, heads=64, ffn=22016, sequence_length=2048),
        _llama("llama-2-7b", layers=32, hidden=4096, heads=32, ffn=11008),
        _llama("llama-2-13b", layers=40, hidden=5120, heads=40, ffn=13824),
        _llama("llama-2-70b", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672),
        # Grattafiori et al. 2024, table 3
        _llama("llama-3-8b", layers=32, hidden=4096, heads=32, ffn=14336, **_LLAMA_3),
        _llama("llama-3-70b", layers=80, hidden=8192, heads=64, ffn=28672, **_LLAMA_3),
        _llama("llama-3-405b", layers=126, hidden=16384, heads=128, ffn=53248, **_LLAMA_3),
        # Jiang et al. 2024, table 1; Mistral's config.json of the larger one
        _llama("mixtral-8x7b", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, experts=8, experts_per_token=2),
        _llama(
            "mixtral-8x22b",
            layers=56,
            hidden=6144,
            heads=48,
            kv_heads=8,
            ffn=16384,
            vocabulary=32768,
            experts=8,
            experts_per_token=2,
        ),
        # torchvision's parameters and multiplications; activations are outputs of convolutions, of which batch norm
        # and ReLU keep one more each
        Convolutional(
            name="resnet50",
            num_parameters=25_557_032,
            forward_flops=2 * 4.09e9,
            activation_values=2 * 11_100_000,
            num_layers=54,
        ),
        Convolutional(
            name="resnet152",
            num_parameters=60_192_808,
            forward_flops=2 * 11.51e9,
            activation_values=2 * 22_600_000,
            num_layers=156,
        ),
        Convolutional(
            name="vgg16",
            num_parameters=138_357_544,
            forward_flops=2 * 15.47e9,
            activation_values=2 * 13_600_000,
            num_layers=16,
        ),
    )
}
"""Models by name."""

_SYNONYMS = {
    "gpt3": "gpt3-175b",
    "gpt-3": "gpt3-175b",
    "llama-70b": "llama-2-70b",
    "llama-3.1-8b": "llama-3-8b",
    "llama-3.1-70b": "llama-3-70b",
    "llama-3.1-405b": "llama-3-405b",
}


def find_model(name: str, *, sequence_length: int | None = None) -> Model:
    """The model of that name, or that a Hugging Face ``config.json`` at that path describes.

    >>> model = find_model("llama-3-8b")
    >>> f"{model.num_parameters / 1e9:.2f}"
    '8.03'

    Args:
        name: A name of `MODELS`, or a path that ends in ``.json``.
        sequence_length: Instead of the model's own.

    Raises:
        ConfigError: There is none.
    """
    key = name.strip().lower().replace("_", "-")
    key = _SYNONYMS.get(key, key)
    if key in MODELS:
        model = MODELS[key]
    elif name.endswith(".json"):
        return read_hugging_face(Path(name), sequence_length=sequence_length)
    else:
        raise ConfigError(f'unknown model "{name}"; {nearest(key, MODELS)} (or the path of a config.json)')
    if sequence_length is None:
        return model
    if isinstance(model, Convolutional):
        raise ArgumentError(f"{model.name} has no sequences; leave `sequence_length` out")
    return replace(model, sequence_length=sequence_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """What a ``model_type`` of transformers says about a model beside its sizes.

    Attributes:
        gated: As in `Transformer`.
        biases: As in `Transformer`, where they are one with learnt positions. Of a family with biases and without such
            positions they are left out: under 0.1 % of its parameters, and positions would be more.
        tied: The output matrix is the embedding's, if the file does not say.
        kv_heads: Heads of keys and values, if the file does not say; None is those of queries.
        multi_query: All heads share keys and values, unless the file says otherwise.
        head_size: If the file does not say; None is ``h / a``.
        experts: The file must say how many.
        dropout: As in `Transformer`, if the file does not say.
    """

    gated: bool = False
    biases: bool = False
    tied: bool = False
    kv_heads: int | None = None
    multi_query: bool = False
    head_size: int | None = None
    experts: bool = False
    dropout: bool = False


# the defaults of transformers' configurations
_FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(gated=True),
    "mistral": _Family(gated=True, kv_heads=8),
    "mixtral": _Family(gated=True, kv_heads=8, experts=True),
    "qwen2": _Family(gated=True, kv_heads=32),
    "qwen3": _Family(gated=True, kv_heads=32, head_size=128),
    "gemma": _Family(gated=True, kv_heads=16, head_size=256, tied=True),
    "phi": _Family(),
    "phi3": _Family(gated=True),
    "gpt2": _Family(biases=True, tied=True, dropout=True),
    "gpt_bigcode": _Family(biases=True, tied=True, multi_query=True, dropout=True),
    "gpt_neo": _Family(biases=True, tied=True),
    "gpt_neox": _Family(),
    "gptj": _Family(),
    "opt": _Family(biases=True, tied=True, dropout=True),
    "bloom": _Family(tied=True),
    "falcon": _Family(tied=True, multi_query=True),
}
"""Readers by ``model_type``."""


def read_hugging_face(path: Path, *, sequence_length: int | None = None) -> Transformer:
    """The transformer of a ``config.json`` as Hugging Face's transformers writes it.

    Args:
        path: Path of the file.
        sequence_length: Instead of the longest that the file allows, which need not be there then.

    Raises:
        ConfigError: The file cannot be read, lacks a size, or is of a family that is not modelled. One line.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no model file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the model {path}: {error}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} has no sizes; write a config.json of transformers")
    family = _family(values, path=path)

    def given(*names: str) -> int | None:
        return next((values[name] for name in names if type(values.get(name)) is int), None)

    def size(*names: str, instead: str = "write a config.json of a decoder-only transformer") -> int:
        found = given(*names)
        if found is None:
            name = next((name for name in names if name in values), names[0])
            lack = f'"{name}": {json.dumps(values[name])}, no size' if name in values else f'no "{name}"'
            raise ArgumentError(f"{path} has {lack}; {instead}")
        return found

    hidden = size("hidden_size", "n_embd", "n_embed")
    heads = size("num_attention_heads", "n_head", "num_heads")
    num_layers = size("num_hidden_layers", "n_layer", "num_layers")
    if family.gated:
        ffn = size("intermediate_size", instead="write the width of the gated feed-forward networks")
    else:
        ffn = given("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner") or 4 * hidden
    if sequence_length is None:
        sequence_length = size(
            "max_position_embeddings",
            "n_positions",
            "seq_length",
            instead="write how long sequences are for `sequence_length`",
        )
    return Transformer(
        name=path.parent.name or path.stem,
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(values, family, heads=heads),
        ffn_size=ffn,
        vocabulary_size=size("vocab_size"),
        sequence_length=sequence_length,
        gated=family.gated,
        biases=family.biases,
        dropout=_has_dropout(values, family),
        tied_embeddings=bool(values.get("tie_word_embeddings", family.tied)),
        head_size=given("head_dim") or family.head_size,
        num_experts=size("num_local_experts") if family.experts else given("num_local_experts", "num_experts") or 1,
        experts_per_token=size("num_experts_per_tok") if family.experts else given("num_experts_per_tok") or 1,
    )


def _family(values: Mapping[str, Any], *, path: Path) -> _Family:
    for unknown in ("kv_lora_rank", "n_shared_experts", "shared_expert_intermediate_size"):
        if values.get(unknown):
            raise ConfigError(
                f'{path} has "{unknown}": latent attention and shared experts are not modelled; '
                "write a model of the GPT or Llama family, or a mixture of equal experts"
            )
    name = values.get("model_type")
    if not isinstance(name, str):
        raise ConfigError(f'{path} has no "model_type"; write one of {", ".join(_FAMILIES)}')
    if name not in _FAMILIES:
        raise ConfigError(
            f'{path} has "model_type": "{name}", which is not modelled; these are: {", ".join(_FAMILIES)}'
        )
    if values.get("word_embed_proj_dim", values.get("hidden_size")) != values.get("hidden_size"):
        raise ConfigError(f'{path} has a "word_embed_proj_dim" that is not its "hidden_size", which is not modelled')
    return _FAMILIES[name]


def _has_dropout(values: Mapping[str, Any], family: _Family) -> bool:
    names = ("resid_pdrop", "resid_dropout", "hidden_dropout", "dropout", "attn_pdrop", "attention_dropout")
    said = [values[name] for name in names if isinstance(values.get(name), (int, float))]
    return any(said) if said else family.dropout


def _kv_heads(values: Mapping[str, Any], family: _Family, *, heads: int) -> int:
    """As written; null is all heads. Falcon's newer layers have groups, whatever ``multi_query`` says."""
    if family.multi_query and not values.get("new_decoder_architecture"):
        return 1 if values.get("multi_query", True) else heads
    for name in ("num_key_value_heads", "num_kv_heads"):
        if name in values:
            return values[name] if type(values[name]) is int else heads
    return family.kv_heads or heads
