"""`plesio.grid` in the virtual world against what theory says of it, on a chain whose L and σ² are known."""

import numpy as np
import pytest

from plesio.core.mixing import Mixing
from plesio.policies.compression import parse_compression
from plesio.policies.grid import GridSetting
from plesio_planning.theory.bound import Bound
from plesio_planning.theory.dynamics import stability_limit_of_delays
from plesio_planning.theory.grid import consensus_rate, grid
from quadratic_grid import QuadraticChain, delays_of, shrinking_rate, train_chain

NUM_TICKS = 120
BATCH = 2


def bound_of(chain: QuadraticChain, setting: GridSetting, *, learning_rate: float) -> Bound:
    return grid(
        num_stages=setting.stages,
        num_groups=setting.groups,
        smoothness=chain.smoothness,
        gap=chain.gap,
        batch_size=setting.groups * BATCH,
        learning_rate=learning_rate,
        num_ticks=NUM_TICKS,
        delay=setting.delay,
        mixing=setting.mixing.name,  # type: ignore[arg-type]
        every=setting.every,
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        pytest.param("1x1", "quadratic", marks=pytest.mark.slow),
        pytest.param("1x4", "quadratic", marks=pytest.mark.slow),
        pytest.param("4x1,mixing=ring", "quadratic", marks=pytest.mark.slow),
        ("4x2,mixing=ring,every=3", "quadratic"),
        pytest.param("1x2", "log", marks=pytest.mark.slow),
        ("2x2", "log"),
    ],
)
def test_a_run_stays_below_the_bound_and_its_gradient_has_the_variance(spec: str, kind: str):
    chain, setting = QuadraticChain.coupled(kind=kind), GridSetting.parse(spec)  # type: ignore[arg-type]
    rate = 0.9 * bound_of(chain, setting, learning_rate=1e-6).also["largest learning rate"]
    run = train_chain(
        chain, setting, learning_rate=rate, num_ticks=NUM_TICKS, batch_size=BATCH, stage_variance=1.0, seed=3
    )
    bound = bound_of(chain, setting, learning_rate=rate)
    # the mean of 120 x 8 squares of a normal number is within 4 deviations of itself
    variance = bound.also["variance of the gradient, Kσ²/B_S"]
    assert run.variance == pytest.approx(variance, rel=4 * (2 / (NUM_TICKS * 8)) ** 0.5)
    assert run.mean_squared_gradient <= bound.value
    distance = bound.also["mean squared distance of a group from the mean"]
    assert run.squared_distances().mean() <= distance + 1e-12


def test_without_noise_gradients_are_those_at_the_weights_of_then_to_rounding():
    """So what is noted as a gradient's noise is noise: every block of the point is as late as its stage."""
    run = train_chain(QuadraticChain.coupled(), GridSetting(stages=4), learning_rate=0.1, num_ticks=30)
    assert run.delays == [6, 6, 4, 4, 2, 2, 0, 0]
    assert np.abs(run.noise()).max() < 1e-12


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("chain", "stages"),
    [
        (QuadraticChain.coupled(), 2),
        (QuadraticChain.first_stage_steepest(), 4),
        (QuadraticChain.first_stage_steepest(), 2),
    ],
    ids=["coupled", "first-of-four", "first"],
)
def test_a_grid_diverges_where_its_delays_say_and_not_below(chain: QuadraticChain, stages: int):
    setting = GridSetting(stages=stages)
    limit = stability_limit_of_delays(chain.hessian, delays_of(chain, setting))
    largest = bound_of(chain, setting, learning_rate=1e-6).also["largest learning rate"]
    assert 1.9 * largest < limit
    for share in (0.95, 1.05):
        run = train_chain(chain, setting, learning_rate=share * limit, num_ticks=30 * (2 * stages - 1))
        sizes = np.linalg.norm(run.weights[0], axis=1)
        assert (sizes[-15:].max() > sizes[:15].max()) == (share > 1)


def path(size: int) -> Mixing:
    """A row of groups, each with its neighbours a third."""
    matrix = np.diag([2 / 3, *[1 / 3] * (size - 2), 2 / 3]) + (np.eye(size, k=1) + np.eye(size, k=-1)) / 3
    return Mixing.given(matrix.tolist())


def lazy(mixing: Mixing) -> Mixing:
    """Half of the way."""
    return Mixing.given(((np.array(mixing.matrix) + np.eye(mixing.size)) / 2).tolist())


RING = Mixing.on("ring", 8)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("setting", "num_ticks"),
    [
        (GridSetting(groups=8, mixing=RING), 45),
        (GridSetting(groups=9, mixing=Mixing.on("exponential", 9)), 30),
        pytest.param(GridSetting(groups=8, mixing=path(8)), 110, marks=pytest.mark.slow),
        pytest.param(GridSetting(groups=8, stages=2, mixing=RING), 45, marks=pytest.mark.slow),
        pytest.param(GridSetting(groups=8, mixing=RING, every=2, bound=1), 90, marks=pytest.mark.slow),
        (GridSetting(groups=8, mixing=lazy(RING), bound=1), 90),
    ],
    ids=["ring", "exponential", "given", "two-stages", "half-late", "late"],
)
def test_the_groups_distance_shrinks_as_the_spectral_gap_says(setting: GridSetting, num_ticks: int):
    run = train_chain(
        QuadraticChain(hessian=np.eye(16)), setting, learning_rate=0.0, num_ticks=num_ticks, disturbed_by=1.0
    )
    measured = shrinking_rate(run.squared_distances()[:: setting.every].tolist())
    expected = consensus_rate(setting.mixing, late=setting.bound // setting.every)
    assert measured == pytest.approx(expected, rel=0.05)


def test_mixing_by_all_agrees_at_once():
    setting = GridSetting(groups=8, mixing=Mixing.on("all", 8))
    run = train_chain(QuadraticChain(hessian=np.eye(16)), setting, learning_rate=0.0, num_ticks=4, disturbed_by=1.0)
    distances = run.squared_distances()
    assert distances[1] > 1
    assert distances[2] < 1e-28


@pytest.mark.one_in(2)
@pytest.mark.parametrize("compress", ["qsgd:8", "topk:0.25"])
def test_compressed_mixing_shrinks_the_distance_no_faster(compress: str):
    setting = GridSetting(groups=8, mixing=RING, compress=parse_compression(compress))
    run = train_chain(QuadraticChain(hessian=np.eye(16)), setting, learning_rate=0.0, num_ticks=100, disturbed_by=1.0)
    rate = shrinking_rate(run.squared_distances().tolist(), least=1e-11)
    assert 0.95 * RING.rho < rate < 0.98
