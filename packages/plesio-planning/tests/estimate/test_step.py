from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.errors import ConfigError
from plesio.cost.all_reduce import nccl_all_reduce_s
from plesio_planning.estimate import (
    CONSTANTS,
    MODELS,
    SOFTWARE,
    Layout,
    Step,
    check_memory,
    estimate_memory,
    estimate_step,
    find_model,
    parse_machine,
)
from plesio_planning.estimate.communication import DeviceGroup, exposed_in_turn_s
from plesio_planning.estimate.kernels import Kernels

SMALL = Layout(tp=8, pp=4, dp=2, micro_batch=1)


def step(name: str, layout: Layout, machine: str = "64xa100", *, global_batch: int = 64) -> Step:
    return estimate_step(find_model(name), layout, parse_machine(machine), global_batch=global_batch)


@pytest.mark.parametrize("software", SOFTWARE.values(), ids=SOFTWARE)
@pytest.mark.parametrize(
    "changes", [{}, {"vpp": 2}, {"recomputation": "full"}, {"sequence_parallel": True}, {"zero": 1}]
)
def test_parts_add_up_to_a_step_that_no_peak_exceeds(software: Any, changes: dict[str, Any]):
    one = step("gpt-18b", replace(SMALL, software=software, **changes))
    assert one.total_s == pytest.approx(sum(one.parts.values()))
    assert all(value >= 0 for value in one.parts.values())
    assert 0 < one.mfu <= one.hfu < 1
    assert one.tokens_per_s == pytest.approx(64 * 2048 / one.total_s)
    assert one.samples_per_s * one.total_s == pytest.approx(64)


@pytest.mark.parametrize("name", MODELS)
def test_every_named_model_can_be_estimated(name: str):
    one = step(name, Layout(dp=8, zero=3 if name != "resnet50" else 0), "8xh100")
    assert 0 < one.mfu < 0.8


def test_the_bubble_is_the_share_of_the_pipeline():
    """(p-1)/m of the time of the stages, divided by v: for equal stages, so with a vocabulary of next to nothing."""
    model = replace(find_model("gpt-18b"), vocabulary_size=8)
    machine = parse_machine("64xa100")
    for vpp, micro_batches in ((1, 32), (2, 32), (5, 32), (1, 4)):
        one = estimate_step(model, replace(SMALL, vpp=vpp), machine, global_batch=2 * micro_batches)
        waiting = one.bubble_s + one.send_s + one.gradient_s + one.optimizer_s
        assert one.bubble_s / (one.total_s - waiting) == pytest.approx(3 / (micro_batches * vpp), rel=0.01)


def test_a_stage_with_a_large_output_matrix_sets_the_pace():
    small, large = (
        estimate_step(
            replace(find_model("gpt-18b"), vocabulary_size=size), SMALL, parse_machine("64xa100"), global_batch=64
        )
        for size in (8, 256_000)
    )
    # 256000 words are 3.5 layers of a stage of ten
    assert 1.2 < large.total_s / small.total_s < 1.4


def test_full_recomputation_is_another_forward_pass():
    plain, full = (step("gpt3-175b", replace(SMALL, recomputation=how)) for how in ("none", "full"))
    # more than 4/3: forward no exchange is hidden (Korthikanti et al. 2022, table 4: 39 % more in a layer)
    assert 1.3 < full.total_s / plain.total_s < 1.4
    assert full.mfu < plain.mfu
    assert full.hfu == pytest.approx(full.mfu * 4 / 3, rel=0.02)


def test_a_smaller_part_of_a_matrix_is_multiplied_less_efficiently():
    kernels = Kernels.of(parse_machine("8xa100"), Layout(), CONSTANTS)
    rates = [2 * 2048 * n * 8192 / kernels.product_s(2048, n, 8192) for n in (512, 1024, 2048, 8192, 65536)]
    assert rates == sorted(rates)
    assert rates[-1] < kernels.flops_per_s < 312e12


def test_a_product_is_never_faster_than_its_traffic():
    kernels = Kernels.of(parse_machine("8xh100"), Layout(), CONSTANTS)
    assert kernels.product_s(1, 8192, 8192) >= 2 * 8192 * 8192 / kernels.bytes_per_s


