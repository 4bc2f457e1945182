"""Settings by racks: what they are predicted to take, when they are chosen, and what training must afford for them."""

import math
from collections.abc import Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from plesio.policies import Adaptive, Hierarchical, Reviewed, decode_event, encode_event, parse_policy
from plesio.policies.adaptive.config.noise import NoiseConfig
from plesio.policies.adaptive.config.system import SystemConfig, TopologyConfig
from plesio.policies.adaptive.controller import Controller
from plesio.policies.adaptive.readings.reading import GradientFigures, Reading
from plesio.policies.adaptive.system.choice import Allowance, SystemChoice
from plesio.policies.adaptive.system.monitor import LOCAL, SystemMonitor
from plesio.policies.adaptive.system.setting import (
    RACKS_ON_THE_STORE,
    ROUNDED_SHARE,
    SYNCHRONOUS,
    Sent,
    Setting,
    settings_by_racks,
)
from plesio.policies.adaptive.system.topology import RackTransfers, WorkerRacks
from plesio.policies.adaptive.training.noise import NoiseMonitor

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


def monitor(*, topology: TopologyConfig | None = None) -> SystemMonitor:
    return SystemMonitor(SystemConfig(), topology=TopologyConfig() if topology is None else topology)


def choose(
    system: SystemMonitor, current: Setting, *, slack: float = math.inf, drift: float = math.inf
) -> SystemChoice:
    return system.choose(allowance=Allowance(slack=slack, staleness=slack, drift=drift), current=current, shares=())


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


def test_within_the_rack_the_transfer_is_that_of_steps_without_a_merge():
    """Period 4, delay 1: steps 5 and 9 merge, and wait for that too."""
    setting, blocked = by_racks(4, 1), (0.5, 0.002, 0.002, 0.002, 0.5, 0.002, 0.002, 0.002)
    seen = {
        worker: replace(review, blocked_s=tuple(s + worker * 1e-4 for s in blocked), clock=12)
        for worker, review in reviews((0, 0, 1, 1), blocked_s=0.0).items()
    }
    system = monitor()
    system.observe(seen, setting=setting)
    inputs = dict(choose(system, setting).inputs)
    assert inputs["topology.inside_s"] == pytest.approx(0.0022)  # the slower rack's, whose quickest is worker 2


@pytest.mark.parametrize(("delay", "between_s"), [(4, 0.03), (0, 0.03 - 0.002 / 2)])
def test_between_racks_it_is_what_it_took_whoever_began_it_last(delay: int, between_s: float):
    """Without a delay the time until the mean has been spread within the rack is in it; only leaders know of it."""
    setting = by_racks(8, delay)
    seen = reviews((0, 0, 1, 1, 1), blocked_s=0.002, clock=16)
    took_s = {0: 0.03, 1: 0.0, 2: 0.05, 3: 0.0, 4: 0.0}
    seen = {w: replace(it, exchanges=((16.0, took_s[w]),)) for w, it in seen.items()}
    system = monitor()
    system.observe(seen, setting=setting)
    assert dict(choose(system, setting).inputs)["topology.between_s"] == pytest.approx(between_s)


def test_exchanges_of_the_setting_before_are_not_taken_for_those_of_this_one():
    system, slow = monitor(), ((8.0, 9.0),)
    system.observe(reviews(TWO_OF_EIGHT, blocked_s=0.08), setting=SYNCHRONOUS)
    system.observe(reviews(TWO_OF_EIGHT, blocked_s=0.0, clock=16, exchanges=slow), setting=by_racks(8, 4))
    assert "topology.between_s" not in dict(choose(system, by_racks(8, 4)).inputs)
    system.observe(reviews(TWO_OF_EIGHT, blocked_s=0.0, clock=24, exchanges=((16.0, 0.03),)), setting=by_racks(8, 4))
    assert dict(choose(system, by_racks(8, 4)).inputs)["topology.between_s"] == pytest.approx(0.03)
    system.observe(reviews(TWO_OF_EIGHT, blocked_s=0.0, clock=32, exchanges=((24.0, 9.0),)), setting=LOCAL)
    assert system.transfer_s(LOCAL) == pytest.approx(0.08)


