"""Settings by racks: how far replicas drift, what is measured of exchanges, and what steps are predicted to take."""

from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from plesio.policies import Reviewed, decode_event, encode_event
from plesio.policies.adaptive.numbers import Options
from plesio.policies.adaptive.system.setting import (
    RACKS_ON_THE_STORE,
    ROUNDED_SHARE,
    SYNCHRONOUS,
    Sent,
    Setting,
    settings_by_racks,
)
from plesio.policies.adaptive.system.times import LOCAL, SettingTimes
from plesio.policies.adaptive.system.topology import RackTransfers, WorkerRacks

TWO_OF_EIGHT = (0,) * 8 + (8,) * 8
STEP_S = 0.02


def by_racks(period: int, delay: int = 0) -> Setting:
    return Setting.of(period=period, delay=delay, by_racks=True)


def rounded_by_racks(period: int) -> Setting:
    return Setting.of(period=period, delay=0, by_racks=True, sent=Sent.ROUNDED)


def reviews(
    rack_of: Sequence[int],
    *,
    blocked_s: float,
    clock: int = 8,
    num_steps: int = 8,
    exchanges: tuple[tuple[float, float], ...] = (),
) -> dict[int, Reviewed]:
    """Make the reviews of workers whose steps all take as long."""
    return {
        worker: Reviewed(
            worker=worker,
            clock=clock,
            samples=(8,) * num_steps,
            compute_s=(STEP_S,) * num_steps,
            blocked_s=(blocked_s,) * num_steps,
            exchanges=exchanges,
            rack=rack,
        )
        for worker, rack in enumerate(rack_of)
    }


@pytest.mark.parametrize("rack_of", [(0, 0, 0, 0), (0, 1, 2, 3), (0,)], ids=str)
def test_one_rack_and_racks_of_one_worker_are_none(rack_of: Sequence[int]):
    assert WorkerRacks.of(reviews(rack_of, blocked_s=0.0)) is None


def test_racks_are_those_that_the_workers_name():
    racks = WorkerRacks.of(reviews((5, 2, 5, 2, 2), blocked_s=0.0))
    assert racks is not None
    assert racks.members == ((0, 2), (1, 3, 4))


def test_drift_is_slack_by_the_replicas_there_are():
    racks = WorkerRacks.of(reviews(TWO_OF_EIGHT, blocked_s=0.0))
    assert racks is not None
    assert racks.drift(by_racks(16, 8)) == 23 / 8
    assert racks.drift(Setting.of(period=16, delay=8)) == 23
    assert racks.drift(by_racks(2)) == 1
    assert racks.slack(racks.drift(by_racks(16, 8))) == 23


@given(
    st.sampled_from(settings_by_racks(16)),
    st.integers(1, 4),
    st.floats(1e-3, 1.0),
    st.floats(0.0, 0.5),
    st.floats(0.0, 5.0),
)
def test_equal_workers_take_what_the_closed_form_says(
    setting: Setting, workers: int, step_s: float, inside_s: float, between_s: float
):
    """A round is bound by its steps, or by its exchange and the steps that nothing hides; then the mean is spread."""
    transfers = RackTransfers()
    transfers.inside_s, transfers.between_s = inside_s, between_s
    racks = WorkerRacks((tuple(range(workers)), tuple(range(workers, 2 * workers))))
    [found_s] = transfers.predict_steps_s(
        np.full((2 * workers, 1), step_s), racks=racks, settings=[setting], flat_s=99.0
    ).values()
    h, d, own_s = setting.period, setting.delay, step_s + inside_s
    assert found_s == pytest.approx((max(h * own_s, between_s + (h - d) * own_s) + inside_s / 2) / h)


def test_a_rack_takes_its_slowest_worker_at_every_step():
    compute_s = np.array([[0.01, 0.03], [0.03, 0.01], [0.02, 0.02], [0.02, 0.02]])
    steps_s = WorkerRacks(((0, 1), (2, 3))).steps_s(compute_s, inside_s=0.001)
    np.testing.assert_allclose(steps_s, [[0.031, 0.031], [0.021, 0.021]])


