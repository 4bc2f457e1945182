"""Mixtures of experts: where their tokens travel, what their products cost, and DeepSeek-V3 as it was trained."""

from dataclasses import replace

import pytest

from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError
from plesio_planning.estimate import SOFTWARE, Layout, Step, estimate_memory, estimate_step, find_model, parse_machine

MACHINE = parse_machine("2048xh800")
DEEPSEEK = find_model("deepseek-v3")
THEIRS = Layout(pp=16, dp=128, ep=64, zero=1, precision="fp8")
ONE_BY_ONE = replace(SOFTWARE["current"], overlaps_experts=False, routes_by_host=False)


def step(layout: Layout, *, model: object = DEEPSEEK, machine: str = "2048xh800", global_batch: int = 15360) -> Step:
    return estimate_step(model, layout, parse_machine(machine), global_batch=global_batch)  # type: ignore[arg-type]


def test_deepseek_v3_fits_and_takes_as_long_as_reported(capsys: pytest.CaptureFixture[str]):
    """2.664 million hours of 2048 H800 are 54.2 days (DeepSeek-AI 2024, table 1)."""
    line = (
        "estimate --model deepseek-v3 --cluster 2048xh800 --pp 16 --ep 64 --precision fp8 --batch 15360 --tokens 14.8T"
    )
    assert invoke(line.split()) == 0
    days = float(capsys.readouterr().out.partition("takes ")[2].split()[0])
    assert days == pytest.approx(54.2, rel=0.05)
    assert estimate_memory(DEEPSEEK, THEIRS, MACHINE, global_batch=15360).fits


def test_a_token_that_goes_to_each_host_once_travels_less():
    each, once = (replace(THEIRS, software=one) for one in (ONE_BY_ONE, replace(ONE_BY_ONE, routes_by_host=True)))
    even = replace(DEEPSEEK, num_layers=64)
    anywhere = replace(even, expert_hosts=None)
    # 8 copies to 7 of 8 hosts in 2 bytes both ways; 3.6 hosts, or 5.2 of 8, in 1 byte there and 2 back
    times_s = [step(one, model=model).expert_s for one, model in ((each, even), (once, anywhere), (once, even))]
    assert times_s[1] / times_s[0] == pytest.approx(8 * (1 - (7 / 8) ** 8) / 8 * 3 / 4, rel=0.04)
    assert times_s[2] / times_s[0] == pytest.approx(4 * (1 - (3 / 4) ** 8) / 8 * 3 / 4, rel=0.04)


def test_computing_hides_the_exchange_but_is_slowed_down():
    beside, alone = (
        replace(THEIRS, software=replace(SOFTWARE["current"], overlaps_experts=overlaps)) for overlaps in (True, False)
    )
    assert 0.2 * step(alone).expert_s < step(beside).expert_s < 0.7 * step(alone).expert_s


def test_products_for_experts_one_by_one_cost_more_the_more_of_them_a_device_has():
    model, software = find_model("qwen3-30b-a3b"), replace(SOFTWARE["current"], overlaps_experts=False)
    more_s = []
    for ep in (1, 2, 8):
        layout = Layout(dp=16, ep=ep, software=software)
        apart = replace(layout, software=replace(software, groups_experts=False))
        steps = [step(one, model=model, machine="16xh100", global_batch=16).matrix_s for one in (layout, apart)]
        more_s.append(steps[1] - steps[0])
    assert more_s[0] == pytest.approx(2 * more_s[1]) == pytest.approx(8 * more_s[2])


def test_padding_to_a_capacity_is_computed_and_sent():
    padded = replace(DEEPSEEK, capacity_factor=1.5)
    layout = replace(THEIRS, software=ONE_BY_ONE)
    assert step(layout, model=padded).expert_s == pytest.approx(1.5 * step(layout).expert_s, rel=0.01)
    assert step(layout, model=padded).matrix_s > 1.1 * step(layout).matrix_s


def test_a_capacity_that_drops_tokens_is_refused():
    with pytest.raises(ConfigError, match=r"capacity_factor is 0\.5, which drops tokens; write 1 or more"):
        replace(DEEPSEEK, capacity_factor=0.5)


def test_experts_may_be_whole_where_layers_are_cut():
    """NVIDIA's mixtures have expert parallelism over the tensor-parallel devices, too."""
    model, machine = find_model("qwen3-235b-a22b"), parse_machine("256xh100")
    cut, whole = (Layout(tp=2, pp=8, dp=16, ep=16, etp=etp, zero=1, sequence_parallel=True) for etp in (None, 1))
    over = replace(whole, ep=32, etp=None)
    assert (cut.expert_tp, whole.expert_tp, over.expert_tp) == (2, 1, 1)
    assert (cut.expert_replicas, whole.expert_replicas, over.expert_replicas) == (1, 2, 1)
    states = [estimate_memory(model, one, machine, global_batch=256).parameters_bytes for one in (cut, whole, over)]
    assert states[1] > 1.5 * states[0] == pytest.approx(1.5 * states[2])


def test_schedules_trade_waiting_for_memory():
    layouts = [replace(THEIRS, schedule=name) for name in ("1f1b", "zero-bubble", "dualpipe")]  # type: ignore[arg-type]
    bubbles_s = [step(one).bubble_s for one in layouts]
    assert bubbles_s == sorted(bubbles_s, reverse=True)
    assert bubbles_s[2] < 0.7 * bubbles_s[0]
    memory = [estimate_memory(DEEPSEEK, one, MACHINE, global_batch=15360) for one in layouts]
    assert memory[0] == memory[1]
    assert memory[2].parameters_bytes == 2 * memory[0].parameters_bytes
    assert memory[2].optimizer_bytes == memory[0].optimizer_bytes


@pytest.mark.parametrize(
    ("name", "precision"), [("deepseek-v3", "fp8"), ("llama-3-70b", "bf16"), ("gpt3-175b", "bf16")]
)
def test_partial_recomputation_is_between_none_and_full(name: str, precision: str):
    model, layouts = (
        find_model(name),
        [
            Layout(tp=8, pp=8, dp=32, zero=1, precision=precision, sequence_parallel=True, recomputation=one)
            for one in ("none", "partial", "full")  # type: ignore[arg-type]
        ],
    )
    steps = [step(one, model=model, machine="2048xh100", global_batch=512).total_s for one in layouts]
    kept = [
        estimate_memory(model, one, parse_machine("2048xh100"), global_batch=512).activations_bytes for one in layouts
    ]
    assert steps[0] < steps[1] < steps[2]
    assert kept[0] > kept[1] > kept[2]
    assert steps[1] < 1.06 * steps[0]


def test_products_in_fp8_keep_their_inputs_in_a_byte():
    model = find_model("llama-3-70b")
    half, fp8 = (
        estimate_memory(
            model,
            Layout(tp=8, dp=8, zero=1, sequence_parallel=True, precision=precision),
            parse_machine("64xh100"),
            global_batch=64,
        ).activations_bytes
        for precision in ("bf16", "fp8")
    )
    inputs = 2 * 8192 + 8192 + 28672  # of a token: two norms, the heads' output, the activation
    assert half - fp8 == pytest.approx(80 * 8192 * inputs / 8)
