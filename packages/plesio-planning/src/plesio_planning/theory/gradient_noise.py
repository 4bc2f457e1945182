"""How much noise a batch leaves in a gradient, and from which batch on less noise no longer pays."""

from plesio.core.checks import check_count, check_not_negative, check_positive
from plesio_planning.theory.bound import Bound, Condition


def gradient_noise_scale(*, covariance_trace: float, squared_gradient_norm: float) -> float:
    """Return the samples from which on more of them no longer pay: ``tr Σ / ‖G‖²`` (McCandlish et al. 2018).

    >>> gradient_noise_scale(covariance_trace=500.0, squared_gradient_norm=0.5)
    1000.0

    Args:
        covariance_trace: tr Σ, of one sample's gradient.
        squared_gradient_norm: ‖G‖², of the mean gradient.
    """
    check_not_negative(covariance_trace=covariance_trace)
    check_positive(squared_gradient_norm=squared_gradient_norm)
    return covariance_trace / squared_gradient_norm


def critical_batch(*, min_steps: float = 1000.0, noise_scale: float = 1000.0, batch_size: int = 1000) -> Bound:
    """Steps to a target by batch size, and what they cost in samples.

    ``S = S_min (1 + B_noise/B)`` and ``E = S B = E_min (1 + B/B_noise)`` (McCandlish et al. 2018). At the
    critical batch ``B_noise`` both are twice their least. The learning rate is taken to be the best for each batch.

    >>> bound = critical_batch()
    >>> bound.value, bound.also["samples"]
    (2000.0, 2000000.0)

    Args:
        min_steps: S_min, that no batch can undercut.
        noise_scale: B_noise, in samples; `gradient_noise_scale` has it from gradients.
        batch_size: B.
    """
    check_positive(min_steps=min_steps)
    check_not_negative(noise_scale=noise_scale)
    check_count(batch_size=batch_size)
    noisy_steps = min_steps * noise_scale / batch_size
    return Bound(
        quantity="steps to the target",
        unit="steps",
        parts={"without noise": min_steps, "noise": noisy_steps},
        also={
            "samples": (min_steps + noisy_steps) * batch_size,
            "fewest samples": min_steps * noise_scale,
            "share of steps that a batch twice as large saves": noisy_steps / 2 / (min_steps + noisy_steps),
        },
    )


def batch_variance(*, batch_size: int = 256, num_workers: int = 8, gradient_variance: float = 1.0) -> Bound:
    """A global batch that n workers share: variance of the gradient that is applied, and of each worker's own.

    ``σ²/B`` for every n: each worker's own is ``nσ²/B``, and the mean over n of them has the n-th part. Samples must be
    drawn independently; from a fixed order without replacement the variance is smaller, and still the same for every n.

    >>> bound = batch_variance(batch_size=256, num_workers=8, gradient_variance=1.0)
    >>> bound.value, bound.also["of a worker's own gradient"]
    (0.00390625, 0.03125)

    Args:
        batch_size: B, samples of all workers in a step.
        num_workers: n, with equal shares.
        gradient_variance: σ², of one sample's gradient.

    Raises:
        ConfigError: ``n ≤ B`` does not hold, or an argument is out of range.
    """
    check_count(batch_size=batch_size, num_workers=num_workers)
    check_not_negative(gradient_variance=gradient_variance)
    return Bound(
        quantity="variance of the gradient",
        parts={"sampling": gradient_variance / batch_size},
        conditions=(
            Condition(
                premise="n ≤ B",
                value=num_workers,
                limit=batch_size,
                remedy=f"write `num_workers` of at most {batch_size}",
            ),
        ),
        also={"of a worker's own gradient": num_workers * gradient_variance / batch_size},
    )