def test_what_is_rounded_between_racks_is_predicted_to_take_as_much_less_as_it_has_fewer_bytes():
    transfers, racks = RackTransfers(), WorkerRacks(((0, 1), (2, 3)))
    full, rounded = by_racks(8), rounded_by_racks(8)

    def predict_s(setting: Setting) -> float:
        [found_s] = transfers.predict_steps_s(
            np.full((4, 1), STEP_S), racks=racks, settings=[setting], flat_s=0.8
        ).values()
        return found_s

    assert (predict_s(full), predict_s(rounded)) == pytest.approx((STEP_S + 0.1, STEP_S + 0.1 * ROUNDED_SHARE))
    transfers.between_s = 0.4
    assert (predict_s(full), predict_s(rounded)) == pytest.approx((STEP_S + 0.05, STEP_S + 0.05 * ROUNDED_SHARE))
    transfers.rounded_between_s = 0.16
    assert (predict_s(full), predict_s(rounded)) == pytest.approx((STEP_S + 0.05, STEP_S + 0.02))
    transfers.between_s = None
    assert predict_s(full) == pytest.approx(STEP_S + 0.02 / ROUNDED_SHARE)


def test_within_the_rack_the_transfer_is_that_of_steps_without_a_merge():
    """Period 4, delay 1: steps 5 and 9 merge, and wait for that too."""
    setting, blocked = by_racks(4, 1), (0.5, 0.002, 0.002, 0.002, 0.5, 0.002, 0.002, 0.002)
    found = reviews((0, 0, 1, 1), blocked_s=0.0)
    seen = {w: replace(it, blocked_s=tuple(s + w * 1e-4 for s in blocked), clock=12) for w, it in found.items()}
    racks, transfers = WorkerRacks.of(seen), RackTransfers()
    assert racks is not None
    transfers.observe(seen, racks=racks, setting=setting)
    assert transfers.inside_s == pytest.approx(0.0022)  # the slower rack's, whose quickest is worker 2


@pytest.mark.parametrize(("delay", "between_s"), [(4, 0.03), (0, 0.03 - 0.002 / 2)])
def test_between_racks_it_is_what_it_took_whoever_began_it_last(delay: int, between_s: float):
    """Without a delay the time until the mean has been spread within the rack is in it; only leaders know of it."""
    seen = reviews((0, 0, 1, 1, 1), blocked_s=0.002, clock=16)
    took_s = {0: 0.03, 1: 0.0, 2: 0.05, 3: 0.0, 4: 0.0}
    seen = {w: replace(it, exchanges=((16.0, took_s[w]),)) for w, it in seen.items()}
    racks, transfers = WorkerRacks.of(seen), RackTransfers()
    assert racks is not None
    transfers.observe(seen, racks=racks, setting=by_racks(8, delay))
    assert transfers.between_s == pytest.approx(between_s)


def step_s(times: SettingTimes, setting: Setting) -> float:
    return times.predict(setting, ())[0][setting]


def test_exchanges_of_the_setting_before_are_not_taken_for_those_of_this_one():
    times, current = SettingTimes(Options()), by_racks(8, 4)
    times.observe(reviews(TWO_OF_EIGHT, blocked_s=0.08), setting=SYNCHRONOUS)
    times.observe(reviews(TWO_OF_EIGHT, blocked_s=0.0, clock=16, exchanges=((8.0, 9.0),)), setting=current)
    assert step_s(times, current) == pytest.approx(STEP_S), "an exchange of all is hidden behind four steps"
    times.observe(reviews(TWO_OF_EIGHT, blocked_s=0.0, clock=24, exchanges=((16.0, 0.16),)), setting=current)
    assert step_s(times, current) == pytest.approx(STEP_S + 0.08 / 8), "and this one to a half"
    times.observe(reviews(TWO_OF_EIGHT, blocked_s=0.0, clock=32, exchanges=((24.0, 9.0),)), setting=LOCAL)
    assert times.transfer_s(LOCAL) == pytest.approx(0.08)


