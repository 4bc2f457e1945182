"""Stochastic gradient descent on a bowl whose noise is known, for many batch sizes and steps at once.

    f(x) = ½ Σ λᵢxᵢ² (1 + q n xᵢ²/2),    a gradient of B samples: ∇f(x) + N(0, tr Σ/(nB)) in each of n numbers

with eigenvalues on a logarithmic scale from 1/κ to 1 and a start of length 1. Without walls, q = 0, the curvature is
the same everywhere. With them a number's is ``λᵢ(1 + 3q n xᵢ²)``: about 1 + 3q times as much at the start as at the
optimum, and more for those that begin far out.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
_DIVERGED = 100.0
DAMPING = 0.05
"""Share of the best step length that is taken, so that the loss falls by a tenth in a step at most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bowl:
    """The function, its noise, and where descents begin.

    Attributes:
        eigenvalues: λ.
        walls: q.
        trace: tr Σ of one sample's gradient.
    """

    eigenvalues: Numbers
    walls: float
    trace: float
    start: Numbers

    @classmethod
    def with_noise_scale(
        cls, noise_scale: float, *, dimension: int, condition: float, rng: np.random.Generator
    ) -> "Bowl":
        """Make a bowl whose ``tr Σ / ‖∇f‖²`` at the start is ``noise_scale``, without walls."""
        eigenvalues = np.logspace(-math.log10(condition), 0, dimension)
        start = rng.standard_normal(dimension)
        start /= math.sqrt(float(start @ start))
        gradient = eigenvalues * start
        trace = noise_scale * float(gradient @ gradient)
        return cls(eigenvalues=eigenvalues, walls=0.0, trace=trace, start=start)

    def loss(self, x: Numbers) -> Numbers:
        """Return the loss of each row."""
        squares = x * x
        found: Numbers = 0.5 * (squares * (1 + self.walls / 2 * len(self.start) * squares)) @ self.eigenvalues
        return found

    def gradient(self, x: Numbers) -> Numbers:
        """Return the gradient of each row, without noise."""
        found: Numbers = x * self.eigenvalues
        if self.walls:
            found *= 1 + self.walls * len(self.start) * x * x
        return found

    def noise_scale(self, x: Numbers) -> Numbers:
        """Return ``tr Σ / ‖∇f‖²`` of each row (McCandlish et al. 2018, equation 2.9)."""
        found: Numbers = self.trace / (self.gradient(x) ** 2).sum(axis=1)
        return found

    def noise(self, batch: Numbers, rng: np.random.Generator) -> Numbers:
        """Draw the noise of a batch of so many samples, for each row."""
        deviation = np.sqrt(self.trace / len(self.eigenvalues) / batch)
        drawn: Numbers = deviation[:, None] * rng.standard_normal((len(batch), len(self.eigenvalues)), dtype=np.float32)
        return drawn


def descend_greedily(
    bowl: Bowl, *, batch: float, target: float, num_runs: int, most: int, rng: np.random.Generator
) -> tuple[Numbers, float, float]:
    """Count each run's steps to a loss of ``target`` times the first, and average the noise scales on the way.

    With the step that lowers the expected loss the most, ``‖g‖² / (gᵀHg + tr(HΣ)/B)``, the loss falls by
    ``1/(1 + B_noise/B)`` of what it would fall without noise, with the noise scale ``tr(HΣ)/gᵀHg`` (McCandlish et al.
    2018, equations 2.6 to 2.8). Steps here are `DAMPING` of that, so that a step changes little. Only without walls.

    Returns:
        The steps, infinite where there were not enough of them, and the means over all steps of the noise scale that
        curvature weighs, ``tr(HΣ)/gᵀHg``, and of the simple one, ``tr Σ/‖g‖²``.
    """
    assert bowl.walls == 0, "its curvature is known everywhere"
    batches = np.full(num_runs, batch)
    x = np.tile(bowl.start, (num_runs, 1))
    needed = np.zeros(num_runs)
    scales = []
    goal = target * float(bowl.loss(bowl.start[None])[0])
    noise = bowl.trace * float(bowl.eigenvalues.mean())
    for step in range(1, most + 1):
        gradient = bowl.gradient(x)
        squares = gradient * gradient
        size, curvature = squares.sum(axis=1), squares @ bowl.eigenvalues
        scales.append((float((noise / curvature).mean()), float((bowl.trace / size).mean())))
        length = DAMPING * size / (curvature + noise / batch)
        x -= length[:, None] * (gradient + bowl.noise(batches, rng))
        needed[(needed == 0) & (bowl.loss(x) <= goal)] = step
        if needed.all():
            break
    weighted, simple = np.mean(scales, axis=0)
    return np.where(needed == 0, math.inf, needed), float(weighted), float(simple)


def steps_to_target(
    bowl: Bowl,
    *,
    batches: Numbers,
    lengths: Numbers,
    warmup_steps: Numbers,
    target: float,
    most: int,
    rng: np.random.Generator,
) -> Numbers:
    """Count each row's steps to a loss of ``target`` times the first, at least its warm-up; infinite if it diverges.

    Over the warm-up a row's steps grow from nothing to their length. A row that is not there after ``most`` steps is
    infinite, too.
    """
    found = np.full(len(batches), math.inf)
    rows = np.arange(len(batches))
    x = np.tile(bowl.start, (len(batches), 1))
    first = float(bowl.loss(bowl.start[None])[0])
    for step in range(1, most + 1):
        length = lengths[rows] * np.minimum(1.0, step / np.maximum(warmup_steps[rows], 1))
        x = x - length[:, None] * (bowl.gradient(x) + bowl.noise(batches[rows], rng))
        loss = bowl.loss(x) / first
        there = (loss <= target) & (step >= warmup_steps[rows])
        found[rows[there]] = step
        going = ~there & (loss < _DIVERGED)
        if not going.all():
            rows, x = rows[going], x[going]
            if not len(rows):
                break
    return found


def estimate_noise_scale(
    bowl: Bowl, *, small: int, large: int, num_draws: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Estimate the noise scale at the start, and 1.96 standard errors, from gradients' lengths at two batch sizes.

    ``‖G_B‖²`` is ``‖G‖² + tr Σ/B`` in the mean, which two batch sizes solve (McCandlish et al. 2018, appendix A.1).
    The error is by the delta method.
    """
    gradient = bowl.gradient(bowl.start[None])
    squares = [
        ((gradient + bowl.noise(np.full(num_draws, float(size)), rng)) ** 2).sum(axis=1) for size in (small, large)
    ]
    one, other = (float(each.mean()) for each in squares)
    signal = (large * other - small * one) / (large - small)
    trace = (one - other) / (1 / small - 1 / large)
    spread = large - small
    # d(trace/signal): trace = (one - other) small large / spread
    by_one = small * large / spread / signal + trace / signal**2 * small / spread
    by_other = -small * large / spread / signal - trace / signal**2 * large / spread
    variance = by_one**2 * float(squares[0].var()) + by_other**2 * float(squares[1].var())
    return trace / signal, 1.96 * math.sqrt(variance / num_draws)
