"""A run's days, money and energy, and what they depend on."""

from dataclasses import replace
from typing import get_args

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate import (
    Conditions,
    Layout,
    Machine,
    Training,
    estimate_training,
    find_model,
    parse_machine,
    search_layouts,
)
from plesio_planning.estimate.sensitivity import Sensitivity, best_upgrade, bottleneck, tornado
from plesio_planning.estimate.training import Market, Region

LAYOUT = Layout(tp=8, pp=4, dp=8, zero=1, sequence_parallel=True)


def llama(machine: str = "256xa100", *, layout: Layout = LAYOUT, **run: object) -> Training:
    inputs = {"global_batch": 1024, "tokens": 1.4e12, **run}
    return estimate_training(find_model("llama-70b"), layout, parse_machine(machine), **inputs)  # type: ignore[arg-type]


def trained(**conditions: object) -> Training:
    return llama(conditions=Conditions(**conditions))  # type: ignore[arg-type]


def row_of(rows: tuple[Sensitivity, ...], name: str) -> Sensitivity:
    return next(row for row in rows if row.name == name)


def test_parts_add_up_to_the_total():
    run = llama()
    assert sum(run.parts.values()) == pytest.approx(run.total_s, rel=1e-12)
    assert run.goodput.work_s == run.num_steps * run.step.total_s
    assert (run.num_steps - 1) * run.step.num_tokens < run.tokens <= run.num_steps * run.step.num_tokens


def test_llama_65b_took_21_days_449_mwh_and_173_tonnes():
    """Touvron et al. 2023a: 2048 A100, 1.4T tokens, about 380 tokens/s a device; table 15: 1,022,362 device-hours."""
    layout = Layout(tp=8, pp=4, dp=64, zero=1, sequence_parallel=True)
    run = estimate_training(
        find_model("llama-65b"),
        layout,
        parse_machine("2048xa100"),
        global_batch=2048,
        tokens=1.4e12,
        conditions=Conditions(draw=1.0),
    )
    low_s, high_s = run.interval_s
    assert low_s < 1_022_362 / 2048 * 3600 < high_s
    # energy and carbon follow from the device-hours as they say
    assert run.energy_kwh / run.device_hours == pytest.approx(449e3 / 1_022_362, rel=2e-3)
    assert run.carbon_kg / run.energy_kwh == pytest.approx(173 / 449, rel=2e-3)


def test_cost_is_device_hours_times_price():
    assert llama(conditions=Conditions(price_per_h=1.0)).cost == pytest.approx(256 * llama().total_s / 3600)
    assert llama().cost == pytest.approx(llama().device_hours * parse_machine("8xa100").accelerator.price_per_h)


def test_a_state_of_bloom_takes_as_long_as_it_did():
    """2.3 TB in 40 s on 384 A100 (Workshop et al. 2022); the text's TB are TiB, 14 bytes a parameter."""
    run = Conditions().goodput(1e6, checkpoint_bytes=2.3e12, num_devices=384)
    assert run.checkpoint_s == pytest.approx(40)
    assert pytest.approx(2.3 * 2**40, rel=0.03) == 14 * 176.2e9


def test_more_devices_at_equal_efficiency_take_less():
    ideal_s, share = [], []
    for num_devices in (256, 512, 1024, 4096, 32_768):
        run = Conditions().goodput(1e9 / num_devices, checkpoint_bytes=1e12, num_devices=num_devices)
        ideal_s.append(run.work_s)
        share.append(run.share)
    assert ideal_s == sorted(ideal_s, reverse=True)
    assert share == sorted(share, reverse=True)


def test_every_faster_part_shortens_the_run():
    rows = tornado(llama())
    for name in (
        "peak FLOP/s",
        "memory bandwidth",
        "bandwidth in a host",
        "bandwidth between hosts",
        "time between failures",
        "storage bandwidth",
    ):
        assert row_of(rows, name).high_s < llama().total_s < row_of(rows, name).low_s, name
    for name in ("latency", "restart"):
        assert row_of(rows, name).low_s < llama().total_s < row_of(rows, name).high_s, name
    price = row_of(rows, "price")
    assert price.low_s == price.high_s == llama().total_s
    assert price.high_cost / price.low_cost == pytest.approx(1.2 / 0.8)


def test_the_tornado_is_sorted_and_its_best_end_is_the_upgrade():
    rows = tornado(llama())
    swings = [row.swing_s for row in rows]
    assert swings == sorted(swings, reverse=True)
    upgrade = best_upgrade(rows)
    assert upgrade.best_s == min(min(row.low_s, row.high_s) for row in rows)
    assert upgrade.better == "more"


def test_the_host_is_among_the_inputs_where_something_is_in_its_memory():
    layout = Layout(tp=2, dp=32, zero=1, sequence_parallel=True, offload_activations=True)
    waiting = estimate_training(
        find_model("llama-3-8b"), layout, parse_machine("64xh100"), global_batch=512, tokens=1e12
    )
    assert bottleneck(waiting)[0] == "offload"
    assert best_upgrade(tornado(waiting)).name == "bandwidth to the host"
    memory = row_of(tornado(llama(layout=replace(LAYOUT, offload=True))), "bandwidth of the host's memory")
    assert memory.high_s < memory.low_s
    assert not any("the host" in row.name for row in tornado(llama()))


