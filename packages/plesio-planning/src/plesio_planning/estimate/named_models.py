"""Models that have a name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError, nearest
from plesio.core.units import format_count
from plesio_planning.estimate.hugging_face import read_hugging_face
from plesio_planning.estimate.model import Convolutional, Model, Transformer

__all__ = ["MODELS", "find_model", "gpt"]


def gpt(
    name: str, *, layers: int, hidden: int, heads: int, sequence_length: int = 2048, vocabulary: int = 51200
) -> Transformer:
    """Make a GPT with networks four times as wide as the layer and with dropout, as in Megatron's papers."""
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


def _palm(name: str, *, layers: int, hidden: int, heads: int) -> Transformer:
    """Make a PaLM: one head of keys and values, parallel blocks, gated networks four times as wide as the layer."""
    model = _llama(
        name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=1,
        ffn=4 * hidden,
        sequence_length=2048,
        vocabulary=256000,
    )
    return replace(model, head_size=256, tied_embeddings=True, parallel_blocks=True)


def _nemotron(name: str, *, layers: int, hidden: int, heads: int) -> Transformer:
    """Make a Nemotron: networks four times as wide as the layer, with squared ReLU."""
    model = _llama(name, layers=layers, hidden=hidden, heads=heads, kv_heads=8, ffn=4 * hidden, vocabulary=256000)
    return replace(model, gated=False)


def _olmo_2(name: str, *, layers: int, hidden: int, heads: int, ffn: int, kv_heads: int | None = None) -> Transformer:
    model = _llama(name, layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn, vocabulary=100352)
    return replace(model, query_key_norms=True)


def _qwen_3(name: str, *, layers: int, hidden: int, heads: int, ffn: int) -> Transformer:
    """Make a Qwen 3 with 128 experts, of which a token goes through 8."""
    model = _llama(
        name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=4,
        ffn=ffn,
        vocabulary=151936,
        experts=128,
        experts_per_token=8,
    )
    return replace(model, head_size=128, query_key_norms=True)


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
        # Chowdhery et al. 2022, tables 1 and 17
        _palm("palm-8b", layers=32, hidden=4096, heads=16),
        _palm("palm-62b", layers=64, hidden=8192, heads=32),
        _palm("palm-540b", layers=118, hidden=18432, heads=48),
        # Jiang et al. 2023, table 1
        replace(
            _llama("mistral-7b", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, sequence_length=8192),
            window=4096,
        ),
        # Parmar et al. 2024, table 1; NVIDIA 2024 (Nemotron-4 340B), table 1
        _nemotron("nemotron-4-15b", layers=32, hidden=6144, heads=48),
        _nemotron("nemotron-4-340b", layers=96, hidden=18432, heads=96),
        # OLMo et al. 2025, table 3 and the models' config.json
        _olmo_2("olmo-2-7b", layers=32, hidden=4096, heads=32, ffn=11008),
        _olmo_2("olmo-2-13b", layers=40, hidden=5120, heads=40, ffn=13824),
        _olmo_2("olmo-2-32b", layers=64, hidden=5120, heads=40, kv_heads=8, ffn=27648),
        # Qwen Team 2025 (Qwen3), table 2 and the models' config.json
        _qwen_3("qwen3-30b-a3b", layers=48, hidden=2048, heads=32, ffn=768),
        _qwen_3("qwen3-235b-a22b", layers=94, hidden=4096, heads=64, ffn=1536),
        # DeepSeek-AI 2024 (DeepSeek-V3), section 4.2, without the 14 billion that predict a second token
        Transformer(
            name="deepseek-v3",
            num_layers=61,
            hidden_size=7168,
            num_heads=128,
            num_kv_heads=128,
            head_size=128,
            kv_rank=512,
            query_rank=1536,
            rope_size=64,
            ffn_size=2048,
            num_experts=256,
            experts_per_token=8,
            shared_ffn_size=2048,
            num_dense_layers=3,
            dense_ffn_size=18432,
            vocabulary_size=129280,
            sequence_length=4096,
            gated=True,
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
    "nemotron-15b": "nemotron-4-15b",
    "nemotron-340b": "nemotron-4-340b",
    "nemotron4-15b": "nemotron-4-15b",
    "nemotron4-340b": "nemotron-4-340b",
    "palm": "palm-540b",
}


def find_model(name: str | None = None, **sizes: Any) -> Model:
    """Find the model of that name, that a Hugging Face ``config.json`` at that path describes, or that sizes describe.

    >>> model = find_model("llama-3-8b")
    >>> f"{model.num_parameters / 1e9:.2f}"
    '8.03'
    >>> sizes = {"num_layers": 24, "hidden_size": 2304, "num_heads": 24}
    >>> model = find_model(**sizes, vocabulary_size=51200, sequence_length=2048)
    >>> model.name, find_model("llama-3-8b", num_layers=16).num_layers
    ('transformer-1.76B', 16)

    Args:
        name: A name of `MODELS`, a path that ends in ``.json``, or None for a model that only its sizes describe.
        sizes: Attributes of `Transformer` instead of the model's own. Without a name heads have keys and values of
            their own, and networks are four times as wide as the layer, unless these say otherwise.

    Raises:
        ConfigError: There is none.
    """
    if name is None:
        return _of_sizes(sizes)
    key = name.strip().lower().replace("_", "-")
    key = _SYNONYMS.get(key, key)
    if key in MODELS:
        model = MODELS[key]
    elif name.endswith(".json"):
        model = read_hugging_face(Path(name), sequence_length=sizes.get("sequence_length"))
    else:
        raise ConfigError(
            f'unknown model "{name}"; {nearest(key, [*MODELS, *_SYNONYMS])} (or the path of a config.json)'
        )
    if not sizes:
        return model
    if isinstance(model, Convolutional):
        raise ArgumentError(f"{model.name} has no sequences and no heads; leave `{next(iter(sizes))}` out")
    changed = model.name if sizes.keys() == {"sequence_length"} else f"{model.name} (changed)"
    return replace(model, name=changed, **sizes)


def _of_sizes(sizes: Mapping[str, Any]) -> Transformer:
    needed = ("num_layers", "hidden_size", "num_heads", "vocabulary_size", "sequence_length")
    lacking = [name for name in needed if name not in sizes]
    if lacking:
        words = ", ".join(f"`{name}`" for name in lacking)
        raise ArgumentError(f"a model without a name needs more sizes; write `model`, or {words}")
    usual = {"num_kv_heads": sizes["num_heads"], "ffn_size": 4 * sizes["hidden_size"]}
    model = Transformer(name="transformer", **{**usual, **sizes})
    return replace(model, name=f"transformer-{format_count(model.num_parameters)}")
