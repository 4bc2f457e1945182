"""Beliefs about what a step is worth: before anything is seen, and after trials."""

import math

import pytest

from plesio.policies.adaptive.numbers import Numbers
from plesio.policies.adaptive.readings.reading import GradientFigures, Reading
from plesio.policies.adaptive.system.setting import (
    COARSE_STEPS,
    IN_LOW_RANK,
    ON_THE_STORE,
    SYNCHRONOUS,
    Sent,
    Setting,
)
from plesio.policies.adaptive.worth import Worth, kind_of

LOCAL, LOOSER = Setting.of(period=4, delay=0), Setting.of(period=8, delay=0)
BY_RACKS = Setting.of(period=4, delay=0, by_racks=True)
ROUNDED = Setting.of(period=1, delay=0, sent=Sent.ROUNDED)
CLOCK = 816


def figures(*, noise: float, within: float | None = None) -> GradientFigures:
    """Gradients whose signal is 1, and whose variance between workers is ``noise``."""
    variance = noise if within is None else within
    return GradientFigures(norm_sq=1 + noise, mean_norm_sq=1.0, within=variance, between=noise, noise_scale=noise)


def worth_of(
    *,
    num_workers: int = 4,
    num_racks: int = 1,
    momentum: float = 0.0,
    normalises: bool = False,
    accumulates: bool = False,
    shares_moments: bool = False,
    progress: float | None = 0.5,
    gradient: GradientFigures | None = None,
) -> Worth:
    worth = Worth(Numbers())
    for clock in (CLOCK - 16, CLOCK):
        reading = Reading(
            clock=clock,
            num_steps=16,
            learning_rate=0.1,
            num_workers=num_workers,
            num_racks=num_racks,
            normalises=normalises,
            accumulates=accumulates,
            shares_moments=shares_moments,
            progress=progress,
            gradient=gradient,
        )
        worth.observe(reading, momentum=momentum)
    return worth


def test_each_setting_is_looser_than_bsp_by_one_kind():
    settings = [SYNCHRONOUS, ROUNDED, COARSE_STEPS, IN_LOW_RANK, LOCAL, BY_RACKS, *ON_THE_STORE[:1]]
    assert [kind_of(it) for it in settings] == [None, "rounded", "coarse", "low rank", "local", "racks", "store"]


def test_more_slack_is_worth_less():
    worth = worth_of()
    by_slack = [worth.of(Setting.of(period=period, delay=0), drift=period - 1) for period in (2, 4, 8, 16)]
    assert [mean for mean, _ in by_slack] == sorted((mean for mean, _ in by_slack), reverse=True)
    assert [deviation for _, deviation in by_slack] == sorted(deviation for _, deviation in by_slack)
    assert worth.of(SYNCHRONOUS, drift=0) == (0.0, 0.0)


def test_the_price_of_slack_is_a_sum_over_its_doublings():
    assert worth_of().of(LOOSER, drift=7)[0] == pytest.approx(-Numbers().price * (1 + 2 + 3))


def test_what_failed_is_believed_to_lose_as_much_and_what_is_looser_more():
    worth = worth_of()
    worth.fail(LOCAL, drift=3, lost=0.5)
    assert worth.of(LOCAL, drift=3)[0] == pytest.approx(-0.5)
    assert worth.of(LOOSER, drift=7)[0] < -0.5
    assert worth.of(ON_THE_STORE[0], drift=1)[0] == pytest.approx(-0.5), "the store is not safer than local steps"
    other = worth_of()
    other.fail(ON_THE_STORE[0], drift=1, lost=0.5)
    assert other.of(LOCAL, drift=3) == worth_of().of(LOCAL, drift=3), "what the store does not bear, local steps may"


def test_what_racks_do_not_bear_single_workers_do_not_either():
    worth = worth_of()
    worth.fail(BY_RACKS, drift=3, lost=0.5)
    assert worth.of(LOCAL, drift=3)[0] == pytest.approx(-0.5)
    alone = worth_of()
    alone.fail(LOCAL, drift=3, lost=0.5)
    assert alone.of(BY_RACKS, drift=3) == worth_of().of(BY_RACKS, drift=3)


def test_a_setting_that_diverged_is_worth_nothing_from_then_on():
    worth = worth_of()
    worth.fail(LOCAL, drift=3, lost=math.inf)
    assert worth.of(LOCAL, drift=3)[0] == worth.of(Setting.of(period=2, delay=0), drift=1)[0] == -math.inf


