from dataclasses import replace
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import (
    SOFTWARE,
    Layout,
    Memory,
    Transformer,
    check_memory,
    estimate_memory,
    estimate_step,
    find_model,
    parse_machine,
    search_layouts,
)
from plesio_planning.estimate.capacity import that_fits
from plesio_planning.estimate.layout import lean
from plesio_planning.estimate.memory import fullest_stage, layers_of_stage, stage_parameters

GIB = 2**30
MEGATRON = Layout(tp=8, pp=8, software=SOFTWARE["megatron-2022"])


def memory(name: str, layout: Layout, machine: str = "64xa100", *, global_batch: int = 64) -> Memory:
    return estimate_memory(find_model(name), layout, parse_machine(machine), global_batch=global_batch)


def test_parts_add_up():
    one = memory("gpt3-175b", MEGATRON)
    assert one.total_bytes == pytest.approx(sum(one.parts.values()))
    assert all(value > 0 for value in one.parts.values())


def test_state_is_eighteen_bytes_a_parameter():
    one = memory("llama-3-8b", Layout(dp=64))
    state = one.parameters_bytes + one.gradients_bytes + one.optimizer_bytes
    assert state == pytest.approx(18 * 8.030e9, rel=1e-3)


def test_single_precision_doubles_activations_and_not_the_state():
    mixed, full = (memory("llama-3-8b", Layout(dp=64, precision=precision)) for precision in ("bf16", "fp32"))
    assert full.activations_bytes == 2 * mixed.activations_bytes
    state = full.parameters_bytes + full.gradients_bytes + full.optimizer_bytes
    assert state == pytest.approx(16 * 8.030e9, rel=1e-3)


def test_zero_divides_stage_by_stage():
    stages = [memory("llama-3-8b", Layout(dp=64, zero=zero)) for zero in range(4)]
    assert [one.optimizer_bytes for one in stages[1:]] == pytest.approx([stages[0].optimizer_bytes / 64] * 3)
    assert [one.gradients_bytes for one in stages[2:]] == pytest.approx([stages[0].gradients_bytes / 64] * 2)
    assert stages[3].parameters_bytes == pytest.approx(stages[0].parameters_bytes / 64)
    assert stages[1].gradients_bytes == stages[0].gradients_bytes


def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages():
    """Korthikanti et al. 2022: L layers' activations whatever p is, and (1 + (p-1)/pv) times as many interleaved."""
    model = find_model("gpt3-175b")
    alone = estimate_memory(model, replace(MEGATRON, pp=1), parse_machine("8xa100"), global_batch=64)
    staged = memory("gpt3-175b", MEGATRON)
    interleaved = memory("gpt3-175b", replace(MEGATRON, vpp=3))
    few = memory("gpt3-175b", MEGATRON, global_batch=4)
    assert staged.activations_bytes == pytest.approx(alone.activations_bytes)
    assert interleaved.activations_bytes == pytest.approx(alone.activations_bytes * (1 + 7 / 24))
    assert few.activations_bytes == pytest.approx(staged.activations_bytes / 2)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-65b", "mixtral-8x7b"])
