"""Layouts as files of training programs: written and read back they are the same."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import FORMATS, SOFTWARE, Layout, Software, find_model, import_run
from refusals import refusal_of

LEAN = replace(SOFTWARE["current"], gradient_bytes=2, master_weight_remainders=True)
SPLITS = replace(SOFTWARE["current"], splits_tensor=True)
LAYOUTS = {
    "megatron": [
        ("llama-3-405b", Layout(tp=8, pp=16, vpp=8, dp=16, zero=1, sequence_parallel=True)),
        ("llama-3-70b", Layout(tp=4, pp=5, dp=8, cp=2, zero=1, shard=4, sequence_parallel=True, recomputation="full")),
        ("gpt3-175b", Layout(tp=8, pp=8, vpp=3, dp=2, recomputation="full", recomputed_layers=4, precision="fp16")),
        ("deepseek-v3", Layout(pp=16, dp=128, ep=64, zero=1, precision="fp8", recomputation="partial")),
        ("qwen3-235b-a22b", Layout(tp=2, pp=2, dp=32, ep=32, etp=1, zero=1, sequence_parallel=True, software=LEAN)),
        ("llama-3-8b", Layout(dp=64, zero=3, micro_batch=2, offload=True, software=SPLITS)),
        ("llama-3-8b", Layout(tp=2, dp=64, zero=2, sequence_parallel=True, software=SPLITS)),
    ],
    "torchtitan": [
        ("llama-3-70b", Layout(tp=8, dp=32, zero=3, sequence_parallel=True, recomputation="full", software=SPLITS)),
        ("llama-3-70b", Layout(tp=2, pp=4, vpp=20, dp=8, zero=2, sequence_parallel=True, micro_batch=2)),
        ("llama-3-8b", Layout(dp=32, cp=2, zero=3, shard=16, precision="fp8")),
        ("qwen3-30b-a3b", Layout(dp=64, ep=32, etp=1, zero=3, offload=True)),
        ("llama-3-8b", Layout(pp=2, dp=4)),
    ],
    "deepspeed": [
        ("llama-3-8b", Layout(dp=64, zero=3, micro_batch=4, recomputation="full")),
        ("gpt3-13b", Layout(tp=4, dp=16, zero=1, offload=True, precision="fp16")),
        ("llama-3-8b", Layout(dp=8, zero=2, precision="fp32")),
        ("llama-3-8b", Layout(dp=64, zero=3, software=replace(SOFTWARE["current"], quantizes_exchanges=True))),
    ],
}
NO_MODE = "activation_checkpoint.mode = 'none'\n"
CASES = [(program, name, layout) for program, cases in LAYOUTS.items() for name, layout in cases]


@pytest.mark.parametrize(
    ("program", "name", "layout"), CASES, ids=lambda value: "" if isinstance(value, Layout) else value
)
def test_a_file_that_is_read_is_the_layout_that_was_written(tmp_path: Path, program: str, name: str, layout: Layout):
    model, batch = find_model(name), 8 * layout.dp * layout.micro_batch * layout.pp
    file = tmp_path / f"train{FORMATS[program].suffix}"
    file.write_text(FORMATS[program].write(model, layout, batch))
    found = import_run(file)
    software = replace(layout.software, **found.settings)
    values = {**found.layout_on(layout.num_devices, num_layers=model.num_layers), "software": software}
    values.setdefault("dp", layout.num_devices // (values["tp"] * values["pp"] * values.get("cp", 1)))
    read = Layout(**values)
    assert replace(read, etp=read.expert_tp) == replace(layout, etp=layout.expert_tp)
    assert found.global_batch == batch
    assert not found.unread
    if program == "megatron":
        read_model = find_model(None, **{size: value for size, value in found.sizes.items() if value is not None})
        assert replace(read_model, name=name) == model


def test_experts_have_what_their_other_flags_ask_for():
    """Megatron-Core 0.15.0 refuses `moe_act` without grouped products, and limited routing without groups."""
    flags = FORMATS["megatron"].write(*(find_model("deepseek-v3"), LAYOUTS["megatron"][3][1], 16384))
    assert "--moe-grouped-gemm" in flags
    assert "--moe-router-num-groups 8" in flags
    other = replace(find_model("deepseek-v3"), num_experts=252, expert_hosts=3)
    assert "are not of 8 groups" in refusal_of(lambda: FORMATS["megatron"].write(other, Layout(dp=4, ep=4, zero=1), 64))


def test_files_have_the_names_that_programs_publish():
    model, layout = find_model("llama-3-70b"), Layout(tp=8, pp=4, vpp=5, dp=2, zero=2, sequence_parallel=True)
    flags = FORMATS["megatron"].write(model, layout, 64)
    for flag in (
        "--num-layers-per-virtual-pipeline-stage 4",
        "--data-parallel-sharding-strategy optim_grads",
        "--swiglu",
    ):
        assert f"  {flag} \\\n" in flags
    sections = tomllib.loads(FORMATS["torchtitan"].write(model, layout, 64))
    assert sections["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert sections["training"]["local_batch_size"] == 32
    values = json.loads(FORMATS["deepspeed"].write(model, Layout(dp=8, zero=3, micro_batch=2), 64))
    assert values["gradient_accumulation_steps"] == 4
    assert values["zero_optimization"]["stage"] == 3


@pytest.mark.parametrize(
    ("program", "layout", "message"),
    [
        ("deepspeed", Layout(pp=2, dp=4), "DeepSpeed's file has no option for pp 2"),
        ("deepspeed", Layout(tp=2, sequence_parallel=True), "write tp = 1, or sequence_parallel = False"),
        ("torchtitan", Layout(dp=8, zero=1), "torchtitan has no option for zero 1; write 0, 2 or 3"),
        ("torchtitan", Layout(dp=8, zero=2, software=LEAN), "write gradients = fp32"),
        ("megatron", Layout(pp=4, dp=2, schedule="zero-bubble"), "no option for schedule zero-bubble; write 1f1b"),
        ("megatron", Layout(dp=8, zero=3, shard=4), "Megatron-LM has no option for shard 4; leave it out"),
        ("megatron", Layout(pp=7, vpp=6, dp=1), "no option for 80 layers in 42 parts; write a pp that divides them"),
        ("megatron", Layout(dp=8, software=Software(gradient_bytes=2)), "add master_weight_remainders"),
    ],
)
def test_what_a_program_cannot_say_is_refused(program: str, layout: Layout, message: str):
    assert message in refusal_of(lambda: FORMATS[program].write(find_model("llama-3-70b"), layout, 64))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "neither zero_optimization nor train_micro_batch_size_per_gpu; write"),
        ("a.json", "{", "no JSON"),
        ("a.json", '{"zero_optimization": {"stage": "x"}}', '"stage" is "x"; write a whole number'),
        ("a.toml", "[model]\n", "neither parallelism nor training; write a configuration of torchtitan"),
        ("a.toml", "[training]\n[activation_checkpoint]\nmode = 'selective'", "is not modelled; write"),
        ("a.toml", "x", "no TOML"),
        ("a.toml", "parallelism = 3", '"parallelism" is 3; write a section of values'),
        ("a.toml", f'{NO_MODE}[parallelism]\ntensor_parallel_degree = "2"', 'degree" is "2"; write a whole number'),
        ("a.toml", f'{NO_MODE}[training]\nglobal_batch_size = "512"', 'size" is "512"; write a whole number'),
        ("a.toml", f"{NO_MODE}[training]\nenable_cpu_offload = 1", 'offload" is 1; write true or false'),
        ("a.json", '{"zero_optimization": 2}', '"zero_optimization" is 2; write a section of values'),
        ("a.sh", "--num-layers 2 --num-experts 2 --moe-expert-capacity-factor x", "factor x is no number; write one"),
        ("a.toml", f"{NO_MODE}[parallelism]\npipeline_parallel_degree = 0", 'degree" is 0; write 1 or more'),
        ("a.toml", f"{NO_MODE}[parallelism]\ndata_parallel_shard_degree = 0", "write 1 or more, or -1 for all"),
        (
            "a.toml",
            f"{NO_MODE}[parallelism]\nfsdp_reshard_after_forward = 'often'",
            'forward" is "often", which is not modelled; write default or always or never',
        ),
        ("a.json", '{"zero_optimization": {}, "tensor_parallel": {"autotp_size": 0}}', 'size" is 0; write 1 or more'),
        ("a.sh", "--num-layers 0", "--num-layers 0 is no whole number of 1 or more"),
        (
            "a.sh",
            "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 0",
            "--pipeline-model-parallel-size 0 is no whole number of 1 or more",
        ),
        ("a.sh", "torchrun train.py", "neither --tensor-model-parallel-size nor --num-layers"),
        ("a.sh", "--tensor-model-parallel-size two", "--tensor-model-parallel-size two is no whole number"),
        ("a.sh", "--tensor-model-parallel-size '2", "no flags of a shell"),
        ("a.sh", "--num-layers 2 --recompute-granularity selective --recompute-modules mlp", "write core_attn"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_line(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    refusal = refusal_of(lambda: import_run(tmp_path / name))
    assert message in refusal
    assert refusal.startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "unread"),
    [
        ("a.sh", "--num-layers 2 --lr 1e-4 --save out", ("--lr", "--save")),
        ("a.toml", f"{NO_MODE}[training]\nsteps = 3\n[optimizer]\nlr = 1", ("optimizer", "training.steps")),
        (
            "a.json",
            '{"zero_optimization": {"stage": 1, "round_robin": true}, "steps": 2}',
            ("steps", "zero_optimization.round_robin"),
        ),
    ],
)
def test_names_that_nothing_is_read_from_are_kept(tmp_path: Path, name: str, text: str, unread: tuple[str, ...]):
    (tmp_path / name).write_text(text)
    assert import_run(tmp_path / name).unread == unread


def test_the_last_of_a_flag_counts(tmp_path: Path):
    (tmp_path / "a.sh").write_text("--tensor-model-parallel-size 2 --tensor-model-parallel-size=4")
    assert import_run(tmp_path / "a.sh").layout["tp"] == 4


def test_no_file_is_a_line(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no file"):
        import_run(tmp_path / "none.toml")
