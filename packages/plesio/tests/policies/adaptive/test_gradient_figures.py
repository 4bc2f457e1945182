import math

import numpy as np
import pytest

from plesio.policies.adaptive.readings.gradient_figures import GradientSample, gradient_figures

DIMENSION, SKETCH = 96, 32
INF = math.inf


def sample(gradient: np.ndarray, sketcher: np.ndarray) -> GradientSample:
    return GradientSample(norm_sq=float(gradient @ gradient), sketch=tuple((sketcher @ gradient).tolist()))


def count_sketch(random: np.random.Generator) -> np.ndarray:
    """S as a matrix [SKETCH, DIMENSION]: one random sign in each column."""
    matrix = np.zeros((SKETCH, DIMENSION))
    matrix[random.integers(SKETCH, size=DIMENSION), np.arange(DIMENSION)] = random.choice([-1.0, 1.0], size=DIMENSION)
    return matrix


@pytest.mark.parametrize("batches", [[8, 8, 8], [2, 8, 32]])
def test_figures_are_unbiased(batches: list[int]):
    """Over many draws of noise and of the sketch, the mean is what the module's head says, for unequal batches too."""
    random = np.random.default_rng(0)
    mean = random.standard_normal(DIMENSION)
    spread = np.linspace(0.2, 2.0, DIMENSION)
    sigma_trace = float(spread @ spread)
    found = []
    for _ in range(800):
        sketcher = count_sketch(random)
        pairs = {}
        for worker, size in enumerate(batches):
            first, second = mean + random.standard_normal((2, DIMENSION)) * spread / math.sqrt(size)
            pairs[worker] = (sample(first, sketcher), sample(second, sketcher))
        figures = gradient_figures(pairs, batch_samples=batches)
        assert figures is not None
        found.append((figures.norm_sq, figures.mean_norm_sq, figures.within, figures.between))
    variance = sigma_trace * float(np.mean([1 / size for size in batches]))
    true = np.array([mean @ mean + variance, mean @ mean, variance, variance])
    error = np.std(found, axis=0) / math.sqrt(len(found))
    # Four standard errors: each of the eight comparisons fails by chance once in 16,000 seeds.
    assert np.all(np.abs(np.mean(found, axis=0) - true) < 4 * error), (np.mean(found, axis=0), true, error)
    assert np.all(error < 0.05 * true), "the test could not see a bias of a fifth"


def test_with_exact_sketches_the_figures_are_those_of_mccandlish():
    """Appendix A.1 with B_small = b and B_big = N b, computed from the gradients themselves."""
    random = np.random.default_rng(1)
    num_workers, batch = 4, 16
    gradients = random.standard_normal((num_workers, 8)) + 1.0
    exact = np.eye(8)
    pairs = {worker: (sample(gradient, exact), sample(gradient, exact)) for worker, gradient in enumerate(gradients)}
    figures = gradient_figures(pairs, batch_samples=[batch] * num_workers)
    assert figures is not None
    small, big = float(np.mean(np.sum(gradients**2, axis=1))), float(np.sum(gradients.mean(axis=0) ** 2))
    big_batch = num_workers * batch
    mean_norm_sq = (big_batch * big - batch * small) / (big_batch - batch)
    sigma_trace = (small - big) / (1 / batch - 1 / big_batch)
    assert figures.norm_sq == pytest.approx(small)
    assert figures.mean_norm_sq == pytest.approx(mean_norm_sq)
    assert figures.between * batch == pytest.approx(sigma_trace)
    assert figures.noise_scale == pytest.approx(sigma_trace / mean_norm_sq)
    assert figures.within == 0.0


def test_unequal_batches_count_with_their_harmonic_mean():
    first = GradientSample(norm_sq=5.0, sketch=(2.0, 1.0))
    second = GradientSample(norm_sq=5.0, sketch=(2.0, -1.0))
    figures = gradient_figures({3: (first, first), 1: (second, second)}, batch_samples=[10, 40])
    assert figures is not None
    assert figures.noise_scale == pytest.approx(figures.between * 16 / figures.mean_norm_sq)


def test_batches_go_to_workers_in_ascending_order():
    nan = GradientSample(norm_sq=math.nan, sketch=(math.nan, 1.0))
    fine = GradientSample(norm_sq=4.0, sketch=(2.0, 0.0))
    other = GradientSample(norm_sq=4.0, sketch=(1.0, 1.0))
    figures = gradient_figures({7: (fine, other), 2: (nan, fine)}, batch_samples=[5, 50])
    assert figures is not None
    assert figures.within == 1.0
    assert math.isnan(figures.between)
    assert figures.mean_norm_sq == 2.0
    assert figures.noise_scale == 1.0 * 50 / 2.0


@pytest.mark.parametrize("bad", [math.nan, INF])
def test_without_a_finite_gradient_there_are_no_figures(bad: float):
    broken = GradientSample(norm_sq=bad, sketch=(1.0,))
    fine = GradientSample(norm_sq=1.0, sketch=(1.0,))
    assert gradient_figures({0: (broken, fine)}, batch_samples=[1]) is None
    assert gradient_figures({}, batch_samples=[]) is None


def test_noise_scale_is_infinite_where_noise_hides_the_mean():
    up, down = GradientSample(norm_sq=1.0, sketch=(1.0,)), GradientSample(norm_sq=1.0, sketch=(-1.0,))
    figures = gradient_figures({0: (up, up), 1: (down, down)}, batch_samples=[1, 1])
    assert figures is not None
    assert figures.mean_norm_sq == -1.0
    assert figures.noise_scale == INF