def test_recomputation_and_sequence_parallelism_save_activations(name: str):
    sizes = [
        memory(name, replace(MEGATRON, **changes)).activations_bytes
        for changes in (
            {},
            {"recomputation": "selective"},
            {"recomputation": "selective", "sequence_parallel": True},
            {"recomputation": "full", "sequence_parallel": True},
        )
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_a_gated_network_keeps_what_its_three_matrices_need():
    """Llama 3 8B, a layer, a token: 32 h without dropout, three tensors of 3.5 h for two of 4 h, keys of a quarter."""
    one = memory("llama-3-8b", Layout(dp=64))
    h, tokens = 4096, 8192
    per_layer = tokens * (32 * h + 2 * (3 * 14336 - 8 * h) + 2 * (2 * (h + 1024) - 4 * h))
    assert one.activations_bytes == pytest.approx(32 * per_layer)


def test_a_pipeline_shares_gradients_but_those_it_collects():
    plain = memory("gpt3-175b", replace(MEGATRON, tp=1, dp=8, zero=1))
    shared = memory("gpt3-175b", replace(MEGATRON, tp=1, dp=8, zero=2))
    interleaved = memory("gpt3-175b", replace(MEGATRON, tp=1, dp=8, zero=2, vpp=3))
    assert shared.gradients_bytes == pytest.approx(plain.gradients_bytes / 8)
    assert interleaved.gradients_bytes == pytest.approx(plain.gradients_bytes * (1 / 8 + 1 / 3))


def test_layers_that_do_not_come_out_even_are_missing_at_the_ends():
    """Two of 16 stages of Llama 3 405B have a layer less (Grattafiori et al. 2024, section 3.3.2)."""
    model = find_model("llama-3-405b")
    assert isinstance(model, Transformer)
    assert [layers_of_stage(model, Layout(pp=16), stage) for stage in (0, 1, 14, 15)] == [7, 8, 8, 7]
    assert [layers_of_stage(model, Layout(pp=127 // 2), stage) for stage in (0, 62)] == [2, 2]
    assert [layers_of_stage(replace(model, num_layers=11), Layout(pp=4), stage) for stage in range(4)] == [3, 3, 3, 2]
    assert [layers_of_stage(replace(model, num_layers=61), Layout(pp=16), stage) for stage in (0, 1, 13, 14, 15)] == [
        3,
        4,
        4,
        3,
        3,
    ]
    for num_layers in range(16, 64):
        uneven = replace(model, num_layers=num_layers)
        assert sum(layers_of_stage(uneven, Layout(pp=16), stage) for stage in range(16)) == num_layers


def test_llama_3_was_trained_on_devices_of_80_gb():
    """Grattafiori et al. 2024, table 4; one layer a part is assumed."""
    layout = Layout(tp=8, pp=16, vpp=8, dp=128, zero=2, sequence_parallel=True)
    one = memory("llama-3-405b", layout, "16384xh100", global_batch=2048)
    assert one.fits
    assert one.stage == 1
    assert not memory("llama-3-405b", replace(layout, zero=1), "16384xh100", global_batch=2048).fits


def test_experts_are_divided_and_the_rest_is_not():
    whole = memory("mixtral-8x7b", Layout(dp=64))
    divided = memory("mixtral-8x7b", Layout(dp=64, ep=8))
    experts = 2 * 32 * 8 * 3 * 4096 * 14336
    assert whole.parameters_bytes - divided.parameters_bytes == pytest.approx(experts * 7 / 8)
    zero = memory("mixtral-8x7b", Layout(dp=64, ep=8, zero=3))
    assert zero.parameters_bytes == pytest.approx(whole.parameters_bytes / 64)


@pytest.mark.parametrize(
    ("name", "layout", "machine"),
    [
        ("gpt3-175b", MEGATRON, "64xa100"),
        ("llama-3-8b", Layout(dp=8), "8xh100"),
        ("llama-3-70b", Layout(dp=64), "64xh100"),
        ("llama-2-70b", Layout(dp=64, zero=1), "64xa100"),
        ("mixtral-8x22b", Layout(dp=64, ep=8), "64xh100"),
        ("resnet50", Layout(dp=8, micro_batch=2048, precision="fp16"), "8xv100"),
    ],
)
def test_what_does_not_fit_says_the_fastest_that_would(name: str, layout: Layout, machine: str):
    model = find_model(name)
    with pytest.raises(ConfigError) as caught:
        check_memory(model, layout, parse_machine(machine), global_batch=16384)
    needs, _, advice = str(caught.value).partition("; write ")
    assert "GiB on each" in needs
    assert "\n" not in advice
    changes: dict[str, Any] = {}
    for change in advice.split(", "):
        field, _, value = change.partition(" = ")
        changes[field] = int(value) if value.isdigit() else {"True": True, "False": False}.get(value, value)
    advised = replace(layout, **changes)
    assert check_memory(model, advised, parse_machine(machine), global_batch=16384).fits
    step = estimate_step(model, advised, parse_machine(machine), global_batch=16384)
    fixed = {"ep": layout.ep, "cp": 1, "vpp": 1} | ({} if layout.micro_batch > 1 else {"micro_batch": 1})
    best = search_layouts(
        model,
        parse_machine(machine),
        global_batch=16384,
        fixed={**fixed, "precision": layout.precision, "software": layout.software},
    ).best
    assert step.total_s <= 1.1 * best.step.total_s


def test_what_fits_nowhere_needs_more_devices():
    with pytest.raises(ConfigError, match="take more devices"):
        check_memory(
            find_model("llama-3-405b"),
            Layout(tp=8, sequence_parallel=True),
            parse_machine("8xh100"),
            global_batch=16384,
        )


def test_nemotron_340b_fits_as_nvidia_ran_it():
    """NVIDIA's recipe for 128 H100; its software keeps gradients in BF16."""
    layout = Layout(tp=8, pp=8, vpp=12, dp=2, zero=1, sequence_parallel=True)
    machine = parse_machine("128xh100")
    model = find_model("nemotron-4-340b")
    with pytest.raises(ConfigError, match=r"91\.14 GiB .* 80 GiB; write gradients = bf16 and .* it needs 75\.02 GiB"):
        check_memory(model, layout, machine, global_batch=32)
    leaner = that_fits(model, layout, machine, global_batch=32)
    assert leaner == lean(layout)
    usual, less = (estimate_memory(model, each, machine, global_batch=32) for each in (layout, leaner))
    assert less.fits
    assert usual.gradients_bytes == 2 * less.gradients_bytes
    assert less.optimizer_bytes == pytest.approx(usual.optimizer_bytes * 10 / 12)


def test_layers_without_experts_are_on_the_first_stages():
    model = find_model("deepseek-v3")
    assert isinstance(model, Transformer)
    layout = Layout(pp=16)
    parameters = [sum(stage_parameters(model, layout, stage)) for stage in range(16)]
    assert sum(parameters) == model.num_parameters
    assert fullest_stage(model, layout) == 1
    assert parameters[0] < parameters[1] == max(parameters)
    assert fullest_stage(model, Layout(pp=61)) == 3
    assert fullest_stage(model, Layout()) == 0


def test_what_fits_is_returned():
    one = check_memory(find_model("llama-3-8b"), Layout(dp=8, zero=3), parse_machine("8xh100"), global_batch=8)
    assert one.fits
    assert one.capacity_bytes == 80 * GIB
