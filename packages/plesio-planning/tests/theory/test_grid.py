"""The bound on grids: what it is where less is going on, and its sums by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.cli.commands import invoke
from plesio.core.errors import ConfigError
from plesio.core.mixing import GRAPHS, Mixing
from plesio_planning.theory.convergence import asynchronous_nonconvex
from plesio_planning.theory.dynamics import delayed_descent, stability_limit_of_delays
from plesio_planning.theory.grid import consensus_rate, grid
from plesio_planning.theory.stability import stability_limit

graphs = st.sampled_from(GRAPHS)


def test_values_by_hand():
    bound = grid(
        num_stages=3,
        num_groups=2,
        smoothness=2,
        gap=5,
        gradient_variance=4,
        batch_size=8,
        learning_rate=0.01,
        num_ticks=1000,
        mixing="all",
    )
    assert bound.also["variance of the gradient, Kσ²/B_S"] == 1.5
    assert bound.also["longest delay (updates)"] == 4
    assert bound.parts == pytest.approx(
        {"start": 1.0, "noise": 0.03, "staleness": 2 * 0.0004 * 2 * 1.5, "disagreement": 0.0}, abs=1e-12
    )


@given(rate=st.floats(1e-4, 0.9), variance=st.floats(0, 10))
def test_one_stage_and_one_group_are_sgd(rate: float, variance: float):
    alone = grid(num_stages=1, num_groups=1, learning_rate=rate, gradient_variance=variance, batch_size=1)
    sgd = asynchronous_nonconvex(max_staleness=0, learning_rate=rate, gradient_variance=variance)
    assert alone.value == pytest.approx(sgd.value)
    assert alone.also["largest learning rate"] == 1


@given(stages=st.integers(1, 8), delay=st.integers(0, 4))
def test_one_groups_premise_is_lians_for_the_longest_delay_and_it_pays_for_the_mean(stages: int, delay: int):
    bound = grid(num_stages=stages, num_groups=1, delay=delay, learning_rate=1e-3, batch_size=stages)
    lian = asynchronous_nonconvex(max_staleness=delay * (stages - 1), learning_rate=1e-3)
    assert bound.conditions[0].value == pytest.approx(lian.conditions[0].value)
    assert bound.also["largest learning rate"] == pytest.approx(lian.also["largest learning rate"])
    assert bound.parts["staleness"] == pytest.approx(lian.parts["staleness"] / 2)


@given(graph=graphs, groups=st.integers(2, 24), every=st.integers(1, 9), rate=st.floats(1e-6, 1e-3))
def test_more_frequent_mixing_never_makes_it_worse(graph: str, groups: int, every: int, rate: float):
    often, seldom = (
        grid(num_groups=groups, mixing=graph, every=each, learning_rate=rate)  # type: ignore[arg-type]
        for each in (every, every + 1)
    )
    assert often.value <= seldom.value
    assert often.also["largest learning rate"] >= seldom.also["largest learning rate"]


@pytest.mark.parametrize("setting", [{"num_stages": 4}, {"num_groups": 16, "num_stages": 1}, {"every": 8}])
def test_the_largest_learning_rate_is_where_the_premises_end(setting: dict[str, int]):
    largest = grid(**setting, learning_rate=1e-6).also["largest learning rate"]  # type: ignore[arg-type]
    grid(**setting, learning_rate=largest * 0.9999)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"write a learning_rate (of at most|below) {largest:.4g}"):
        grid(**setting, learning_rate=largest * 1.0001)  # type: ignore[arg-type]


@pytest.mark.parametrize(("graph", "groups", "every"), [("ring", 5, 1), ("ring", 4, 3), ("exponential", 6, 2)])
def test_the_groups_distance_is_its_sum_over_updates(graph: str, groups: int, every: int):
    """With nothing but noise, ``mean E C_t`` is ``α²VN``, by the covariance of the groups."""
    matrix = np.array(Mixing.on(graph, groups).matrix)
    away = np.eye(groups) - 1 / groups
    covariance, distances = np.zeros((groups, groups)), []
    for update in range(1, 600 * every + 1):
        if update > 300 * every:
            distances.append(np.trace(away @ covariance @ away) / groups)
        covariance = covariance + np.eye(groups) * groups  # α²V = 1 of the mean is S of each group
        if update % every == 0:
            covariance = matrix @ covariance @ matrix.T
    almost_flat = 1e-9  # so that αLR counts for nothing
    bound = grid(
        num_groups=groups,
        num_stages=1,
        smoothness=almost_flat,
        learning_rate=1.0,
        batch_size=1,
        mixing=graph,  # type: ignore[arg-type]
        every=every,
    )
    assert bound.also["mean squared distance of a group from the mean"] == pytest.approx(np.mean(distances), rel=1e-6)


@given(graph=graphs, groups=st.integers(2, 16))
def test_mixing_at_once_shrinks_by_rho(graph: str, groups: int):
    mixing = Mixing.on(graph, groups)
    assert consensus_rate(mixing) == pytest.approx(mixing.rho, abs=1e-12)


@given(graph=graphs, groups=st.integers(2, 12), late=st.integers(0, 6), share=st.floats(0.05, 0.9))
def test_late_mixing_shrinks_just_if_it_is_late_as_may_be(graph: str, groups: int, late: int, share: float):
    lazy = share * np.array(Mixing.on(graph, groups).matrix) + (1 - share) * np.eye(groups)
    mixing = Mixing.given(lazy.tolist())
    rate = consensus_rate(mixing, late=late)
    if abs(rate - 1) > 1e-6:
        assert (rate < 1) == (late <= mixing.most_mixings_late())


@given(delay=st.integers(0, 8), curvature=st.floats(0.1, 10))
def test_one_delay_for_all_parameters_has_the_limit_of_constant_staleness(delay: int, curvature: float):
    limit = stability_limit_of_delays(curvature * np.eye(3), [delay] * 3)
    assert limit * curvature == pytest.approx(stability_limit(staleness=delay), rel=1e-6)


def test_parameters_that_do_not_touch_have_the_limit_of_the_worst_of_them():
    limit = stability_limit_of_delays(np.diag([1.0, 0.5]), [3, 8])
    assert limit == pytest.approx(stability_limit(staleness=8) / 0.5)
    assert limit < stability_limit(staleness=3)
    swings = [delayed_descent(step=share * limit * 0.5, staleness=8, num_steps=3000) for share in (0.98, 1.02)]
    assert [np.abs(each[-40:]).max() > 1 for each in swings] == [False, True]


def test_the_command_answers_whether_a_step_size_suffices(capsys: pytest.CaptureFixture[str]):
    assert invoke(["bound", "grid", "--stages", "4", "--groups", "4"]) == 0
    out = capsys.readouterr().out
    for words in ("disagreement", "largest learning rate", "0.111111", "αL + 2α²L²τ² ≤ 1", "Kσ²/B_S", "spectral gap"):
        assert words in out
    assert invoke(["bound", "grid", "--stages", "4", "--groups", "4", "--learning-rate", "0.2"]) == 2
    assert capsys.readouterr().err == (
        "plesio: error: αL + 2α²L²τ² ≤ 1 does not hold (3.08 against 1); write a --learning-rate of at most 0.1111\n"
    )