def test_before_an_exchange_of_all_is_measured_there_are_no_settings_by_racks_and_none_where_they_are_off():
    times, off = SettingTimes(Options()), SettingTimes(Options(racks=False))
    times.observe(reviews(TWO_OF_EIGHT, blocked_s=0.0), setting=LOCAL)
    off.observe(reviews(TWO_OF_EIGHT, blocked_s=0.08), setting=SYNCHRONOUS)
    assert not any(setting.by_racks for one in (times, off) for setting in one.predict(LOCAL, ())[0])
    assert off.drift(by_racks(8)) == 7
    times.observe(reviews(TWO_OF_EIGHT, blocked_s=0.08, clock=16), setting=SYNCHRONOUS)
    assert any(setting.by_racks for setting in times.predict(LOCAL, ())[0])


def knows_racks_and_store(*, store: bool = True) -> SettingTimes:
    """One to whom workers have said that they can push; an exchange of all takes 0.4 s, and 0.01 s between racks."""
    times = SettingTimes(Options(store=store))
    times.observe(reviews(TWO_OF_EIGHT, blocked_s=0.4), setting=SYNCHRONOUS)
    times.observe(reviews(TWO_OF_EIGHT, blocked_s=0.0005, clock=24, exchanges=((20.0, 0.01),)), setting=by_racks(4, 2))
    return times


def test_racks_on_the_store_take_their_steps_and_the_way_there_and_back():
    """Computing, the rack's mean, to the store and back, to its workers."""
    taken_s = step_s(knows_racks_and_store(), RACKS_ON_THE_STORE[0])
    assert taken_s == pytest.approx(STEP_S + 0.0005 + 0.01 + 0.0005 / 2)
    assert RACKS_ON_THE_STORE[0] not in knows_racks_and_store(store=False).predict(SYNCHRONOUS, ())[0]
    measured = knows_racks_and_store()
    measured.observe(reviews(TWO_OF_EIGHT, blocked_s=0.9, clock=40), setting=RACKS_ON_THE_STORE[0])
    assert step_s(measured, RACKS_ON_THE_STORE[0]) == pytest.approx(STEP_S + 0.9)


def test_while_the_other_racks_rest_nothing_is_compared():
    times, current = knows_racks_and_store(), RACKS_ON_THE_STORE[1]
    seen = reviews(TWO_OF_EIGHT, blocked_s=0.9, clock=40)
    times.observe({worker: seen[worker] for worker in range(8)}, setting=current)
    assert list(times.predict(current, ())[0]) == [current]


def test_where_workers_are_lost_and_no_racks_are_left_there_are_no_settings_by_racks():
    times, current = SettingTimes(Options()), by_racks(4, 2)
    times.observe(reviews((0, 0, 1), blocked_s=0.4), setting=SYNCHRONOUS)
    times.observe(reviews((0, 0, 1), blocked_s=0.0005, clock=24, exchanges=((20.0, 0.4),)), setting=current)
    assert current in times.predict(current, ())[0]
    for left in ((0, 0), (0, 1)):
        times.observe(reviews(left, blocked_s=0.0005, clock=40, exchanges=((36.0, 0.4),)), setting=current)
        assert not any(setting.by_racks for setting in times.predict(current, ())[0])


def test_without_racks_a_review_is_written_as_before_there_were_racks():
    plain, placed = (reviews(rack_of, blocked_s=0.0)[1] for rack_of in ((0, 0), (0, 3)))
    assert "rack" not in encode_event(plain)
    assert encode_event(placed)["rack"] == 3
    assert [decode_event(encode_event(event)) for event in (plain, placed)] == [plain, placed]