def test_tensor_parallelism_between_hosts_is_slow():
    inside = step("gpt3-175b", Layout(tp=8, pp=8), global_batch=16)
    across = step("gpt3-175b", Layout(tp=16, pp=4), global_batch=16)
    assert across.tensor_s > 2 * inside.tensor_s


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 12), stride=st.integers(1, 12), blocks=st.integers(1, 8), host=st.sampled_from([1, 4, 6, 8]))
def test_a_group_is_spread_as_its_ranks_are(size: int, stride: int, blocks: int, host: int):
    """Hosts and members of every group, counted rank by rank."""
    num_devices = size * stride * blocks * host
    groups = [
        Counter((start + member + place * stride) // host for place in range(size))
        for start in range(0, num_devices, size * stride)
        for member in range(stride)
    ]
    machine = replace(parse_machine("8xh100"), num_devices=num_devices, devices_per_host=host)
    group = DeviceGroup.of(machine, size=size, stride=stride, constants=CONSTANTS)
    assert group.num_hosts == max(map(len, groups))
    assert group.per_host == min(min(each.values()) for each in groups)


@pytest.mark.parametrize(("tp", "aligned"), [(6, 8), (3, 4)])
def test_a_tensor_parallel_group_across_two_hosts_is_slower_than_a_larger_one_in_one(tp: int, aligned: int):
    model, machine = find_model("gpt3-175b"), parse_machine("96xh100")
    across_s, inside_s = (
        estimate_step(
            model, Layout(tp=each, pp=4, dp=24 // each, sequence_parallel=True), machine, global_batch=48
        ).tensor_s
        for each in (tp, aligned)
    )
    assert across_s > 2 * inside_s


def test_groups_share_a_hosts_adapters():
    machine = parse_machine("64xa100")
    whole, one_each = (DeviceGroup.of(machine, size=8, stride=stride, constants=CONSTANTS) for stride in (1, 8))
    assert (whole.num_hosts, whole.per_host, whole.link.bytes_per_s) == (1, 8, machine.local.bytes_per_s)
    assert (one_each.num_hosts, one_each.per_host) == (8, 1)
    assert one_each.link.bytes_per_s == pytest.approx(0.9 * 25e9)
    ring_s = nccl_all_reduce_s(
        1e9,
        num_hosts=8,
        ranks_per_host=1,
        algorithm="ring",
        local_latency_s=machine.local.latency_s,
        link=one_each.link,
    )
    assert one_each.all_reduce_s(1e9) == pytest.approx(ring_s)


def test_gradients_hide_behind_the_backward_pass_but_for_the_last_layer():
    layout = Layout(dp=64, micro_batch=4)
    waiting = replace(layout, software=replace(SOFTWARE["current"], overlaps_gradients=False))
    free = replace(CONSTANTS, contention=0.0)
    model, machine = find_model("llama-7b"), parse_machine("64xa100")
    hidden, waited = (
        estimate_step(model, one, machine, global_batch=256, constants=free).gradient_s for one in (layout, waiting)
    )
    assert hidden < 0.1 * waited
    assert hidden >= waited / 32 * 0.999


def test_what_hides_an_exchange_is_slowed_down_by_it():
    """By the contention's share of the shorter of the two, so an exchange is never dearer than one that waits."""
    model, machine, layout = find_model("llama-7b"), parse_machine("64xa100"), Layout(dp=64, micro_batch=4)
    free, contended = (
        estimate_step(model, layout, machine, global_batch=256, constants=replace(CONSTANTS, contention=share))
        for share in (0.0, 0.5)
    )
    waiting = replace(layout, software=replace(SOFTWARE["current"], overlaps_gradients=False))
    waited = estimate_step(model, waiting, machine, global_batch=256)
    assert contended.gradient_s - free.gradient_s == pytest.approx(0.5 * waited.gradient_s, rel=1e-6)
    assert contended.total_s < waited.total_s


def test_zero_3_at_small_micro_batches_exposes_its_exchanges():
    model, machine = find_model("gpt3-13b"), parse_machine("64xa100")
    shares = [
        (one := estimate_step(model, Layout(dp=64, zero=3, micro_batch=size), machine, global_batch=512)).gradient_s
        / one.total_s
        for size in (1, 2, 4, 8)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.2
    assert shares[-1] < shares[0] / 2


def test_one_adapter_of_eight_is_slower():
    """ZeRO 3 of 2021 on 384 to 1536 A100: a step takes the same time, as its exchanges do (Narayanan et al. 2021)."""
    model = find_model("gpt3-175b")
    times = [
        step(
            "gpt3-175b",
            Layout(
                dp=size,
                zero=3,
                recomputation="full",
                precision="fp16",
                micro_batch=1536 // size,
                software=SOFTWARE["deepspeed-2021"],
            ),
            f"{size}xa100",
            global_batch=1536,
        ).total_s
        for size in (768, 1536)
    ]
    assert times[0] == pytest.approx(times[1], rel=0.1)
    once_s = 2 * model.num_parameters / (0.9 * 25e9)  # all weights, by one adapter of 200 Gbit/s
    assert times[1] > 4 * once_s  # gathered forward, anew and backward, and gradients scattered


@pytest.mark.parametrize("machine", ["8xa100", "8xh100"])
def test_the_first_flash_attention_is_slower_the_longer_the_sequence(machine: str):
    first = replace(SOFTWARE["current"], flash_attention_1=True)
    ratios = []
    for length in (2048, 16384, 65536):
        model = find_model("gpt3-6.7b", sequence_length=length)
        one, other = (
            estimate_step(model, Layout(dp=8, software=software), parse_machine(machine), global_batch=8).total_s
            for software in (first, SOFTWARE["current"])
        )
        ratios.append(one / other)
    assert ratios == sorted(ratios)
    assert ratios[0] < 1.15
    assert ratios[-1] > 1.4


def test_a_narrow_model_waits_for_its_host():
    model = replace(find_model("gpt2"), sequence_length=128)
    one = estimate_step(model, Layout(), parse_machine("1xh100"), global_batch=1)
    assert one.launch_s > 0.4 * one.total_s
    assert step("gpt3-13b", Layout(dp=64, zero=3), "64xh100").launch_s == 0


def test_fp8_is_less_than_twice_as_fast():
    """Attention and the output matrix stay in 16 bits, and inputs are cast."""
    model = find_model("llama-3-70b")
    layout = Layout(tp=4, pp=4, dp=4, sequence_parallel=True)
    half, eight = (
        estimate_step(model, replace(layout, precision=name), parse_machine("64xh100"), global_batch=128).total_s
        for name in ("bf16", "fp8")
    )
    assert 1.2 < half / eight < 1.6


@given(exchange_s=st.floats(0.001, 10), beside_s=st.floats(0.001, 1), parts=st.integers(1, 20))
def test_exposed_exchanges_are_those_of_a_queue(exchange_s: float, beside_s: float, parts: int):
    link_free_s = 0.0
    for part in range(parts):
        link_free_s = max(link_free_s, (part + 1) * beside_s) + exchange_s / parts
    exposed_s = link_free_s - parts * beside_s
    assert exposed_in_turn_s(exchange_s, beside_s=beside_s, parts=parts) == pytest.approx(exposed_s, abs=1e-9)


def test_zero_exchanges_more_the_more_it_shares():
    waiting = replace(SOFTWARE["current"], overlaps_gradients=False)
    all_reduce, sharded, scatters, gathers = (
        step("llama-7b", Layout(dp=64, zero=zero, software=waiting), global_batch=256).gradient_s for zero in range(4)
    )
    # half an all-reduce of FP32 gradients to scatter, a quarter to gather weights of 2 bytes; and other latencies
    assert sharded == pytest.approx(0.75 * all_reduce, rel=0.1)
    assert scatters == pytest.approx((4 * 0.5 + 0.25) * all_reduce, rel=0.1)
    assert gathers == pytest.approx(4 * (0.5 + 0.5) * all_reduce, rel=0.1)


def test_sharing_among_few_hosts_gathers_over_few_and_adds_up_once():
    """Hybrid sharding (HSDP): OLMo 2 32B ran so on 1280 H100, at over 1,800 tokens a second and device."""
    model, machine = find_model("olmo-2-32b"), parse_machine("1280xh100")
    whole = Layout(dp=1280, zero=3, micro_batch=2, recomputation="full")
    hybrid = replace(whole, shard=64)
    steps = [estimate_step(model, one, machine, global_batch=2560) for one in (whole, hybrid)]
    memory = [estimate_memory(model, one, machine, global_batch=2560) for one in (whole, hybrid)]
    assert 1.1 * steps[1].total_s < steps[0].total_s
    assert memory[1].optimizer_bytes == 20 * memory[0].optimizer_bytes
    assert steps[1].tokens_per_s / 1280 == pytest.approx(1800, rel=0.1)
    # with twice the micro-batches twice the gathers, and the groups' sum once
    twice = [estimate_step(model, one, machine, global_batch=5120).gradient_s for one in (whole, hybrid)]
    assert twice[0] == pytest.approx(2 * steps[0].gradient_s)
    assert twice[1] < 1.95 * steps[1].gradient_s
    alone = replace(hybrid, shard=1280)
    assert estimate_step(model, alone, machine, global_batch=2560).parts == steps[0].parts


def test_zero_plus_plus_exchanges_less():
    """Wang et al. 2023: weights in half of their bytes, gradients in less, and no host gathers backward from others."""
    layout = Layout(dp=384, zero=3, micro_batch=1, recomputation="full")
    quantized = replace(layout.software, quantizes_exchanges=True)
    softwares = [layout.software, quantized, replace(quantized, gathers_in_host=True)]
    model, machine = find_model("gpt-18b"), parse_machine("384xa100")
    steps = [
        estimate_step(model, replace(layout, software=one), machine, global_batch=384).gradient_s for one in softwares
    ]
    assert steps[0] > 1.8 * steps[1] > 1.8 * steps[2]
    memory = [
        estimate_memory(model, replace(layout, software=one), machine, global_batch=384).parameters_bytes
        for one in softwares
    ]
    assert memory[0] == memory[1]
    assert memory[2] - memory[1] == pytest.approx(2 * model.num_parameters / 8, rel=1e-3)


def test_a_host_keeps_all_of_the_experts_that_no_other_of_its_devices_has():
    model, machine = find_model("deepseek-v3"), parse_machine("2048xh800")
    layout = Layout(dp=2048, ep=64, zero=3)
    in_host = replace(layout, software=replace(layout.software, gathers_in_host=True))
    kept, gathered = (
        estimate_memory(model, one, machine, global_batch=2048).parameters_bytes for one in (layout, in_host)
    )
    experts = model.num_layers * model.num_experts * model.expert_parameters / 64
    assert gathered - kept == pytest.approx(2 * experts, rel=0.25)
    assert gathered - kept > 2 * experts


def test_a_host_that_keeps_the_optimizer_frees_memory_and_takes_time():
    layout = Layout(dp=8, zero=2, recomputation="full")
    here, there = layout, replace(layout, offload=True)
    model, machine = find_model("gpt-18b"), parse_machine("8xa100")
    memory = [estimate_memory(model, one, machine, global_batch=64) for one in (here, there)]
    steps = [estimate_step(model, one, machine, global_batch=64) for one in (here, there)]
    assert memory[1].optimizer_bytes == 0 < memory[0].optimizer_bytes
    assert steps[1].optimizer_s > 10 * steps[0].optimizer_s
    assert steps[1].total_s - steps[0].total_s == pytest.approx(steps[1].optimizer_s - steps[0].optimizer_s)


def test_activations_that_wait_in_the_host_free_memory_and_take_time_where_computing_hides_none():
    """They go there beside the forward pass and come back beside the backward pass, at the host link's speed."""
    model, machine = find_model("llama-3-8b"), parse_machine("8xh100")
    here = Layout(dp=8, zero=3, micro_batch=2)
    there, again = (replace(here, offload_activations=True, recomputation=how) for how in ("none", "full"))
    memory = [estimate_memory(model, one, machine, global_batch=16) for one in (here, there, again)]
    steps = [estimate_step(model, one, machine, global_batch=16) for one in (here, there, again)]
    a_layer = memory[0].activations_bytes / model.num_layers
    assert memory[1].activations_bytes == pytest.approx(2 * a_layer)
    assert memory[1].host_bytes == pytest.approx(memory[0].activations_bytes - 2 * a_layer)
    assert memory[0].host_bytes == 0 < memory[2].host_bytes < memory[1].host_bytes / 5
    assert steps[0].offload_s == steps[2].offload_s == 0
    moved_s = 2 * memory[0].activations_bytes / CONSTANTS.host_link_bytes_per_s
    assert 0.2 * moved_s < steps[1].offload_s < moved_s
    others_s = [one.total_s - one.offload_s for one in steps[:2]]
    assert others_s[1] <= others_s[0] + 1e-9
    slow = replace(CONSTANTS, host_link_bytes_per_s=CONSTANTS.host_link_bytes_per_s / 100)
    assert estimate_step(model, there, machine, global_batch=16, constants=slow).offload_s > 50 * moved_s


def test_a_host_holds_no_more_than_it_has():
    model, machine = find_model("llama-3-405b"), parse_machine("8xh100")
    one = estimate_memory(model, Layout(tp=8, zero=1, offload=True, sequence_parallel=True), machine, global_batch=8)
    assert one.host_bytes == pytest.approx(12 * model.num_parameters / 8)
    assert not one.fits
    with pytest.raises(ConfigError, match="in its host for each h100, which has 256 GiB"):
        check_memory(
            find_model("llama-3-70b"),
            Layout(dp=8, zero=3, micro_batch=2, offload=True, offload_activations=True),
            machine,
            global_batch=16,
        )


def test_layers_that_are_computed_again_are_between_none_and_all():
    model, machine = find_model("gpt3-175b"), parse_machine("64xa100")
    layouts = [
        Layout(tp=8, pp=8, recomputation=how, recomputed_layers=layers)  # type: ignore[arg-type]
        for how, layers in (("none", None), ("full", 3), ("full", 9), ("full", 12), ("full", None))
    ]
    steps = [estimate_step(model, one, machine, global_batch=64) for one in layouts]
    memory = [estimate_memory(model, one, machine, global_batch=64).activations_bytes for one in layouts]
    times = [one.total_s for one in steps]
    assert times == sorted(times)
    assert memory[0] > memory[1] > memory[2] > memory[3]
    assert (steps[3].parts, memory[3]) == (steps[4].parts, memory[4])
    assert steps[1].recompute_s == pytest.approx(steps[4].recompute_s / 4)
    flops = [one.hardware_flops for one in steps]
    assert flops[0] < flops[1] < flops[2] < flops[3] == flops[4]


def test_a_pipeline_scatters_gradients_in_rounds():
    """Interleaved, a part collects those of p micro-batches first."""
    waiting = replace(SOFTWARE["current"], overlaps_gradients=False)
    layout = Layout(tp=8, pp=4, vpp=2, dp=2, zero=1, sequence_parallel=True, software=waiting)
    once, rounds, each = (
        step("llama-2-70b", one, "64xh100", global_batch=32).gradient_s
        for one in (layout, replace(layout, zero=2), replace(layout, zero=2, vpp=1))
    )
    gather_s = step("llama-2-70b", replace(layout, zero=2), "64xh100", global_batch=8).gradient_s - (rounds - once) / 3
    assert rounds - gather_s == pytest.approx(4 * (once - gather_s))  # 16 micro-batches, 4 at a time
    assert each - gather_s == pytest.approx(16 * (once - gather_s))


def test_more_replicas_never_make_a_step_of_the_same_share_faster():
    times = [
        step("gpt-7.5b", Layout(tp=4, dp=dp), f"{4 * dp}xa100", global_batch=8 * dp).total_s for dp in (2, 8, 64, 512)
    ]
    assert times == sorted(times)
    assert times[-1] < 1.3 * times[0]


def test_experts_exchange_tokens():
    alone, shared = (step("mixtral-8x7b", Layout(dp=64, ep=ep)) for ep in (1, 8))
    assert alone.expert_s == 0
    assert 0 < shared.expert_s < 0.3 * shared.total_s
    assert 0 < step("mixtral-8x7b", Layout(dp=64, ep=4, cp=1)).expert_s < shared.expert_s


def test_context_parallelism_hides_its_ring_behind_long_attention():
    model = find_model("llama-3-8b", sequence_length=131072)
    one = estimate_step(model, Layout(cp=8, dp=8), parse_machine("64xh100"), global_batch=8)
    assert one.context_s < 0.05 * one.total_s


def test_a_residual_network_trains_as_fast_as_reported():
    """NVIDIA's examples: about 2700 images/s on one A100 in mixed precision, from which the constant comes."""
    one = step("resnet50", Layout(micro_batch=256), "1xa100", global_batch=256)
    assert one.samples_per_s == pytest.approx(2700, rel=0.05)
    many = step("resnet50", Layout(micro_batch=256, dp=64), global_batch=64 * 256)
    assert many.samples_per_s > 0.9 * 64 * one.samples_per_s


def test_a_faster_machine_is_faster():
    layout = Layout(dp=8, zero=3, precision="fp16")
    times = [step("llama-7b", layout, f"8x{name}").total_s for name in ("v100", "a100-40gb", "a100", "h100", "b200")]
    assert times == sorted(times, reverse=True)
