import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import Convolutional, Transformer, find_model, read_hugging_face
from refusals import refusal_of

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}


def transformer(name: str) -> Transformer:
    model = find_model(name)
    assert isinstance(model, Transformer)
    return model


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # parameters as their authors and Hugging Face state them
        ("gpt3-175b", 174.6),  # Narayanan et al. 2021, table 2
        ("gpt-530b", 529.6),
        ("gpt-1t", 1008.0),
        ("llama-7b", 6.738),
        ("llama-65b", 65.29),
        ("llama-2-70b", 68.98),
        ("llama-3-8b", 8.030),
        ("llama-3-70b", 70.55),
        ("llama-3-405b", 405.9),
        ("mixtral-8x7b", 46.70),
        ("mixtral-8x22b", 140.6),
        ("mistral-7b", 7.242),
        ("palm-540b", 540.35),  # Chowdhery et al. 2022, table 1
        ("palm-62b", 62.50),
        ("palm-8b", 8.63),
        ("nemotron-4-340b", 341.0),  # 9.4 billion of the embedding and 331.6 others
        ("olmo-2-7b", 7.30),
        ("olmo-2-13b", 13.72),
        ("olmo-2-32b", 32.23),
        ("qwen3-30b-a3b", 30.53),
        ("qwen3-235b-a22b", 235.1),
        ("deepseek-v3", 671.0),
    ],
)
def test_parameters_are_those_of_the_model_of_that_name(name: str, billions: float):
    assert transformer(name).num_parameters / 1e9 == pytest.approx(billions, rel=1e-3)


def test_a_token_meets_two_of_eight_experts():
    assert transformer("mixtral-8x7b").active_parameters / 1e9 == pytest.approx(12.88, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "billions", "rel"),
    [("deepseek-v3", 37.0, 0.02), ("qwen3-235b-a22b", 22.0, 0.01), ("qwen3-30b-a3b", 3.3, 0.02)],
)
def test_a_token_meets_the_experts_that_its_authors_state(name: str, billions: float, rel: float):
    assert transformer(name).active_parameters / 1e9 == pytest.approx(billions, rel=rel)


def test_latent_attention_has_the_weights_of_its_six_matrices():
    model = transformer("deepseek-v3")
    h, a = 7168, 128
    down = h * 1536 + h * (512 + 64)
    up = 1536 * a * (128 + 64) + 512 * a * (128 + 128)
    assert model.attention_weights == down + up + a * 128 * h
    assert model.core_attention_flops == 2 * 4096**2 * a * (192 + 128)


def test_layers_without_experts_count_once():
    """Three of 61 layers; their one network is as wide as the nine experts that a token meets elsewhere."""
    model = transformer("deepseek-v3")
    experts = replace(model, num_dense_layers=0, dense_ffn_size=0)
    assert model.layer_flops == pytest.approx(experts.layer_flops)
    saved = 3 * (256 * 3 * 7168 * 2048 + 7168 * 256 - (18432 - 2048) * 3 * 7168)
    assert experts.num_parameters - model.num_parameters == saved


def test_a_window_leaves_the_pairs_within_it():
    model = replace(transformer("mistral-7b"), sequence_length=100, window=10)
    by_hand = sum(min(token + 1, 10) for token in range(100))
    assert model.attended_pairs / 2 == pytest.approx(by_hand, rel=0.01)
    assert replace(model, window=100).attended_pairs == replace(model, window=None).attended_pairs == 100**2
    half = replace(model, num_window_layers=16).attended_pairs
    assert half == pytest.approx((model.attended_pairs + 100**2) / 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "window is 0; write 1 or more"),
        ({"window": None, "num_window_layers": 3}, "of a sliding window; write window"),
        ({"window": 5, "num_window_layers": 90}, "of 32 layers; write 32 or less"),
        ({"shared_ffn_size": 5}, "of a model that has experts; write num_experts"),
        ({"num_experts": 8, "num_dense_layers": 2}, "write both, or neither"),
        ({"num_experts": 8, "shared_ffn_size": -1}, "write 0 or more"),
        ({"rope_size": 64}, "of latent attention; write kv_rank"),
        ({"kv_rank": 512}, "write num_kv_heads = 32"),
    ],
)
def test_sizes_that_do_not_go_together_say_what_would(changes: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        replace(transformer("mistral-7b"), **changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["gpt-1.7b", "gpt3-175b", "gpt-1t"])
def test_a_gpt_with_full_recomputation_has_narayanans_flops(name: str):
    model = transformer(name)
    s, layers, h, vocabulary = model.sequence_length, model.num_layers, model.hidden_size, model.vocabulary_size
    expected = 96 * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    assert model.hardware_flops("full") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["gpt-1.7b", "gpt3-175b", "gpt-1t"])
