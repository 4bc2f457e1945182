"""Check statements A.1, A.5, A.10, A.19 and A.20 of the text: batches, workers and learning rates."""

import numpy as np
from numpy.typing import NDArray

from plesio_planning.theory.dynamics import noise_floor
from plesio_planning.theory.statements.statement import Witness

_NUM_SAMPLES = 400_000
_BATCH = 64


def _gradients(random: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Gradients of single samples of a least-squares problem, in two coordinates; their mean is (-1, -2)."""
    data = random.normal(size=(*shape, 2))
    targets = data @ np.array([1.0, 2.0]) + random.normal(size=shape)
    gradients: NDArray[np.float64] = -data * targets[..., None]
    return gradients


def _aggregate(*, num_workers: int, batch: int) -> tuple[float, float, float]:
    """Bias, variance of a worker's gradient, and variance of the workers' mean, over many steps."""
    random = np.random.default_rng(num_workers)
    own = _gradients(random, _NUM_SAMPLES // batch, num_workers, batch // num_workers).mean(axis=2)
    means = own.mean(axis=1)
    bias = float(np.abs(means.mean(axis=0) - (-1.0, -2.0)).max())
    return bias, float(own.var(axis=(0, 1)).sum()), float(means.var(axis=0).sum())


def _variance_needs_more_samples() -> Witness:
    single = _aggregate(num_workers=1, batch=_BATCH)
    fixed = _aggregate(num_workers=16, batch=_BATCH)
    growing = _aggregate(num_workers=16, batch=16 * _BATCH)
    numbers = {
        "variance, 1 worker, 64 samples": single[2],
        "16 workers, 64 in all": fixed[2],
        "16 workers, 64 each": growing[2],
        "largest bias": max(single[0], fixed[0], growing[0]),
    }
    unbiased = max(single[0], fixed[0], growing[0]) < 0.05
    return Witness(unbiased and fixed[2] > 0.9 * single[2] and growing[2] < 0.1 * single[2], numbers)


def _linear_scaling_keeps_the_noise() -> Witness:
    """Compare what noise leaves behind at a rate and a batch with 16 times both, by how the variance falls with B."""
    step, batch, times = 0.001, 8, 16

    def ratio(power: float) -> float:
        first, scaled = noise_floor(step=step, staleness=0), noise_floor(step=times * step, staleness=0)
        return float(scaled / (times * batch) ** power / (first / batch**power))

    one_update = times * times**-0.5
    numbers = {
        "noise left behind at 16 times the rate and the batch, variance ∝ 1/B": ratio(1.0),
        "variance ∝ 1/√B": ratio(0.5),
        "variance ∝ 1/B²": ratio(2.0),
        "deviation of one update, variance ∝ 1/B": one_update,
    }
    kept = abs(ratio(1.0) - 1) < 0.05 and min(abs(ratio(0.5) - 1), abs(ratio(2.0) - 1)) > 0.5
    return Witness(kept, numbers, holds_otherwise=abs(one_update - 1) < 0.05)


def _fixed_batch_grows_noisier() -> Witness:
    found = {workers: _aggregate(num_workers=workers, batch=_BATCH) for workers in (1, 8, 64)}
    numbers = {f"variance of the mean, n = {workers}": each[2] for workers, each in found.items()}
    numbers["variance of a worker's own gradient, 64 workers"] = found[64][1]
    return Witness(found[64][2] > 1.1 * found[1][2], numbers)


def _more_workers_move_further() -> Witness:
    gradients, rate = _gradients(np.random.default_rng(0), _BATCH), 0.1
    moves = {
        workers: rate * float(np.linalg.norm(np.mean([part.mean(axis=0) for part in np.split(gradients, workers)], 0)))
        for workers in (1, 8, 64)
    }
    numbers = {f"length of an update, 64 samples, {workers} workers": move for workers, move in moves.items()}
    return Witness(moves[64] > moves[1] * (1 + 1e-9), numbers)


def _accumulation_is_a_larger_batch() -> Witness:
    """Compare the gradient of a batch with the mean over its quarters, with and without batch normalisation."""
    random = np.random.default_rng(0)
    data, targets, weight = random.normal(1.0, 2.0, size=_BATCH), random.normal(size=_BATCH), 0.7

    def gradient(place: slice, *, normalises: bool) -> float:
        x = data[place]
        x = (x - x.mean()) / x.std() if normalises else x
        return float(np.mean((weight * x - targets[place]) * x))

    apart = {}
    for normalises in (False, True):
        quarters = [gradient(slice(begin, begin + 16), normalises=normalises) for begin in range(0, _BATCH, 16)]
        apart[normalises] = abs(np.mean(quarters) - gradient(slice(None), normalises=normalises))
    numbers = {"difference of the gradients": float(apart[False]), "with batch normalisation": float(apart[True])}
    return Witness(bool(apart[False] < 1e-12), numbers, holds_otherwise=bool(apart[True] < 1e-12))
