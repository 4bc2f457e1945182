"""Models that have a name; ``models.toml`` lists them with their sources."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError, nearest
from plesio.core.units import format_count
from plesio_planning.estimate.hugging_face import read_hugging_face
from plesio_planning.estimate.model import Convolutional, Model, Transformer
from plesio_planning.texts import read_texts


def _transformer(name: str, sizes: Mapping[str, Any]) -> Transformer:
    usual = {"num_kv_heads": sizes["num_heads"], "ffn_size": 4 * sizes["hidden_size"]}
    return Transformer(name=name, **{**usual, **sizes})


def _models_of(families: dict[str, Any]) -> dict[str, Model]:
    images = families.pop("convolutional")["models"]
    return {
        **{
            name: _transformer(name, {**family.get("all", {}), **own})
            for family in families.values()
            for name, own in family["models"].items()
        },
        **{name: Convolutional(name=name, **own) for name, own in images.items()},
    }


_DATA = read_texts("models", package="plesio_planning.estimate")
_SYNONYMS: Mapping[str, str] = _DATA.pop("synonyms")
MODELS: Mapping[str, Model] = _models_of(_DATA)
"""Models by name."""


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
    elif os.path.exists(name):  # unlike Path.exists, no error where no file can have this name
        raise ConfigError(
            f'"{name}" is no config.json of a model; write the path of one, which ends in .json, or a model\'s name'
        )
    else:
        raise ConfigError(
            f'unknown model "{name}"; {nearest(key, [*MODELS, *_SYNONYMS])} (or the path of a config.json)'
        )
    if not sizes:
        return model
    if isinstance(model, Convolutional):
        raise ArgumentError(f"{model.name} has no sequences and no heads; leave `{next(iter(sizes))}` out")
    other = replace(model, **sizes)
    same = replace(other, sequence_length=model.sequence_length, head_size=model.head_size) == model
    same &= other.attention_size == model.attention_size
    return other if same else replace(other, name=f"{model.name} (changed)")


def _of_sizes(sizes: Mapping[str, Any]) -> Transformer:
    needed = ("num_layers", "hidden_size", "num_heads", "vocabulary_size", "sequence_length")
    lacking = [name for name in needed if name not in sizes]
    if lacking:
        words = ", ".join(f"`{name}`" for name in lacking)
        raise ArgumentError(f"a model without a name needs more sizes; write `model`, or {words}")
    model = _transformer("transformer", sizes)
    return replace(model, name=f"transformer-{format_count(model.num_parameters)}")
