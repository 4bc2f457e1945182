from typing import Any, get_args

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import (
    ACCELERATORS,
    CONSTANTS,
    SOFTWARE,
    Layout,
    check_layout,
    estimate_step,
    find_accelerator,
    find_model,
    parse_machine,
)
from plesio_planning.estimate.layout import SoftwareName
from refusals import refusal_of


def test_every_software_that_an_option_takes_has_settings():
    assert list(SOFTWARE) == list(get_args(SoftwareName))


def test_a_machine_is_read_as_it_is_named():
    machine = parse_machine("2048xh100")
    assert (machine.num_hosts, machine.devices_per_host, machine.name) == (256, 8, "2048xh100")
    assert machine.local.bytes_per_s == 366e9
    assert machine.nic.bytes_per_s == 400e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100", 'write a number and an accelerator, as in "2048xh100"'),
        ("8xh10", 'unknown accelerator "h10"; did you mean "h100"?'),
        ("12xh100", "12 devices do not fill hosts of 8; write 8 or 16"),
        ("0xh100", "write 1 or more"),
    ],
)
def test_an_impossible_machine_is_one_clear_line(text: str, message: str):
    with pytest.raises(ConfigError) as caught:
        parse_machine(text)
    assert message in str(caught.value)


def test_a_replica_has_as_many_micro_batches_as_its_share_of_the_batch():
    layout = Layout(tp=8, pp=4, dp=2, micro_batch=2)
    assert check_layout(find_model("gpt-18b"), layout, parse_machine("64xa100"), global_batch=64) == 16


