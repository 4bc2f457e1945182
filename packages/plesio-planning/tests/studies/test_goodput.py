import math
from typing import Any

import pytest

from plesio.core.errors import ConfigError
from plesio_planning.estimate.goodput_ways import WayToGoOn
from plesio_planning.studies import goodput
from plesio_planning.studies.models.goodput import cost_of_a_failure


def share(ways: tuple[WayToGoOn, ...], name: str) -> float:
    return next(way.share for way in ways if way.name == name)


@pytest.fixture(scope="module")
def answer() -> Any:
    return goodput()


def test_shares_add_up_and_agree_with_the_closed_form(answer: Any):
    for ways in answer.by_devices.values():
        for way in ways:
            assert math.fsum(way.parts.values()) == pytest.approx(1)
            low, high = way.work_ci95
            assert low <= way.share <= high
            if not math.isnan(way.exact):
                assert way.share == pytest.approx(way.exact, abs=1.7 * max(high - low, 1e-6))  # 3.3 deviations


def test_more_devices_do_a_smaller_share_of_work(answer: Any):
    by = answer.by_devices
    assert len(by) == 7
    for name in ("plain", "checkpoint and restart", "elastic", "local SGD, 8 groups"):
        shares = [share(ways, name) for _, ways in sorted(by.items())]
        assert shares == sorted(shares, reverse=True)


def test_more_groups_lose_less():
    ways = goodput(num_devices=1_000_000).ways
    shares = [share(ways, f"local SGD, {groups} groups") for groups in (8, 16, 64)]
    assert shares == sorted(shares)
    one_group = goodput(num_groups=(1,), round_s=104.0, exchange_s=3.0, restart_s=300.0)
    same = goodput(checkpoint_s=3.0, restart_s=297.0)
    # one group is a run whose states are its rounds
    assert share(one_group.ways, "local SGD, 1 group") == pytest.approx(
        share(same.ways, "checkpoint and restart"), abs=0.02
    )


def test_llama_3_was_over_90_percent_effective():
    """Grattafiori et al. 2024, section 3.3.4: 16,384 H100, a failure in 3.09 h."""
    assert 0.90 < share(goodput(num_devices=16_384).ways, "checkpoint and restart") < 0.95


def test_the_order_of_a_million_chips_is_that_of_others():
    """Decoupled DiLoCo: 27, 58, 88 and 93 %; what a failure takes there is not known, so these times are ours."""
    answer = goodput(
        restart_s=140.0, repair_s=200.0, reconfigure_s=40.0, checkpoint_s=1.0, round_s=30.0, exchange_s=0.1
    )
    plain, elastic, eight, sixteen = (
        share(answer.published, name) for name in ("plain", "elastic", "local SGD, 8 groups", "local SGD, 16 groups")
    )
    assert plain < elastic < eight < sixteen
    assert eight == pytest.approx(0.88, abs=0.02)
    assert sixteen == pytest.approx(0.93, abs=0.02)
    # the figure of 8 groups says that of 16: a failure hits half as many
    assert 1 / (1 + cost_of_a_failure(0.88, num_groups=8) / 16) == pytest.approx(0.93, abs=0.01)


@pytest.mark.parametrize(("num_devices", "working"), [(255, 128), (1000, 896), (1024, 1024)])
def test_devices_that_are_left_over_of_whole_replicas_are_idle_in_every_way(num_devices: int, working: int):
    answer = goodput(num_devices=num_devices, replica_devices=128, num_groups=(1, 7, 8, 64), simulated_failures=1000)
    whole = {way.name: way for way in goodput(num_devices=working, num_groups=(1, 7, 8), simulated_failures=1000).ways}
    assert [way.name for way in answer.ways] == [
        *("plain", "checkpoint and restart", "elastic"),
        *(f"local SGD, {groups} group{'s' * (groups > 1)}" for groups in (1, 7, 8) if groups * 128 <= working),
    ]
    for way in answer.ways:
        assert way.parts.get("idle", 0) == pytest.approx(1 - working / num_devices)
        assert math.fsum(way.parts.values()) == pytest.approx(1)
        # as those that work do on a machine of their own, whose failures are fewer
        assert way.share == pytest.approx(whole[way.name].share * working / num_devices)
        assert way.exact == pytest.approx(whole[way.name].exact * working / num_devices, nan_ok=True)
        assert way.work_ci95 == pytest.approx([end * working / num_devices for end in whole[way.name].work_ci95])


def test_a_way_that_the_published_machine_is_too_small_for_has_no_share_there():
    answer = goodput(num_devices=5_000_000, replica_devices=2_000_000, simulated_failures=100)
    assert {row[0]: row[2] for row in answer.tables()[2].rows}["elastic"] == "–"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"device_mtbf_s": 1.0}, "failures are .* write a longer device_mtbf_s, a smaller num_devices"),
        ({"num_devices": 0}, "num_devices is 0; write 1 to"),
        ({"num_groups": (0,)}, "num_groups is 0; write 1 to"),
        ({"simulated_failures": 10}, "simulated_failures is 10; write 100 to"),
        ({"num_devices": 100}, "replica_devices is 128 of the 100 of num_devices; write at most 100 for"),
        ({"replica_devices": 0}, "replica_devices is 0; write 1 to"),
    ],
)
def test_impossible_inputs_are_refused(inputs: dict[str, float], said: str):
    with pytest.raises(ConfigError, match=said):
        goodput(**inputs)  # type: ignore[arg-type]