def settle_down(system: SystemMonitor, *, flat_s: float, inside_s: float, between_s: float) -> list[Setting]:
    """Answer reviews of 16 workers in two racks, whose exchanges take so long, until nothing changes."""
    current, found = SYNCHRONOUS, []
    for number in range(1, 9):
        if current.by_racks:
            took = ((16.0 * number, between_s + (inside_s / 2 if current.delay == 0 else 0.0)),)
            seen = reviews(TWO_OF_EIGHT, blocked_s=inside_s, clock=16 * number + 1, exchanges=took)
        else:
            took = ((16.0 * number, flat_s),)
            seen = reviews(TWO_OF_EIGHT, blocked_s=flat_s, clock=16 * number + 1, exchanges=took)
        system.observe(seen, setting=current)
        current = choose(system, current, slack=7, drift=7).setting
        found.append(current)
    assert found[-1] == found[-3], "it settles"
    return found


def test_with_a_slow_way_between_racks_it_steps_by_racks():
    last = settle_down(monitor(), flat_s=0.08, inside_s=0.0005, between_s=0.04)[-1]
    assert last.by_racks
    assert isinstance(last.policy, Hierarchical)


def test_with_equal_links_it_tries_once_and_goes_back():
    found = settle_down(monitor(), flat_s=0.08, inside_s=0.075, between_s=0.08)
    assert [setting.by_racks for setting in found] == [True] + [False] * 7


def test_the_reason_says_what_the_other_way_would_take():
    system = monitor()
    system.observe(reviews(TWO_OF_EIGHT, blocked_s=0.08), setting=SYNCHRONOUS)
    assert choose(system, SYNCHRONOUS).reason == (
        "a step takes 20 ms (priced at 23.5 ms) and would take 100 ms under bsp, and at best 20 ms (priced at 23.5 ms) "
        "by single workers"
    )
    assert choose(system, SYNCHRONOUS, slack=7, drift=0).reason.endswith("under bsp")


SLOW_UPLINK = {"flat_s": 0.4, "inside_s": 0.0005, "between_s": 0.2}
"""An exchange between racks lasts ten steps, which little slack does not hide; a quarter of it is hidden."""


def by_racks_alone(*, compress: bool = True, gain: float = 0.05) -> SystemMonitor:
    """One that knows a slow uplink, and has tried steps by racks."""
    system = SystemMonitor(SystemConfig(compress=compress, gain=gain), topology=TopologyConfig())
    system.observe(reviews(TWO_OF_EIGHT, blocked_s=SLOW_UPLINK["flat_s"]), setting=SYNCHRONOUS)
    took = ((20.0, SLOW_UPLINK["between_s"]),)
    seen = reviews(TWO_OF_EIGHT, blocked_s=SLOW_UPLINK["inside_s"], clock=24, exchanges=took)
    system.observe(seen, setting=by_racks(4, 2))
    return system


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


def test_what_was_rounded_is_not_taken_for_what_is_sent_in_full():
    system = by_racks_alone()
    seen = reviews(TWO_OF_EIGHT, blocked_s=0.0005, clock=40, exchanges=((16.0, 9.0), (40.0, 0.06)))
    system.observe(seen, setting=rounded_by_racks(8))
    inputs = dict(choose(system, rounded_by_racks(8), slack=0, drift=1).inputs)
    assert inputs["topology.between_s"] == pytest.approx(0.2)
    assert inputs["topology.rounded_between_s"] == pytest.approx(0.06 - 0.0005 / 2)


