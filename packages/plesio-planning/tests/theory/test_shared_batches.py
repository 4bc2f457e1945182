"""Bounds on what workers that share a batch, compress, or step by themselves do to a run."""

import numpy as np
import pytest
from numpy.typing import NDArray

from plesio.core.errors import ConfigError
from plesio_planning.theory.convergence import synchronous_sgd
from plesio_planning.theory.generalisation import generalisation_gap
from plesio_planning.theory.gradient_noise import batch_variance
from plesio_planning.theory.local_steps import local_staleness
from plesio_planning.theory.statements.asynchrony import sharpness_of_training
from plesio_planning.theory.unbiased_compression import unbiased_compression


def test_values_by_hand():
    bound = unbiased_compression(
        smoothness=2,
        distance=3,
        gradient_variance=8,
        compression_variance=4,
        learning_rate=0.1,
        batch_size=4,
        num_workers=8,
        num_steps=100,
    )
    left = 1 - 0.1 * 2 * 1.5
    noise = 0.1 * 8 / (2 * left * 4)
    assert bound.parts == pytest.approx({"start": 9 / (0.2 * left * 100), "noise": noise, "compression": 4 * noise})
    gap = generalisation_gap(gradient_bound=2, learning_rate=0.5, num_samples=100, num_steps=10, batch_size=20)
    assert gap.value == pytest.approx(2 * 4 * 0.5 * 10 / 100)
    assert gap.also["passes over the data"] == 2
    assert gap.also["bound for each pass"] * 2 == pytest.approx(gap.value)
    assert batch_variance(batch_size=64, num_workers=4, gradient_variance=2).value == 2 / 64
    assert local_staleness(period=5, num_workers=3).value == 10


def test_without_compression_it_is_the_bound_of_synchronous_sgd():
    plain = unbiased_compression(compression_variance=0.0)
    assert plain.parts["compression"] == 0
    assert plain.value == pytest.approx(synchronous_sgd().value)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("αL\\(1\\+ω/n\\) < 1", lambda: unbiased_compression(learning_rate=0.8)),
        ("αL ≤ 2", lambda: generalisation_gap(learning_rate=2.5)),
        ("n ≤ B", lambda: batch_variance(batch_size=4, num_workers=8)),
    ],
)
def test_a_premise_that_fails_is_named(words: str, call: object):
    assert callable(call)
    with pytest.raises(ConfigError, match=f"{words} does not hold"):
        call()


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_sgd_on_random_coordinates_keeps_to_its_bound(kept: int):
    """Least squares in ten coordinates of curvature 1, eight workers, each sending ``kept`` of them."""
    dimension, num_workers, rate, num_steps = 10, 8, 0.2, 400
    random = np.random.default_rng(kept)
    x, total = np.ones((200, dimension)), np.zeros((200, dimension))
    for _ in range(num_steps):
        total += x
        sent = np.zeros_like(x)
        for _ in range(num_workers):
            gradient = x + random.normal(size=x.shape)
            chosen = np.argsort(random.random(x.shape), axis=1) < kept
            sent += gradient * chosen * dimension / kept / num_workers
        x = x - rate * sent
    error = float(np.square(total / num_steps).sum(axis=1).mean() / 2)
    bound = unbiased_compression(
        distance=dimension**0.5,
        gradient_variance=dimension,
        compression_variance=dimension / kept - 1,
        learning_rate=rate,
        batch_size=num_workers,
        num_workers=num_workers,
        num_steps=num_steps,
    )
    assert 0 < error < bound.value


def _gap(*, num_steps: int, batch: int, num_samples: int = 40, num_runs: int = 100) -> float:
    """Loss on new data less that on the training data, of SGD on the logistic loss with random labels' noise."""
    random, dimension, rate = np.random.default_rng(0), 20, 0.5
    gaps = []
    for _ in range(num_runs):
        data, labels = _samples(random, num_samples, dimension)
        weights = np.zeros(dimension)
        for _ in range(num_steps):
            chosen = random.choice(num_samples, size=batch, replace=False)
            margins = labels[chosen] * (data[chosen] @ weights)
            weights += rate * (data[chosen] * (labels[chosen] / (1 + np.exp(margins)))[:, None]).mean(axis=0)
        fresh, truth = _samples(random, 2000, dimension)
        gaps.append(_loss(fresh, truth, weights) - _loss(data, labels, weights))
    return float(np.mean(gaps))


def _samples(
    random: np.random.Generator, number: int, dimension: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points of length 1, so that gradients are no longer than 1, with labels that are often wrong."""
    data = random.normal(size=(number, dimension))
    data /= np.linalg.norm(data, axis=1, keepdims=True)
    return data, np.sign(data[:, 0] + random.normal(size=number))


def _loss(data: NDArray[np.float64], labels: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    return float(np.mean(np.log1p(np.exp(-labels * (data @ weights)))))


def test_the_gap_grows_with_steps_and_not_with_the_batch_and_keeps_to_its_bound():
    few, many, larger = _gap(num_steps=10, batch=8), _gap(num_steps=40, batch=8), _gap(num_steps=40, batch=32)
    assert few < many
    assert larger == pytest.approx(many, rel=0.15)
    for num_steps, gap in ((10, few), (40, many)):
        bound = generalisation_gap(smoothness=0.25, learning_rate=0.5, num_samples=40, num_steps=num_steps)
        assert 0 < gap < bound.value


def test_a_squared_loss_sharpens_while_it_is_trained_and_a_logistic_one_flattens():
    (begin, end), (first, last) = sharpness_of_training("squared"), sharpness_of_training("logistic")
    assert end > 1.5 * begin
    assert last < 0.7 * first
