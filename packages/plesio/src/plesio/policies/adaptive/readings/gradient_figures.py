"""Gradient statistics of all workers, from each worker's report on its own gradient in two consecutive steps.

Theory. Worker i's gradient in one step is g_i, of a batch of b_i samples drawn alike by all N workers:

    E g_i = G,        tr Var(g_i) = tr Σ / b_i        (Σ: covariance of one sample's gradient)

No worker sees another's gradient. Each sends ‖g_i‖² and a *count sketch* s_i = S g_i of m numbers (Charikar, Chen,
Farach-Colton 2002; Weinberger et al. 2009): every coordinate is added to one of m sums with a random sign. S is the
same on all workers and E S'S = 1, so E <s_i, s_j> = <g_i, g_j>, with a variance of at most 2 ‖g_i‖² ‖g_j‖² / m.
Anything linear in the inner products can therefore be computed from sketches without bias:

    between      = sum over pairs i < j of ‖s_i - s_j‖² / (N (N - 1))     E = mean of tr Var(g_i)
    mean_norm_sq = mean over pairs i < j of <s_i, s_j>                    E = ‖G‖²
    within       = mean over i of ‖s_i(k) - s_i(k+1)‖² / 2                E = mean of tr Var(g_i) + ‖G(k) - G(k+1)‖² / 2

Each is chosen so that the sketch's error is a share of the figure itself: differences for variances, inner products of
different workers for the mean. (‖g_i‖² - mean_norm_sq is unbiased for the variance too, but if gradients hardly differ
it drowns in the sketch's error of a large inner product.) The figures are means over the two sampled steps.

With equal batches, mean_norm_sq is exactly the estimate of ‖G‖² from a small and a big batch of McCandlish et al.
(2018, appendix A.1, with B_small = b and B_big = N b), and b between is theirs of tr Σ. With unequal batches the pairs
give E between = tr Σ mean(1 / b_i), so tr Σ is estimated by between times the *harmonic mean* of the batches, and ‖G‖²
as before. noise_scale is their "simple" one (equation 2.9), a ratio of two unbiased figures and so not unbiased itself.

If workers draw from different data, or their replicas have drifted apart, ``between`` contains that spread as well: an
average over the workers hides it. ``within`` does not contain it, but contains the move of the mean gradient in one
step.
"""

import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plesio.policies.adaptive.readings.reading import GradientFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSample:
    """One worker's report on the gradient of one step.

    Attributes:
        norm_sq: ‖g‖², exact.
        sketch: S g; the same S on all workers and in both steps of a pair.
    """

    norm_sq: float
    sketch: tuple[float, ...]

    @property
    def is_finite(self) -> bool:
        """True if the sample is of use; a gradient with NaN or infinity is refused."""
        return math.isfinite(sum(self.sketch, self.norm_sq))  # a sum is finite only if every term is


def gradient_figures(
    samples: Mapping[int, tuple[GradientSample, GradientSample]], *, batch_samples: Sequence[float]
) -> GradientFigures | None:
    """Return the figures of a review from the workers' samples; None if no worker's are finite.

    With one worker (or one whose gradients are finite) nothing can be computed between workers: ``between`` is NaN, and
    ``mean_norm_sq`` and ``noise_scale`` follow from the two steps instead.

    >>> steps = {
    ...     0: (GradientSample(norm_sq=5.0, sketch=(2.0, 1.0)), GradientSample(norm_sq=5.0, sketch=(2.0, -1.0))),
    ...     1: (GradientSample(norm_sq=5.0, sketch=(2.0, -1.0)), GradientSample(norm_sq=5.0, sketch=(2.0, 1.0))),
    ... }
    >>> figures = gradient_figures(steps, batch_samples=[32, 32])
    >>> figures.mean_norm_sq, figures.between, figures.within
    (3.0, 2.0, 2.0)

    Args:
        samples: By worker, its gradients in two consecutive steps.
        batch_samples: Samples in a batch of each worker, in ascending order of the workers.
    """
    assert len(batch_samples) == len(samples), f"{len(batch_samples)} batches of {len(samples)} workers"
    assert all(size > 0 for size in batch_samples), f"batches of {batch_samples}"
    batch_of = dict(zip(sorted(samples), batch_samples, strict=True))
    pairs = {worker: pair for worker, pair in samples.items() if pair[0].is_finite and pair[1].is_finite}
    if not pairs:
        return None
    norm_sq = statistics.fmean([sample.norm_sq for pair in pairs.values() for sample in pair])
    within = statistics.fmean([_distance_sq(first.sketch, second.sketch) / 2 for first, second in pairs.values()])
    if len(pairs) > 1:
        between, mean_norm_sq = _over_workers([[pair[step].sketch for pair in pairs.values()] for step in range(2)])
        variance = between
    else:  # one worker is compared with itself a step later
        [(first, second)] = pairs.values()
        between, mean_norm_sq = math.nan, _inner(first.sketch, second.sketch)
        variance = within
    harmonic_batch = statistics.harmonic_mean([batch_of[worker] for worker in pairs])
    return GradientFigures(
        norm_sq=norm_sq,
        mean_norm_sq=mean_norm_sq,
        within=within,
        between=between,
        noise_scale=variance * harmonic_batch / mean_norm_sq if mean_norm_sq > 0 else math.inf,
    )


def _over_workers(steps: Sequence[Sequence[tuple[float, ...]]]) -> tuple[float, float]:
    """Return ``between`` and ``mean_norm_sq``, from the sketches of each step."""
    variances, products = [], []
    for sketches in steps:
        count = len(sketches)
        mean = [total / count for total in map(math.fsum, zip(*sketches, strict=True))]
        # the sums over pairs, without going through them: of ‖s_i - s_j‖² it is N sum ‖s_i - mean‖²
        variance = math.fsum(_distance_sq(sketch, mean) for sketch in sketches) / (count - 1)
        variances.append(variance)
        products.append(_inner(mean, mean) - variance / count)
    return statistics.fmean(variances), statistics.fmean(products)


def _inner(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(first, second, strict=True))


def _distance_sq(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum([difference * difference for difference in map(operator.sub, first, second)])
