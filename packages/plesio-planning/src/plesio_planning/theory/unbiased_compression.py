"""SGD whose workers compress their gradients at random, without bias: what the added variance costs."""

import math

from plesio.core.checks import check_count, check_not_negative, check_positive
from plesio_planning.theory.bound import Bound
from plesio_planning.theory.premises import rate_premise


def unbiased_compression(
    *,
    smoothness: float = 1.0,
    distance: float = 10.0,
    gradient_variance: float = 1.0,
    compression_variance: float = 3.0,
    learning_rate: float = 0.1,
    batch_size: int = 32,
    num_workers: int = 8,
    num_steps: int = 1000,
) -> Bound:
    """Unbiased compression of every worker's gradient, convex: error of the mean iterate.

    ``E f(x̄) - f* ≤ D²/(2α(1-αLA)T) + ασ²/(2(1-αLA)B) + αωσ²/(2(1-αLA)B)`` with ``A = 1 + ω/n`` and ``αLA < 1``, for
    compressors with ``E Q(v) = v`` and ``E‖Q(v)-v‖² ≤ ω‖v‖²`` (after Alistarh et al. 2017). For QSGD with s levels ω is
    ``min(d/s², √d/s)``, for k of d coordinates drawn at random ``d/k - 1``.

    Why: n workers compress apart, so the mean of what they send has the second moment
    ``(1+ω/n)‖∇f‖² + (1+ω)σ²/B``; put into the proof of `synchronous_sgd`. The variance that compression adds is
    therefore ``(ω/n)‖∇f‖² + ωσ²/B``: a part that shrinks the largest learning rate, and one that is noise.

    >>> bound = unbiased_compression(compression_variance=4, learning_rate=0.5, num_workers=8, gradient_variance=32)
    >>> {name: round(part, 3) for name, part in bound.parts.items()}
    {'start': 0.4, 'noise': 1.0, 'compression': 4.0}

    Args:
        smoothness: L, of the gradient.
        distance: D, from the start to the optimum.
        gradient_variance: σ², of one sample's gradient.
        compression_variance: ω, variance of the compressed gradient over the squared length of what it stands for.
        learning_rate: α, constant.
        batch_size: B, samples of all workers in a step.
        num_workers: n, which compress independently of each other.
        num_steps: T.

    Raises:
        ConfigError: ``αLA < 1`` does not hold, or an argument is out of range.
    """
    check_positive(smoothness=smoothness, distance=distance, learning_rate=learning_rate)
    check_not_negative(gradient_variance=gradient_variance, compression_variance=compression_variance)
    check_count(batch_size=batch_size, num_workers=num_workers, num_steps=num_steps)
    rougher = smoothness * (1 + compression_variance / num_workers)
    left = 1 - learning_rate * rougher or math.inf  # at 1 the premise fails, which `Bound` says
    noise = learning_rate * gradient_variance / (2 * left * batch_size)
    return Bound(
        quantity="E f(x̄) - f*",
        parts={
            "start": distance**2 / (2 * learning_rate * left * num_steps),
            "noise": noise,
            "compression": compression_variance * noise,
        },
        conditions=(rate_premise("αL(1+ω/n) < 1", learning_rate, smoothness=rougher, limit=1.0, strict=True),),
        also={
            "variance that compression adds, without the gradient's part": (
                compression_variance * gradient_variance / batch_size
            ),
            "largest learning rate": 1 / rougher,
        },
    )