def test_a_gpt_has_narayanans_parameters(name: str):
    model = transformer(name)
    s, layers, h, vocabulary = model.sequence_length, model.num_layers, model.hidden_size, model.vocabulary_size
    expected = 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocabulary + s) / (12 * layers * h))
    assert model.num_parameters == pytest.approx(expected + 2 * h, rel=1e-12)  # and the last norm


def test_full_recomputation_costs_nearly_a_third_more():
    model = transformer("gpt3-175b")
    assert 1.3 < model.hardware_flops("full") / model.model_flops < 4 / 3
    assert 1.0 < model.hardware_flops("selective") / model.model_flops < 1.02
    assert model.hardware_flops("none") == model.model_flops


def test_llamas_flops_are_six_a_parameter_and_token_and_attentions():
    model = transformer("llama-3-8b")
    matrices = model.num_parameters - model.embedding_parameters
    attention = 12 * model.num_layers * model.attention_size * model.sequence_length
    per_token = model.model_flops / model.sequence_length
    assert per_token == pytest.approx(6 * matrices + attention, rel=1e-4)  # norms have parameters and no matrices


@pytest.mark.parametrize(("values", "name"), [(LLAMA_3_8B, "llama-3-8b"), ({**GPT2, "vocab_size": 50304}, "gpt2")])
def test_a_hugging_face_config_is_the_model_of_that_name(values: dict[str, object], name: str, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    read, named = find_model(str(path)), transformer(name)
    assert isinstance(read, Transformer)
    assert (read.num_parameters, read.model_flops) == (named.num_parameters, named.model_flops)


def test_a_config_of_experts_is_read(tmp_path: Path):
    path = tmp_path / "config.json"
    mixtral = {
        **LLAMA_3_8B,
        "model_type": "mixtral",
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    path.write_text(json.dumps(mixtral))
    assert read_hugging_face(path).num_parameters == transformer("mixtral-8x7b").num_parameters


@pytest.mark.parametrize(
    ("values", "billions"),
    [
        # config.json of bigscience/bloom, tiiuae/falcon-7b and -40b, Qwen/Qwen2-7B, EleutherAI/gpt-neox-20b,
        # google/gemma-7b, microsoft/phi-2; parameters as their authors state them
        ("bloom n_embed=14336 num_attention_heads=112 n_layer=70 vocab_size=250880 seq_length=2048", 176.25),
        ("falcon hidden_size=4544 num_attention_heads=71 num_hidden_layers=32 vocab_size=65024 multi_query=1", 6.92),
        (
            "falcon hidden_size=8192 num_attention_heads=128 num_hidden_layers=60 vocab_size=65024 "
            "new_decoder_architecture=1 num_kv_heads=8 multi_query=1",
            41.3,
        ),
        (
            "qwen2 hidden_size=3584 num_attention_heads=28 num_hidden_layers=28 vocab_size=152064 "
            "num_key_value_heads=4 intermediate_size=18944",
            7.62,
        ),
        (
            "gpt_neox hidden_size=6144 num_attention_heads=64 num_hidden_layers=44 vocab_size=50432 "
            "intermediate_size=24576",
            20.55,
        ),
        (
            "gemma hidden_size=3072 num_attention_heads=16 num_hidden_layers=28 vocab_size=256000 "
            "num_key_value_heads=16 intermediate_size=24576",
            8.54,
        ),
        (
            "phi hidden_size=2560 num_attention_heads=32 num_hidden_layers=32 vocab_size=51200 intermediate_size=10240",
            2.78,
        ),
        # allenai/OLMo-2-0325-32B, nvidia/Minitron-4B-Base, Qwen/Qwen1.5-MoE-A2.7B
        (
            "olmo2 hidden_size=5120 num_attention_heads=40 num_hidden_layers=64 vocab_size=100352 "
            "num_key_value_heads=8 intermediate_size=27648",
            32.23,
        ),
        (
            "nemotron hidden_size=3072 num_attention_heads=24 num_hidden_layers=32 vocab_size=256000 "
            "num_key_value_heads=8 intermediate_size=9216 head_dim=128",
            4.19,
        ),
        (
            "qwen2_moe hidden_size=2048 num_attention_heads=16 num_hidden_layers=24 vocab_size=151936 "
            "num_key_value_heads=16 intermediate_size=5632 moe_intermediate_size=1408 num_experts=60 "
            "num_experts_per_tok=4 shared_expert_intermediate_size=5632 decoder_sparse_step=1",
            14.32,
        ),
    ],
)
def test_other_families_have_the_parameters_that_their_authors_state(values: str, billions: float, tmp_path: Path):
    path = tmp_path / "config.json"
    family, *sizes = values.split()
    numbers = {name: int(number) for name, number in (size.split("=") for size in sizes)}
    path.write_text(json.dumps({"model_type": family, **numbers}))
    read = read_hugging_face(path, sequence_length=None if "seq_length" in numbers else 2048)
    assert read.num_parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def test_a_length_that_is_missing_is_the_one_given(tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in LLAMA_3_8B.items() if "position" not in name}))
    with pytest.raises(ConfigError, match="sequence_length"):
        find_model(str(path))
    assert find_model(str(path), sequence_length=4096).tokens_per_sample == 4096