def test_between_racks_it_rounds_where_the_slack_that_there_may_be_does_not_hide_the_way():
    choice = choose(by_racks_alone(), by_racks(4, 2), slack=0, drift=1)
    assert choice.setting == rounded_by_racks(8)
    assert choice.reason == (
        "a step takes 26.8 ms (priced at 31.6 ms) and would take 420 ms under bsp, and at best 45.5 ms (priced at "
        "53.6 ms) without rounding between racks"
    )
    inputs = dict(choice.inputs)
    assert inputs["topology.rounded_step_s"] < inputs["system.step_s"] < inputs["topology.step_s"] * 2


def test_it_does_not_where_slack_hides_it_or_too_little_is_gained_or_it_is_off():
    assert not choose(by_racks_alone(), by_racks(4, 2)).setting.sent
    assert not choose(by_racks_alone(gain=0.5), by_racks(4, 2), slack=0, drift=1).setting.sent
    off = choose(by_racks_alone(compress=False), by_racks(4, 2), slack=0, drift=1)
    assert not off.setting.sent
    assert "topology.rounded_step_s" not in dict(off.inputs)


def test_rounding_that_does_not_pay_is_left():
    system = by_racks_alone()
    seen = reviews(TWO_OF_EIGHT, blocked_s=0.0005, clock=40, exchanges=((40.0, 0.3),))
    system.observe(seen, setting=rounded_by_racks(8))
    assert choose(system, rounded_by_racks(8), slack=0, drift=1).setting == by_racks(8)


def test_an_alarm_leaves_racks_that_round():
    choice = by_racks_alone().choose(allowance=Allowance(), current=rounded_by_racks(8), shares=(), only=SYNCHRONOUS)
    assert choice.setting == SYNCHRONOUS


@pytest.mark.parametrize("flat_s", [0.0005, 0.02, 0.1, 0.4, 2.0])
@pytest.mark.parametrize("between_s", [0.0005, 0.02, 0.1, 0.4, 2.0])
@pytest.mark.parametrize("allowed", [0, 1, 3, 7, math.inf])
def test_it_rounds_between_racks_for_a_gain_alone(flat_s: float, between_s: float, allowed: float):
    """Over all that it could choose without, whatever links and training are like."""

    def decide(*, compress: bool) -> SystemChoice:
        system = SystemMonitor(SystemConfig(compress=compress), topology=TopologyConfig())
        system.observe(reviews(TWO_OF_EIGHT, blocked_s=flat_s), setting=SYNCHRONOUS)
        seen = reviews(TWO_OF_EIGHT, blocked_s=0.001, clock=24, exchanges=((20.0, between_s),))
        system.observe(seen, setting=by_racks(4, 2))
        return choose(system, by_racks(4, 2), slack=allowed, drift=allowed)

    choice, without = decide(compress=True), decide(compress=False)
    if choice.setting.by_racks and choice.setting.sent:
        step_s = [dict(one.inputs)["system.step_s"] for one in (choice, without)]
        assert step_s[0] <= step_s[1] * (1 - SystemConfig().gain)


def sharing(seen: dict[int, Reviewed]) -> dict[int, Reviewed]:
    """The same reviews of workers that the store's servers could step for."""
    return {worker: replace(review, can_push=True) for worker, review in seen.items()}


def knows_racks_and_store(*, store: bool = True) -> SystemMonitor:
    """One to whom workers have said that they can push; an exchange of all takes 0.4 s, and 0.01 s between racks."""
    system = SystemMonitor(SystemConfig(store=store, compress=False), topology=TopologyConfig())
    system.observe(sharing(reviews(TWO_OF_EIGHT, blocked_s=0.4)), setting=SYNCHRONOUS)
    seen = reviews(TWO_OF_EIGHT, blocked_s=0.0005, clock=24, exchanges=((20.0, 0.01),))
    system.observe(sharing(seen), setting=by_racks(4, 2))
    return system


def stale_alone(system: SystemMonitor, current: Setting) -> SystemChoice:
    """Its choice where training affords staleness on the store, and no slack of replicas."""
    return system.choose(allowance=Allowance(slack=0, drift=0, staleness=math.inf), current=current, shares=())


