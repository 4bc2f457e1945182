"""Models that a Hugging Face ``config.json`` describes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.files import read_given
from plesio_planning.estimate.model import Transformer
from plesio_planning.texts import read_texts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """Facts about a model that follow from its ``model_type`` of transformers, beside its sizes.

    Attributes:
        gated: As in `Transformer`.
        biases: As in `Transformer`, where they are one with learnt positions. They are left out for a family with
            biases and without such positions: under 0.1 % of its parameters, and positions would be more.
        tied: The output matrix is the embedding's, if the file does not say.
        kv_heads: Heads of keys and values, if the file does not say; None is those of queries.
        multi_query: All heads share keys and values, unless the file says otherwise.
        head_size: If the file does not say; None is ``h / a``.
        experts: The name under which the file must say how many, and theirs alone is ``moe_intermediate_size``.
        latent: Keys and values are compressed.
        shared: There are experts that all tokens go through.
        window_skip: One layer of so many has no sliding window, if the file does not list them; 0 is none.
        parallel: The name under which the file may say that blocks are not parallel; empty where they never are.
        query_key_norms: As in `Transformer`.
        dropout: As in `Transformer`, if the file does not say.
        sizes: Values that the file may leave out.
    """

    gated: bool = False
    biases: bool = False
    tied: bool = False
    kv_heads: int | None = None
    multi_query: bool = False
    head_size: int | None = None
    experts: str = ""
    latent: bool = False
    shared: bool = False
    window_skip: int = 0
    parallel: str = ""
    query_key_norms: bool = False
    dropout: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)


_FAMILIES: Mapping[str, _Family] = {
    name: _Family(**settings)
    for name, settings in read_texts("hugging_face", package="plesio_planning.estimate").items()
}
"""By ``model_type``."""

_NOT_EVERYWHERE = {
    "kv_lora_rank": ("latent", "latent attention"),
    "n_shared_experts": ("shared", "shared experts"),
    "shared_expert_intermediate_size": ("shared", "shared experts"),
}
"""Keys of some families, and what those have; in a file of another one they mean what nobody here knows."""
_KINDS = {"layer_types": (list, "a list"), "rope_scaling": (dict, "an object")}
"""Keys of other types than sizes and switches, with words for them; null is none."""
_ATTENTIONS = ("full_attention", "sliding_attention")
"""Types of layers that are modelled."""
_INNER = ("attn_config", "ffn_config")
"""Objects whose values are read like those beside them (DBRX)."""
_SIZES = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "num_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "sequence_length": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token", "moe_top_k"),
}
"""Names that families have for the same size."""


def read_hugging_face(path: Path, *, sequence_length: int | None = None) -> Transformer:
    """Read the transformer of a ``config.json`` as Hugging Face's transformers writes it.

    Args:
        path: Path of the file.
        sequence_length: Instead of the longest that the file allows, which need not be there then.

    Raises:
        ConfigError: The file cannot be read, lacks a size, or is of a family that is not modelled. One line.
    """
    config = _Config.read(path)
    family = config.family()
    hidden, heads, num_layers = (config.size(*_SIZES[name]) for name in ("hidden_size", "num_heads", "num_layers"))
    if sequence_length is None:
        sequence_length = config.size(
            *_SIZES["sequence_length"], instead="write how long sequences are for `sequence_length`"
        )
    return Transformer(
        name=f"{path.parent.name or path.stem}{config.part}",
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=heads,
        vocabulary_size=config.size("vocab_size"),
        sequence_length=sequence_length,
        gated=family.gated,
        biases=family.biases,
        dropout=config.has_dropout(family),
        tied_embeddings=config.switch("tie_word_embeddings", usual=family.tied),
        parallel_blocks=bool(family.parallel) and config.switch(family.parallel, usual=True),
        query_key_norms=family.query_key_norms,
        **config.attention(family, heads=heads),
        **config.window(family, num_layers=num_layers),
        **config.networks(family, hidden=hidden),
    )


@dataclass(frozen=True, slots=True)
class _Config:
    """The values of a file, read as sizes.

    Attributes:
        part: Words for the part of a larger model that they are of.
    """

    path: Path
    values: Mapping[str, Any]
    part: str = ""

    @classmethod
    def read(cls, path: Path) -> "_Config":
        text = read_given(path, "model file", instead="write a config.json of transformers")
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{path} is no JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"{path} has no sizes; write a config.json of transformers")
        part = ""
        if values.get("model_type") not in _FAMILIES and isinstance(values.get("text_config"), dict):
            values, part = values["text_config"], " (its text model)"  # beside what sees and hears
        inner = [values[name] for name in _INNER if isinstance(values.get(name), dict)]
        family = _FAMILIES.get(str(values.get("model_type")))
        usual = [family.sizes] if family else []
        return cls(path, {name: value for each in (*usual, *inner, values) for name, value in each.items()}, part)

    def family(self) -> _Family:
        path, values = self.path, self.values
        name = values.get("model_type")
        if not isinstance(name, str):
            raise ConfigError(f'{path} has no "model_type"; write one of {", ".join(_FAMILIES)}')
        if name not in _FAMILIES:
            raise ConfigError(
                f'{path} has "model_type": "{name}", which is not modelled; these are: {", ".join(_FAMILIES)}'
            )
        family = _FAMILIES[name]
        for one, (kind, words) in _KINDS.items():
            if not isinstance(values.get(one), kind | None):
                raise self._refusal(one, words)
        for unknown, (needed, what) in _NOT_EVERYWHERE.items():
            if values.get(unknown) and not getattr(family, needed):
                raise ConfigError(
                    f'{path} has "{unknown}": {what} of the family "{name}" are not modelled; '
                    "write a model of the DeepSeek or Qwen 2 family"
                )
        if values.get("word_embed_proj_dim", values.get("hidden_size")) != values.get("hidden_size"):
            raise ConfigError(
                f'{path} has a "word_embed_proj_dim" that is not its "hidden_size", which is not modelled'
            )
        return family

    def given(self, *names: str) -> int | None:
        """Return the first of these that the file has; null is none."""
        name = next((name for name in names if self.values.get(name) is not None), None)
        if name is None:
            return None
        number = self.values[name]
        if type(number) is not int:
            raise self._refusal(name, "a whole number")
        return number

    def switch(self, name: str, *, usual: bool) -> bool:
        """Return a switch, or the usual one without it; null is off."""
        if self.values.get(name) not in (True, False, None):
            raise self._refusal(name, "true or false")
        return bool(self.values.get(name, usual))

    def _refusal(self, name: str, kind: str) -> ConfigError:
        return ConfigError(f'{self.path} has "{name}": {json.dumps(self.values[name])}; write {kind}')

    def size(self, *names: str, instead: str = "write a config.json of a decoder-only transformer") -> int:
        found = self.given(*names)
        if found is None:
            name = next((name for name in names if name in self.values), names[0])
            lack = f'"{name}": {json.dumps(self.values[name])}, no size' if name in self.values else f'no "{name}"'
            raise ArgumentError(f"{self.path} has {lack}; {instead}")
        return found

    def has_dropout(self, family: _Family) -> bool:
        names = ("resid_pdrop", "resid_dropout", "hidden_dropout", "dropout", "attn_pdrop", "attention_dropout")
        said = [self.values[name] for name in names if self.values.get(name) is not None]
        for name in names:
            if not isinstance(self.values.get(name), int | float | None):
                raise self._refusal(name, "a number")
        return any(said) if said else family.dropout

    def attention(self, family: _Family, *, heads: int) -> dict[str, Any]:
        """Return the heads, and what they are compressed to."""
        if not family.latent:
            return {
                "num_kv_heads": self._kv_heads(family, heads=heads),
                "head_size": self.given("head_dim") or family.head_size,
            }
        head_size, value_size = self.size("qk_nope_head_dim"), self.size("v_head_dim")
        if head_size != value_size:
            raise ConfigError(
                f"{self.path} has values of {value_size} and keys of {head_size} a head, which is not modelled; "
                "write as much for both"
            )
        return {
            "num_kv_heads": heads,
            "head_size": head_size,
            "kv_rank": self.size("kv_lora_rank"),
            "query_rank": self.given("q_lora_rank"),
            "rope_size": self.size("qk_rope_head_dim"),
        }

    def _kv_heads(self, family: _Family, *, heads: int) -> int:
        """Read the number of heads; null is all heads.

        Falcon's newer layers have groups, whatever ``multi_query`` is.
        """
        if family.multi_query and not self.switch("new_decoder_architecture", usual=False):
            return 1 if self.switch("multi_query", usual=True) else heads
        for name in ("num_key_value_heads", "num_kv_heads", "kv_n_heads"):
            if name in self.values:
                found = self.given(name)
                return heads if found is None else found
        return family.kv_heads or heads

    def window(self, family: _Family, *, num_layers: int) -> dict[str, Any]:
        """Return the sliding window, and how many layers have it: as listed, all but some, or those above some."""
        kinds = self._layer_kinds(num_layers)
        window = self.given("sliding_window")
        if window is None or not self.switch("use_sliding_window", usual=True):
            return {}
        skip = self.given("sliding_window_pattern") or family.window_skip
        if kinds is not None:
            windows = kinds.count("sliding_attention")
        elif skip:
            windows = num_layers - num_layers // skip
        else:
            windows = num_layers - min(self.given("max_window_layers") or 0, num_layers)
        return {"window": window, "num_window_layers": windows}

    def _layer_kinds(self, num_layers: int) -> list[str] | None:
        """Return the kind of attention of each layer; None if the file does not list them."""
        kinds: list[str] | None = self.values.get("layer_types")
        if kinds is None:
            return None
        unknown = next((kind for kind in kinds if kind not in _ATTENTIONS), None)
        if unknown is not None:
            raise ConfigError(
                f'{self.path} has a layer of type {json.dumps(unknown)} in "layer_types", which is not modelled; write '
                f"{' or '.join(_ATTENTIONS)}"
            )
        if len(kinds) != num_layers:
            raise ConfigError(f'{self.path} has {len(kinds)} "layer_types" for {num_layers} layers; write one for each')
        return kinds

    def networks(self, family: _Family, *, hidden: int) -> dict[str, Any]:
        """Return the feed-forward networks: one, or experts and what is beside them."""
        if not family.gated:
            return {"ffn_size": self.given("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner") or 4 * hidden}
        ffn = self.size(
            "intermediate_size", "ffn_hidden_size", instead="write the width of the gated feed-forward networks"
        )
        if not family.experts:
            return {
                "ffn_size": ffn,
                "num_experts": self.given("num_local_experts", "num_experts") or 1,
                "experts_per_token": self.given("num_experts_per_tok") or 1,
            }
        self._check_all_have_experts()
        expert = self.given("moe_intermediate_size") or ffn
        dense = self.given("first_k_dense_replace") or 0
        shared = self.given("shared_expert_intermediate_size") or (self.given("n_shared_experts") or 0) * expert
        return {
            "ffn_size": expert,
            "num_experts": self.size(family.experts),
            "experts_per_token": self.size(*_SIZES["experts_per_token"]),
            "shared_ffn_size": shared,
            "num_dense_layers": dense,
            "dense_ffn_size": ffn if dense else 0,
        }

    def _check_all_have_experts(self) -> None:
        for name, usual in (("moe_layer_freq", 1), ("decoder_sparse_step", 1), ("mlp_only_layers", [])):
            if self.values.get(name, usual) not in (usual, None):
                raise ConfigError(
                    f'{self.path} has "{name}": {json.dumps(self.values[name])}, layers with and without experts in '
                    f"turn, which are not modelled; write {json.dumps(usual)}"
                )