def test_another_sequence_length_changes_flops_and_not_parameters():
    short, long = transformer("llama-3-8b"), find_model("llama-3-8b", sequence_length=131072)
    assert isinstance(long, Transformer)
    assert long.num_parameters == short.num_parameters
    assert long.model_flops > 16 * short.model_flops


def test_a_residual_network_is_known_by_its_sums():
    model = find_model("resnet50")
    assert isinstance(model, Convolutional)
    assert model.model_flops == 3 * 2 * 4.09e9


@pytest.mark.parametrize(
    ("text", "message"),
    [("lama-3-8b", 'did you mean "llama-3-8b"?'), ("none.json", "there is no model file none.json")],
)
def test_an_unknown_model_is_one_clear_line(text: str, message: str):
    assert message in refusal_of(lambda: find_model(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "has no sizes"),
        ('{"model_type": "gpt2", "hidden_size": 8, "num_attention_heads": 2}', 'has no "num_hidden_layers"'),
        (json.dumps({**LLAMA_3_8B, "num_attention_heads": 30}), "30 heads do not divide a hidden size of 4096"),
        (json.dumps({**LLAMA_3_8B, "num_key_value_heads": 5}), "5 heads of keys and values do not divide 32 heads"),
        (json.dumps({**LLAMA_3_8B, "num_experts_per_tok": 2}), "a token goes to 2 of 1 experts"),
        (json.dumps({**LLAMA_3_8B, "kv_lora_rank": 512}), '"kv_lora_rank": latent attention'),
        (
            json.dumps({**LLAMA_3_8B, "model_type": "mamba"}),
            '"mamba", which is not modelled; these are: llama, mistral',
        ),
        (json.dumps({**LLAMA_3_8B, "model_type": None}), 'has no "model_type"; write one of llama'),
        (json.dumps({**LLAMA_3_8B, "intermediate_size": None}), '"intermediate_size": null, no size; write the width'),
        (json.dumps({**LLAMA_3_8B, "model_type": "mixtral"}), 'has no "num_local_experts"'),
        (json.dumps({**GPT2, "n_positions": None}), '"n_positions": null, no size; write how .* for sequence_length'),
        (json.dumps({**LLAMA_3_8B, "num_key_value_heads": "8"}), '"num_key_value_heads": "8"; write a whole number'),
        (json.dumps({**LLAMA_3_8B, "num_hidden_layers": [32]}), r'"num_hidden_layers": \[32\]; write a whole number'),
        (json.dumps({**LLAMA_3_8B, "sliding_window": [1]}), r'"sliding_window": \[1\]; write a whole number'),
        (json.dumps({**LLAMA_3_8B, "layer_types": "full"}), '"layer_types": "full"; write a list'),
        (json.dumps({**LLAMA_3_8B, "rope_scaling": 8}), '"rope_scaling": 8; write an object'),
        (json.dumps({**LLAMA_3_8B, "tie_word_embeddings": "no"}), '"tie_word_embeddings": "no"; write true or false'),
        (json.dumps({**LLAMA_3_8B, "attention_dropout": "0"}), '"attention_dropout": "0"; write a number'),
        (json.dumps({**LLAMA_3_8B, "vocab_size": 0}), "vocabulary_size is 0; write 1 or more"),
    ],
)
def test_a_config_that_is_none_says_what_it_lacks(text: str, message: str, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_hugging_face(path)


DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "tie_word_embeddings": False,
    "vocab_size": 129280,
}
QWEN_3 = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 1536,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
MISTRAL = {**LLAMA_3_8B, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}


