"""Models of Hugging Face's families: as many parameters as their authors state."""

import json
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import read_hugging_face

FAMILIES: dict[str, tuple[dict[str, Any], float]] = {
    # the values of each config.json that say a size, and the parameters that are stated, in billions
    "gpt-oss-20b": (
        {
            "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32,
            "num_experts_per_tok": 4, "vocab_size": 201088, "max_position_embeddings": 131072, "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 12, "tie_word_embeddings": False,
        },
        20.9,
    ),
    "gpt-oss-120b": (
        {
            "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128,
            "experts_per_token": 4, "vocab_size": 201088, "max_position_embeddings": 131072, "sliding_window": 128,
        },
        116.8,
    ),
    "llama-3.1-8b": (
        {
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
            "max_position_embeddings": 131072, "tie_word_embeddings": False,
        },
        8.03,
    ),
    "mistral-7b": (
        {
            "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
            "sliding_window": 4096,
        },
        7.24,
    ),
    "mixtral-8x22b": (
        {
            "model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56,
            "num_attention_heads": 48, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
            "vocab_size": 32768, "max_position_embeddings": 65536, "sliding_window": None,
        },
        141.0,
    ),
    "qwen2.5-72b": (
        {
            "model_type": "qwen2", "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 152064,
            "max_position_embeddings": 131072, "use_sliding_window": False, "tie_word_embeddings": False,
        },
        72.7,
    ),
    "qwen2-57b-a14b": (
        {
            "model_type": "qwen2_moe", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4, "num_experts": 64, "num_experts_per_tok": 8,
            "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480, "vocab_size": 151936,
            "max_position_embeddings": 32768, "decoder_sparse_step": 1, "use_sliding_window": False,
        },
        57.4,
    ),
    "qwen3-32b": (
        {
            "model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
            "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
            "max_position_embeddings": 40960, "tie_word_embeddings": False,
        },
        32.8,
    ),
    "qwen3-235b-a22b": (
        {
            "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 94,
            "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "vocab_size": 151936, "mlp_only_layers": [],
            "max_position_embeddings": 40960, "decoder_sparse_step": 1,
        },
        235.1,
    ),
    "deepseek-v2-lite": (
        {
            "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "num_hidden_layers": 27,
            "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
            "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
            "vocab_size": 102400, "max_position_embeddings": 163840, "moe_layer_freq": 1,
        },
        15.7,
    ),
    "kimi-k2": (
        {
            "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
            "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384,
            "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 1,
            "vocab_size": 163840, "max_position_embeddings": 131072, "moe_layer_freq": 1,
        },
        1026.0,
    ),
    "gemma-2-9b": (
        {
            "model_type": "gemma2", "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000,
            "max_position_embeddings": 8192, "sliding_window": 4096,
        },
        9.24,
    ),
    "gemma-3-1b": (
        {
            "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
            "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
            "max_position_embeddings": 32768, "sliding_window": 512, "sliding_window_pattern": 6,
        },
        1.0,
    ),
    "gemma-3-27b": (
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62,
                "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152},
        },
        27.0,
    ),
    "phi-2": (
        {
            "model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32,
            "num_attention_heads": 32, "vocab_size": 51200, "max_position_embeddings": 2048,
        },
        2.78,
    ),
    "phi-4": (
        {
            "model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
            "num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 100352,
            "max_position_embeddings": 16384, "sliding_window": None, "tie_word_embeddings": False,
        },
        14.66,
    ),
    "phi-3.5-moe": (
        {
            "model_type": "phimoe", "hidden_size": 4096, "intermediate_size": 6400, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 2,
            "vocab_size": 32064, "max_position_embeddings": 131072, "sliding_window": 131072,
        },
        41.9,
    ),
    "olmo-7b": (
        {
            "model_type": "olmo", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 50304, "max_position_embeddings": 2048,
        },
        6.89,
    ),
    "olmo-2-32b": (
        {
            "model_type": "olmo2", "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
            "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 100352, "max_position_embeddings": 4096,
        },
        32.2,
    ),
    "olmoe-1b-7b": (
        {
            "model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
            "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
            "vocab_size": 50304, "max_position_embeddings": 4096,
        },
        6.92,
    ),
    "falcon-40b": (
        {
            "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
            "num_kv_heads": 8, "new_decoder_architecture": True, "parallel_attn": True, "vocab_size": 65024,
            "max_position_embeddings": 2048,
        },
        41.3,
    ),
    "gpt-neox-20b": (
        {
            "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
            "num_attention_heads": 64, "vocab_size": 50432, "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
        },
        20.55,
    ),
    "opt-66b": (
        {
            "model_type": "opt", "hidden_size": 9216, "ffn_dim": 36864, "num_hidden_layers": 64,
            "num_attention_heads": 72, "vocab_size": 50272, "max_position_embeddings": 2048,
            "word_embed_proj_dim": 9216,
        },
        65.7,
    ),
    "bloom": (
        {"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112, "vocab_size": 250880,
         "seq_length": 2048},
        176.2,
    ),
    "glm-4-9b": (
        {
            "model_type": "glm4", "hidden_size": 4096, "intermediate_size": 13696, "num_hidden_layers": 40,
            "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 151552,
            "max_position_embeddings": 32768, "tie_word_embeddings": False,
        },
        9.4,
    ),
    "glm-4.5": (
        {
            "model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288, "num_hidden_layers": 92,
            "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 160,
            "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "first_k_dense_replace": 3,
            "vocab_size": 151552, "max_position_embeddings": 131072, "tie_word_embeddings": False,
        },
        355.0,
    ),
    "command-r": (
        {
            "model_type": "cohere", "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
            "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 256000, "max_position_embeddings": 8192,
        },
        35.0,
    ),
    "command-r7b": (
        {
            "model_type": "cohere2", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 256000, "max_position_embeddings": 8192,
            "sliding_window": 4096, "sliding_window_pattern": 4,
        },
        8.03,
    ),
    "dbrx": (
        {
            "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "max_seq_len": 32768,
            "vocab_size": 100352, "attn_config": {"kv_n_heads": 8, "model_type": ""}, "tie_word_embeddings": False,
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
        131.6,
    ),
    "starcoder2-7b": (
        {
            "model_type": "starcoder2", "hidden_size": 4608, "intermediate_size": 18432, "num_hidden_layers": 32,
            "num_attention_heads": 36, "num_key_value_heads": 4, "vocab_size": 49152, "max_position_embeddings": 16384,
            "sliding_window": 4096,
        },
        7.17,
    ),
    "granite-3.1-8b": (
        {
            "model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800, "num_hidden_layers": 40,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 49155, "tie_word_embeddings": True,
            "max_position_embeddings": 131072,
        },
        8.17,
    ),
    "granite-3.1-3b-a800m": (
        {
            "model_type": "granitemoe", "hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 32,
            "num_attention_heads": 24, "num_key_value_heads": 8, "num_local_experts": 40, "num_experts_per_tok": 8,
            "vocab_size": 49155, "tie_word_embeddings": True, "max_position_embeddings": 131072,
        },
        3.3,
    ),
    "smollm3-3b": (
        {
            "model_type": "smollm3", "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
            "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256, "max_position_embeddings": 65536,
        },
        3.08,
    ),
    "seed-oss-36b": (
        {
            "model_type": "seed_oss", "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
            "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 155136,
            "max_position_embeddings": 524288, "tie_word_embeddings": False,
        },
        36.15,
    ),
    "mpt-30b": (
        {"model_type": "mpt", "d_model": 7168, "n_heads": 64, "n_layers": 48, "vocab_size": 50432, "max_seq_len": 8192},
        29.96,
    ),
}  # fmt: skip
ACTIVE = {"gpt-oss-120b": 5.1, "gpt-oss-20b": 3.6, "qwen3-235b-a22b": 22.2, "dbrx": 36.0, "phi-3.5-moe": 6.6}
WINDOWS = {"gpt-oss-120b": 18, "gemma-2-9b": 21, "gemma-3-1b": 22, "gemma-3-27b": 52, "command-r7b": 24}


def read(folder: Path, name: str, values: dict[str, Any]) -> Any:
    path = folder / name / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(values))
    return read_hugging_face(path)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_parameters_that_its_authors_state(tmp_path: Path, name: str):
    values, billions = FAMILIES[name]
    model = read(tmp_path, name, values)
    assert model.num_parameters / 1e9 == pytest.approx(billions, rel=0.01)
    if name in ACTIVE:
        # OpenAI leaves the embedding out
        active = model.active_parameters - (model.embedding_parameters if "gpt-oss" in name else 0)
        assert active / 1e9 == pytest.approx(ACTIVE[name], rel=0.03)
    if name in WINDOWS:
        assert model.num_window_layers == WINDOWS[name]


def test_the_text_model_of_a_larger_one_says_so(tmp_path: Path):
    assert read(tmp_path, "gemma", FAMILIES["gemma-3-27b"][0]).name == "gemma (its text model)"


def test_hybrids_are_refused_by_name(tmp_path: Path):
    with pytest.raises(ConfigError, match='"model_type": "qwen3_next", which is not modelled; these are: llama, '):
        read(tmp_path, "hybrid", {"model_type": "qwen3_next", "hidden_size": 2048})