def test_racks_share_the_store_where_training_affords_no_slack_between_replicas():
    choice = stale_alone(knows_racks_and_store(), SYNCHRONOUS)
    assert choice.setting == RACKS_ON_THE_STORE[0]
    assert choice.reason.endswith("and at best 420 ms if racks did not share the store")
    inputs = dict(choice.inputs)
    step_s = STEP_S + 0.0005 + 0.01 + 0.0005 / 2  # computing, the rack's mean, to the store and back, to its workers
    assert inputs["system.step_s"] == inputs["topology.store_step_s"] == pytest.approx(step_s)
    assert choice.shares == ()


def test_racks_do_not_share_the_store_where_it_is_off_or_stale_updates_are_too_much():
    assert stale_alone(knows_racks_and_store(store=False), SYNCHRONOUS).setting == SYNCHRONOUS
    strict = knows_racks_and_store()
    assert choose(strict, SYNCHRONOUS, slack=0, drift=0).setting == SYNCHRONOUS
    hidden = choose(knows_racks_and_store(), by_racks(4, 2))
    assert not hidden.setting.on_store, "slack hides it better"


def test_what_racks_take_on_the_store_is_measured_and_they_leave_it_where_it_does_not_pay():
    system, current = knows_racks_and_store(), RACKS_ON_THE_STORE[0]
    for blocked_s, kept in ((0.02, True), (0.9, False)):
        system.observe(sharing(reviews(TWO_OF_EIGHT, blocked_s=blocked_s, clock=40)), setting=current)
        choice = stale_alone(system, current)
        assert dict(choice.inputs)["topology.store_s"] == pytest.approx(blocked_s - 0.0005)
        assert (choice.setting == current) == kept


def test_while_the_other_racks_rest_nothing_is_compared():
    system, current = knows_racks_and_store(), RACKS_ON_THE_STORE[1]
    seen = sharing(reviews(TWO_OF_EIGHT, blocked_s=0.9, clock=40))
    system.observe({worker: seen[worker] for worker in range(8)}, setting=current)
    choice = stale_alone(system, current)
    assert (choice.setting, choice.inputs) == (current, ())
    alarm = system.choose(allowance=Allowance(), current=current, shares=(), only=SYNCHRONOUS)
    assert alarm.setting == SYNCHRONOUS


def test_where_the_network_is_no_limit_it_is_bsp_and_nothing_is_tried():
    assert set(settle_down(monitor(), flat_s=0.0002, inside_s=0.0001, between_s=0.0002)) == {SYNCHRONOUS}


def test_before_an_exchange_of_all_is_measured_nothing_is_tried():
    system = monitor()
    system.observe(reviews(TWO_OF_EIGHT, blocked_s=0.0), setting=LOCAL)
    assert not choose(system, LOCAL, slack=3, drift=3).setting.by_racks


def test_of_settings_that_drift_alike_it_takes_a_fast_one():
    """The choice is among periods 2 to 8, whose drift is at most 1; the longest hides nothing of its exchange."""
    system = monitor()
    system.observe(reviews(TWO_OF_EIGHT, blocked_s=0.04), setting=SYNCHRONOUS)
    assert choose(system, SYNCHRONOUS, slack=0, drift=1).setting == by_racks(4, 2)


def test_left_out_it_is_as_if_there_were_no_racks():
    off, alone = SystemMonitor(SystemConfig()), monitor()
    off.observe(reviews(TWO_OF_EIGHT, blocked_s=0.08), setting=SYNCHRONOUS)
    alone.observe(reviews((0,) * 16, blocked_s=0.08), setting=SYNCHRONOUS)
    assert choose(off, SYNCHRONOUS) == choose(alone, SYNCHRONOUS)
    assert not choose(off, SYNCHRONOUS).setting.by_racks