def test_a_trial_that_passes_leaves_less_doubt():
    worth = worth_of()
    before = worth.of(LOCAL, drift=3)
    worth.passed(LOCAL, drift=3, found=(math.log(0.7), 0.05))
    mean, deviation = worth.of(LOCAL, drift=3)
    assert deviation < before[1]
    assert math.log(0.7) < mean < before[0]
    worth.passed(LOCAL, drift=3, found=None)
    assert worth.of(LOCAL, drift=3) == (mean, pytest.approx(0.7 * deviation))


def test_where_data_differ_slack_costs_more():
    alike, unlike = (worth_of(gradient=figures(noise=3.0, within=within)) for within in (3.0, 1.0))
    assert unlike.of(LOOSER, drift=7)[0] < alike.of(LOOSER, drift=7)[0] - 0.3
    assert unlike.of(ON_THE_STORE[0], drift=1) == alike.of(ON_THE_STORE[0], drift=1)


@pytest.mark.parametrize("setting", [ON_THE_STORE[0], LOCAL, BY_RACKS])
def test_momentum_of_its_own_makes_slack_dearer_the_more_workers_there_are(setting: Setting):
    few, many = (worth_of(num_workers=count, momentum=0.9).of(setting, drift=3)[0] for count in (2, 16))
    assert many < few < worth_of().of(setting, drift=3)[0]


def test_an_optimizer_that_normalises_makes_little_of_noisy_steps_of_its_own():
    """sqrt((1 + nu/N) / (1 + nu)), and of racks as if they were workers of as many batches."""
    noisy = worth_of(normalises=True, num_racks=2, gradient=figures(noise=16.0))
    own = 0.5 * math.log((1 + 16 / 4) / (1 + 16))
    price = Numbers().price * (2 * 3 / 2)
    assert noisy.of(LOCAL, drift=3)[0] == pytest.approx(own - price)
    assert noisy.of(BY_RACKS, drift=3)[0] == pytest.approx(0.5 * math.log((1 + 4) / (1 + 8)) - price)
    quiet = worth_of(normalises=True, gradient=figures(noise=0.01))
    assert quiet.of(LOCAL, drift=3)[0] == pytest.approx(-price, abs=0.01)


def test_where_local_steps_keep_the_moments_of_the_mean_gradient_drift_costs_less_the_longer_the_run():
    keeps = Setting.of(period=8, delay=0, moments="mean")
    for noise in (0.01, 3.0):
        worth = worth_of(normalises=True, shares_moments=True, gradient=figures(noise=noise))
        mean, deviation = worth.of(keeps, drift=7)
        assert mean == pytest.approx(-2 * 7 / CLOCK)
        assert deviation == pytest.approx(7 / CLOCK)
    outer = Setting.of(period=8, delay=0, moments="mean", has_outer=True)
    assert worth.of(outer, drift=7)[0] == pytest.approx(-7 / CLOCK)
    worth.fail(keeps, drift=7, lost=0.5)
    assert worth.of(keeps, drift=7)[0] == pytest.approx(-0.5)


def test_before_its_noise_is_known_an_optimizer_that_normalises_makes_no_steps_of_its_own():
    unknown = worth_of(normalises=True)
    assert unknown.of(LOCAL, drift=3)[0] == unknown.of(ON_THE_STORE[0], drift=1)[0] == -math.inf
    assert unknown.of(ROUNDED, drift=0)[0] > -0.1


def test_the_moves_of_an_optimizer_that_normalises_bear_4_bits_where_they_keep_the_mean_s_moments():
    worth = worth_of(normalises=True, shares_moments=True, gradient=figures(noise=1.0))
    for moments, bear in (("mean", True), ("own", False)):
        rounded, coarse = (
            worth.of(Setting.of(period=4, delay=0, sent=sent, moments=moments), drift=3)[0]  # type: ignore[arg-type]
            for sent in (Sent.ROUNDED, Sent.COARSE)
        )
        assert (coarse == rounded) == bear
    assert worth.of(COARSE_STEPS, drift=1)[0] < worth.of(ROUNDED, drift=0)[0]


def test_low_rank_is_worth_nothing_where_the_optimizer_normalises():
    assert worth_of(normalises=True, gradient=figures(noise=1.0)).of(IN_LOW_RANK, drift=1)[0] == -math.inf
    assert worth_of().of(IN_LOW_RANK, drift=1)[0] > -0.2


def test_what_never_forgets_noise_has_slack_only_with_the_moments_of_the_mean():
    beliefs = {"normalises": True, "accumulates": True, "gradient": figures(noise=0.5)}
    own, mean = worth_of(**beliefs), worth_of(shares_moments=True, **beliefs)
    assert own.of(LOCAL, drift=3)[0] == mean.of(ON_THE_STORE[0], drift=1)[0] == -math.inf
    assert mean.of(LOCAL, drift=3)[0] > -1
    assert own.of(ROUNDED, drift=0)[0] > -0.1