def test_the_bottleneck_is_the_largest_part():
    name, share = bottleneck(llama())
    assert name == "matrix"
    assert share == max(llama().parts.values()) / llama().total_s
    slow = replace(parse_machine("256xa100"), nic=replace(parse_machine("256xa100").nic, bytes_per_s=1e8))
    assert bottleneck(_on(slow))[0] == "gradient"


def _on(machine: Machine) -> Training:
    return estimate_training(find_model("llama-70b"), LAYOUT, machine, global_batch=1024, tokens=1.4e12)


def test_the_interval_widens_with_the_error_and_with_failures():
    def width(**conditions: float) -> float:
        low_s, high_s = llama(conditions=Conditions(**conditions)).interval_s  # type: ignore[arg-type]
        return high_s / low_s

    assert width(step_error=0.0) < width() < width(step_error=0.2)
    assert width(step_error=0.0, device_mtbf_s=1e7) > width(step_error=0.0) > 1
    assert width(confidence=0.5) < width(confidence=0.9)


def test_what_does_not_fit_says_what_would():
    with pytest.raises(ConfigError, match=r"GiB on each a100, which has 80 GiB; write "):
        llama(layout=Layout(dp=256))


@pytest.mark.parametrize(
    "conditions",
    [
        {"device_mtbf_s": 0.0},
        {"restart_s": -1.0},
        {"storage_bytes_per_s": 0.0},
        {"price_per_h": -1.0},
        {"pue": 0.5},
        {"confidence": 1.0},
        {"step_error": -0.1},
    ],
)
def test_impossible_conditions_are_refused(conditions: dict[str, float]):
    with pytest.raises(ConfigError, match="write"):
        Conditions(**conditions)  # type: ignore[arg-type]


def test_absurd_numbers_are_refused_with_their_bounds():
    with pytest.raises(ConfigError, match=r"tokens is 1e\+300; write 1e\+18 or less"):
        llama(tokens=1e300)
    with pytest.raises(ConfigError, match=r"price_per_h is inf; write 0 or more dollars, up to 1,000,000"):
        Conditions(price_per_h=float("inf"))


def test_long_sequences_that_do_not_fit_are_named():
    model = find_model("llama-3-8b", sequence_length=131072)
    with pytest.raises(ConfigError, match=r"with sequences of 131,072 tokens needs .* shorter sequence_length"):
        estimate_training(model, Layout(dp=256), parse_machine("256xa100"), global_batch=256, tokens=1e9)
    with pytest.raises(ConfigError, match=r"fits into .* with sequences of 131,072 tokens; .* shorter sequence_length"):
        search_layouts(model, parse_machine("1xa100"), global_batch=1)


def test_no_tokens_are_refused():
    with pytest.raises(ConfigError, match="tokens is 0; write more than 0"):
        llama(tokens=0.0)


def test_spot_is_cheaper_and_interrupts():
    usual, reserved, spot = (trained(market=market) for market in ("on-demand", "reserved", "spot"))
    assert reserved.cost == pytest.approx(0.6 * usual.cost)
    assert spot.cost < reserved.cost
    assert spot.goodput.share < usual.goodput.share
    hosts = usual.machine.num_hosts
    rate = 1 / usual.goodput.mtbf_s + hosts / (10 * 86_400)
    assert spot.goodput.mtbf_s == pytest.approx(1 / rate)
    assert trained(market="spot", preemption_s=86_400.0).goodput.share < spot.goodput.share
    # a price that is given is the market's
    assert trained(market="reserved", price_per_h=1.0).cost == trained(price_per_h=1.0).cost


def test_energy_is_what_the_parts_of_a_run_draw():
    usual, most = trained(), trained(draw=1.0)
    work = sum(seconds for name, seconds in usual.parts.items() if name in ("matrix", "attention")) / usual.total_s
    assert work + 0.4 * (1 - work) <= usual.draw < 1
    assert usual.energy_kwh == pytest.approx(usual.draw * most.energy_kwh)


def test_carbon_is_the_grids():
    assert trained(region="france").carbon_kg == pytest.approx(0.056 / 0.385 * trained().carbon_kg)
    assert all(0 < Conditions(region=region).grid_kg_per_kwh < 1 for region in get_args(Region))
    assert all(Conditions(market=market).price_of(1.0) <= 1 for market in get_args(Market))
    for wrong in ({"preemption_s": 3600.0}, {"region": "france", "carbon_kg_per_kwh": 0.1}):
        with pytest.raises(ConfigError, match="leave "):
            Conditions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["b300", "mi355x", "trainium2", "tpu-v7"])
def test_accelerators_of_2025_train(name: str):
    machine = parse_machine(f"64x{name}")
    run = estimate_training(
        find_model("llama-3-8b"),
        Layout(tp=2, dp=32, zero=1, sequence_parallel=True),
        machine,
        global_batch=512,
        tokens=1e12,
    )
    assert 0.2 < run.step.mfu < 0.8
    assert run.step_error > 0.1