@pytest.mark.parametrize(("drift", "most"), [(0.0, 0), (1.0, 8), (3.0, 24)])
def test_training_must_afford_the_drift(drift: float, most: int):
    system = monitor()
    system.observe(reviews(TWO_OF_EIGHT, blocked_s=2.0), setting=SYNCHRONOUS)
    setting = choose(system, SYNCHRONOUS, slack=0, drift=drift).setting
    assert setting.by_racks == (most > 0)
    assert setting.slack <= most
    assert choose(system, by_racks(32, 16), slack=0, drift=drift).setting.slack <= most


def test_a_setting_by_racks_is_kept_at_the_edge_of_what_it_may_take():
    """Else a little noise would move a run to and fro."""
    for excess, kept in ((0.17, True), (0.23, False)):
        system, current = monitor(), by_racks(8, 4)
        system.observe(reviews(TWO_OF_EIGHT, blocked_s=0.02), setting=SYNCHRONOUS)
        inside_s = STEP_S * excess
        seen = reviews(TWO_OF_EIGHT, blocked_s=inside_s, clock=25, exchanges=((24.0, 0.001),))
        system.observe(seen, setting=current)
        setting = choose(system, current).setting
        assert setting.by_racks == kept
        assert not choose(system, Setting.of(period=8, delay=4)).setting.by_racks


def test_an_optimizer_that_normalises_may_have_slack_between_racks_alone():
    figures = GradientFigures(norm_sq=2.0, mean_norm_sq=1.0, within=1.0, between=1.0, noise_scale=8.0)
    noise = NoiseMonitor(NoiseConfig(window=1, least_efficiency=0.8))

    def advise(num_racks: int) -> tuple[float, float, float]:
        reading = Reading(
            clock=16, num_steps=16, learning_rate=0.1, gradient=figures, normalises=True,
            num_workers=16, num_racks=num_racks,
        )  # fmt: skip
        advice = noise.observe(reading)
        return advice.slack, advice.drift, round(advice.rack_efficiency, 2)

    assert advise(2) == (0, math.inf, 0.97)  # sqrt((1 + 1/16) / (1 + 2/16))
    assert advise(8) == (0, math.inf, 0.84)  # sqrt((1 + 1/16) / (1 + 8/16))
    assert advise(1) == advise(16) == (0, 0, 0.73)


def test_a_controller_says_whose_slack_is_held_back():
    controller = Controller(Adaptive(gradient=None, noise=None, phase=None, progress=None, guard=None))
    controller.setting = Setting.of(period=4, delay=2)
    decision = controller.review(reviews(TWO_OF_EIGHT, blocked_s=0.0, exchanges=((4.0, 3.0),)), metric=None)
    assert controller.setting.by_racks
    assert "so feedback allows a slack of 24 steps between racks" in decision.reason


def test_without_racks_a_review_is_written_as_before_there_were_racks():
    plain, placed = (reviews(rack_of, blocked_s=0.0)[1] for rack_of in ((0, 0), (0, 3)))
    assert "rack" not in encode_event(plain)
    assert encode_event(placed)["rack"] == 3
    assert [decode_event(encode_event(event)) for event in (plain, placed)] == [plain, placed]


@pytest.mark.parametrize("text", ["adaptive,topology=off", "adaptive,topology.tolerance=0.2,topology.largest_period=8"])
def test_the_text_form_reads_back(text: str):
    policy = parse_policy(text)
    assert policy.spec == text
    assert parse_policy(policy.spec) == policy


def test_where_workers_are_lost_and_no_racks_are_left_it_steps_by_single_workers():
    system, current = SystemMonitor(SystemConfig(compress=False), topology=TopologyConfig()), by_racks(4, 2)
    system.observe(reviews((0, 0, 1), blocked_s=0.4), setting=SYNCHRONOUS)
    system.observe(reviews((0, 0, 1), blocked_s=0.0005, clock=24, exchanges=((20.0, 0.4),)), setting=current)
    assert choose(system, current, slack=0, drift=3).setting.by_racks
    for left in ((0, 0), (0, 1)):
        system.observe(reviews(left, blocked_s=0.0005, clock=40, exchanges=((36.0, 0.4),)), setting=current)
        assert not choose(system, current).setting.by_racks