@pytest.mark.parametrize(
    ("values", "name"), [(DEEPSEEK_V3, "deepseek-v3"), (QWEN_3, "qwen3-235b-a22b"), (MISTRAL, "mistral-7b")]
)
def test_a_config_of_a_newer_family_is_the_model_of_that_name(values: dict[str, Any], name: str, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    named = transformer(name)
    read = read_hugging_face(path, sequence_length=named.sequence_length)
    assert (read.num_parameters, read.active_parameters) == (named.num_parameters, named.active_parameters)
    assert read.model_flops == named.model_flops


def test_a_window_can_be_of_some_layers(tmp_path: Path):
    path = tmp_path / "config.json"
    kinds = ["full_attention", "sliding_attention"] * 16
    for more, windows in (
        ({"layer_types": kinds}, 16),
        ({"max_window_layers": 28}, 4),
        ({"use_sliding_window": False}, None),
    ):
        path.write_text(json.dumps({**MISTRAL, **more}))
        assert read_hugging_face(path).num_window_layers == windows


@pytest.mark.parametrize("name", ["gpt_neox", "gptj", "falcon"])
def test_blocks_of_some_families_are_parallel(name: str, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**GPT2, "model_type": name}))
    assert read_hugging_face(path).parallel_blocks
    path.write_text(json.dumps({**GPT2, "model_type": "gpt2"}))
    assert not read_hugging_face(path).parallel_blocks


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**QWEN_3, "decoder_sparse_step": 2}, '"decoder_sparse_step": 2, layers with and without experts in turn'),
        ({**QWEN_3, "mlp_only_layers": [0]}, r'"mlp_only_layers": \[0\], layers'),
        ({**DEEPSEEK_V3, "v_head_dim": 256}, "values of 256 and keys of 128 a head"),
        (
            {**QWEN_3, "layer_types": ["full_attention", "linear_attention"]},
            'of type "linear_attention" in "layer_types"',
        ),
        ({**QWEN_3, "layer_types": ["full_attention"]}, r'has 1 "layer_types" for \d+ layers; write one for each'),
        ({**QWEN_3, "n_shared_experts": 1}, '"n_shared_experts": shared experts of the family "qwen3_moe"'),
        ({key: value for key, value in DEEPSEEK_V3.items() if key != "kv_lora_rank"}, 'has no "kv_lora_rank"'),
    ],
)
def test_a_config_beyond_what_is_modelled_says_so(values: dict[str, Any], message: str, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=message) as caught:
        read_hugging_face(path)
    assert "\n" not in str(caught.value)


def test_images_have_no_sequence_length():
    with pytest.raises(ConfigError, match="resnet50 has no sequences"):
        find_model("resnet50", sequence_length=128)
