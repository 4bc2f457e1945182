"""A grid comes to what the delayed rule says, bit for bit."""

import pytest
import torch

from plesio.policies.grid import GridSetting
from runtime.grid.programs import adam, by_the_rule, in_virtual_world


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "spec",
    [
        "1x1",
        "1x4",
        "1x4,micro_batches=3",
        "3x1,mixing=ring",
        "2x2",
        "2x2,micro_batches=4",
        *(pytest.param(spec, marks=pytest.mark.slow) for spec in ("1x2", "2x1", "4x1,mixing=ring", "3x3", "2x4")),
    ],
)
def test_is_the_delayed_rule_to_the_bit(spec: str) -> None:
    setting = GridSetting.parse(spec)
    state, result, given = in_virtual_world(setting)
    expected = by_the_rule(setting, given)
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert result.staleness.max == -(-2 * (setting.stages - 1) // setting.micro_batches)


@pytest.mark.parametrize(
    "spec", ["1x3,micro_batches=3", *(pytest.param(spec, marks=pytest.mark.slow) for spec in ("1x3", "2x2", "1x4"))]
)
def test_late_stages_under_adam_go_forward_at_predicted_weights_to_the_bit(spec: str) -> None:
    setting = GridSetting.parse(spec)
    state, _, given = in_virtual_world(setting, make=adam)
    expected = by_the_rule(setting, given, make=adam)
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("schedule", ["delay=0", "schedule=1f1b,micro_batches=2"])
def test_without_late_gradients_adam_is_left_alone(schedule: str) -> None:
    alone, _, _ = in_virtual_world(GridSetting.parse(f"1x1,{schedule}"), make=adam)
    cut, _, _ = in_virtual_world(GridSetting.parse(f"1x3,{schedule}"), make=adam)
    assert all(torch.equal(alone[name], cut[name]) for name in alone)


def test_without_delay_it_is_sgd_to_the_bit() -> None:
    whole, _, _ = in_virtual_world(GridSetting())
    cut, result, _ = in_virtual_world(GridSetting(stages=4, delay=0))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert result.staleness.max == 0


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_synchronous_schedules_are_gradient_accumulation(schedule: str) -> None:
    whole, _, _ = in_virtual_world(GridSetting(schedule="gpipe", micro_batches=4))
    cut, result, _ = in_virtual_world(GridSetting.parse(f"1x4,schedule={schedule},micro_batches=4"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert result.staleness.max == 0