@pytest.mark.parametrize(
    ("name", "degrees", "global_batch", "message"),
    [
        ("llama-3-8b", {"dp": 4}, 8, "8xa100 has 8; write dp = 8"),
        ("llama-3-8b", {"dp": 3, "pp": 3}, 8, "8xa100 has 8; write degrees whose product is 8"),
        ("llama-3-8b", {"dp": 8}, 12, "12, no multiple of dp 8 x micro_batch 1; write 8 or 16"),
        ("llama-3-8b", {"dp": 8}, 0, "write 8 or 16"),
        ("gpt2", {"tp": 8}, 8, "tp 8 does not divide the 12 attention heads of gpt2; write 4 or 6"),
        ("llama-3-8b", {"cp": 8, "software": SOFTWARE["megatron-2022"]}, 8, "write cp = 1"),
        ("mixtral-8x7b", {"dp": 8, "ep": 3}, 8, "ep 3 does not divide the 8 experts of mixtral-8x7b; write 2 or 4"),
        ("mixtral-8x7b", {"tp": 4, "dp": 2, "ep": 4, "etp": 4}, 8, "ep 4 x etp 4 does not divide the 8 devices"),
        ("llama-3-8b", {"pp": 8, "vpp": 2, "schedule": "dualpipe"}, 8, "write pp = 2 or more and vpp = 1"),
        ("llama-3-8b", {"pp": 8, "recomputed_layers": 5, "recomputation": "full"}, 8, "5 of the 4 layers of a stage"),
        ("llama-3-8b", {"dp": 8, "recomputed_layers": 5}, 8, "and a recomputation"),
        (
            "resnet50",
            {"dp": 8, "offload": True},
            8,
            "all its activations and its optimizer in the device; leave offload out",
        ),
        (
            "resnet50",
            {"dp": 8, "etp": 2, "schedule": "dualpipe", "recomputed_layers": 3},
            8,
            "leave etp, recomputed_layers",
        ),
        ("llama-3-8b", {"tp": 4, "dp": 2, "etp": 2}, 8, "etp is of experts, and llama-3-8b has none; leave it out"),
        ("llama-3-8b", {"pp": 4, "dp": 2, "schedule": "dualpipe"}, 8, "for global_batch a multiple of 4, at least 16"),
        ("llama-3-8b", {"dp": 8, "zero": 3, "shard": 3}, 8, "shard 3 is of ZeRO among 8 replicas; write a divisor"),
        ("llama-3-8b", {"dp": 8, "zero": 0, "shard": 4}, 8, "and zero = 1 or more"),
        ("gpt3-13b", {"pp": 1, "dp": 8, "schedule": "zero-bubble"}, 8, "write pp = 2 or more and vpp = 1"),
        ("llama-3-8b", {"pp": 3, "schedule": "dualpipe"}, 8, "pp is 3; write 2 or 4"),
        (
            "llama-3-8b",
            {"pp": 8, "vpp": 5},
            8,
            "vpp 5 does not divide the 4 layers of a stage of llama-3-8b; write 2 or 4",
        ),
        (
            "llama-3-8b",
            {"pp": 8, "vpp": 3},
            8,
            "vpp 3 does not divide the 4 layers of a stage of llama-3-8b; write 2 or 4",
        ),
        ("llama-3-8b", {"dp": 8, "vpp": 2}, 8, "write vpp = 1, or pp = 2 or more"),
        ("llama-3-8b", {"pp": 8, "vpp": 2}, 12, "for global_batch a multiple of 8"),
        ("llama-3-8b", {"pp": 8, "zero": 3}, 8, "write zero = 2 or less, or pp = 1"),
        ("llama-3-8b", {"dp": 8, "sequence_parallel": True}, 8, "write tp = 2 or more"),
        ("llama-3-8b", {"dp": 8, "precision": "fp8"}, 8, 'a100 does not multiply in "fp8"'),
        ("resnet50", {"tp": 8}, 8, "leave tp out"),
        ("resnet50", {"dp": 8, "recomputation": "full"}, 8, "leave recomputation out"),
    ],
)
def test_what_cannot_be_laid_out_says_what_can(name: str, degrees: dict[str, Any], global_batch: int, message: str):
    model, machine = find_model(name), parse_machine("8xa100")
    assert message in refusal_of(lambda: check_layout(model, Layout(**degrees), machine, global_batch=global_batch))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ConfigError, match="write pp = 12 or less"):
        check_layout(find_model("gpt2"), Layout(pp=16), parse_machine("16xa100"), global_batch=16)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tp": 0}, "tp is 0; write 1 or more"),
        ({"zero": 4}, "zero is 4; write 0, 1, 2 or 3"),
        ({"recomputation": "selectiv"}, 'did you mean "selective"?'),
    ],
)
def test_a_layout_is_checked_when_made(values: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        Layout(**values)
    assert message in str(caught.value)


def test_racks_and_slices_are_hosts_of_any_size():
    rack = parse_machine("2048xgb200")
    assert (rack.devices_per_host, rack.num_hosts) == (64, 32)  # 72 do not divide 2048
    assert parse_machine("576xgb200").devices_per_host == 72
    assert rack.nic.bytes_per_s == 64 * 50e9
    slice_of_tpus = parse_machine("1024xtpu-v5p")
    assert slice_of_tpus.num_hosts == 1
    two = parse_machine("2x256tpu-v6e")
    assert (two.num_devices, two.num_hosts) == (512, 2)
    assert two.nic.bytes_per_s == 256 * 12.5e9


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_accelerator_has_an_efficiency_and_can_train(name: str):
    accelerator = ACCELERATORS[name]
    assert accelerator.architecture in CONSTANTS.matrix_efficiency
    precision = "fp16" if name == "v100" else "bf16"
    layout = Layout(dp=8, zero=3, precision=precision)
    step = estimate_step(find_model("gpt-1.7b"), layout, parse_machine(f"8x{name}"), global_batch=64)
    assert 0.1 < step.mfu < 0.8


def test_palm_took_as_long_on_tpus_as_its_authors_say():
    """Chowdhery et al. 2022, section 4: 238.3 thousand tokens/s, 46.2 % MFU; the constant is from this figure."""
    layout = Layout(tp=12, dp=512, zero=3, sequence_parallel=True, recomputation="full", micro_batch=4)
    step = estimate_step(find_model("palm-540b"), layout, parse_machine("2x3072tpu-v4"), global_batch=2048)
    assert step.tokens_per_s == pytest.approx(238_300, rel=0.02)
    assert step.mfu == pytest.approx(0.462, rel=0.02)


def test_accelerators_have_synonyms():
    assert find_accelerator("A100-80GB") is find_accelerator("a100")
