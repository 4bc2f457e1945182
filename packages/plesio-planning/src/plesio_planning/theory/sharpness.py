"""How the curvature of a small network's loss changes while it is trained by gradient descent.

A network of 16 tanh units learns the sign of a product of two inputs from 32 samples. Its sharpness, the largest
eigenvalue of the Hessian, rises under the squared loss (progressive sharpening; Cohen et al. 2021) and falls under the
logistic loss once the samples are fitted, for its second derivative fades with the margin.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["sharpness_of_training"]

_HIDDEN = 16
_NUM_SAMPLES = 32
_NUDGE = 1e-4

Loss = Literal["squared", "logistic"]


def sharpness_of_training(loss: Loss, *, learning_rate: float = 0.3, num_steps: int = 2000) -> tuple[float, float]:
    """Return the largest eigenvalue of the Hessian before the first step and after the last.

    >>> [round(each, 1) for each in sharpness_of_training("squared")]
    [3.2, 5.7]

    Args:
        loss: Loss to minimise.
        learning_rate: Rate of full gradient descent.
        num_steps: Steps.
    """
    random = np.random.default_rng(0)
    data = random.normal(size=(_NUM_SAMPLES, 2))
    first = random.normal(size=(2, _HIDDEN)) / np.sqrt(2)
    last = random.normal(size=_HIDDEN) / (2 * np.sqrt(_HIDDEN))
    parameters = np.concatenate([first.ravel(), np.zeros(_HIDDEN), last])
    begin = _sharpness(parameters, data, loss)
    for _ in range(num_steps):
        parameters = parameters - learning_rate * _gradient(parameters, data, loss)
    return begin, _sharpness(parameters, data, loss)


def _gradient(parameters: NDArray[np.float64], data: NDArray[np.float64], loss: Loss) -> NDArray[np.float64]:
    labels = np.sign(data[:, 0] * data[:, 1])
    first, shift, last = np.split(parameters, [2 * _HIDDEN, 3 * _HIDDEN])
    hidden = np.tanh(data @ first.reshape(2, _HIDDEN) + shift)
    output = hidden @ last
    slope = output - labels if loss == "squared" else -labels / (1 + np.exp(labels * output))
    back = np.outer(slope / _NUM_SAMPLES, last) * (1 - hidden * hidden)
    return np.concatenate([(data.T @ back).ravel(), back.sum(axis=0), hidden.T @ slope / _NUM_SAMPLES])


def _sharpness(parameters: NDArray[np.float64], data: NDArray[np.float64], loss: Loss) -> float:
    """By central differences of the gradient."""
    nudges = _NUDGE * np.eye(parameters.size)
    rows = [
        (_gradient(parameters + nudge, data, loss) - _gradient(parameters - nudge, data, loss)) / (2 * _NUDGE)
        for nudge in nudges
    ]
    hessian = np.array(rows)
    return float(np.linalg.eigvalsh((hessian + hessian.T) / 2)[-1])
