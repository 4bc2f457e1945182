"""Shares of a round: workers that are slow for good get fewer of its samples.

Slack cannot hide persistent slowness: sooner or later everyone waits for the slowest. So workers whose pace differs
significantly from the median (by `SIGNIFICANCE` standard errors, of logarithms) take shares of each round in proportion
to their pace, if most of their older and of their newer steps were slow or quick. A few steps that stalled, of one
worker or of the others, are no evidence, however significant their mean is. Gradients and parameters are weighted by
samples, so the mean is that of the same global batch. If a part of a step does not depend on its samples, the rule
reaches equal times in a few reviews.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SIGNIFICANCE = 4.0
"""Standard errors from the median beyond which a worker keeps its own pace."""
SMALLEST_SHARE = 0.02
"""Smallest share, as a share of an equal one; a smaller one is not worth a worker."""


def shares_by_pace(pace_s: NDArray[np.float64], before: Sequence[float], *, gain: float) -> tuple[float, ...]:
    """Return shares in proportion to pace: a worker's own pace if it differs significantly, else the median's.

    They add up to 1, by worker; empty for equal shares.

    Args:
        pace_s: ``[num_workers, num_steps]`` seconds of computing at equal shares.
        before: The shares in force, which stay while too few steps are known.
        gain: Share of the usual seconds by which a worker's must differ as well.
    """
    num_workers, num_steps = pace_s.shape
    if num_steps < 3:
        return tuple(before)
    means, logarithms = pace_s.mean(axis=1), np.log(pace_s)
    levels = logarithms.mean(axis=1)
    usual, usual_level = statistics.median(means.tolist()), statistics.median(levels.tolist())
    own = np.abs(levels - usual_level) > _chance(logarithms)
    differs = np.abs(means - usual) > gain * usual
    half = num_steps // 2
    older, newer = (_side(steps_s, gain=gain) for steps_s in (pace_s[:, :half], pace_s[:, half:]))
    persists = (older == newer) & (newer != 0)
    rates = 1 / np.where(own & differs & persists, means, usual)
    shares = np.maximum(rates / rates.sum(), SMALLEST_SHARE / num_workers)
    return () if np.ptp(shares) < 1e-9 else tuple((shares / shares.sum()).tolist())


def to_equal_shares(samples: Sequence[int], means: Sequence[float]) -> list[float]:
    """Return factors, by step, that convert its seconds to those of an equal share: mean samples over own samples.

    In a short round, an epoch's last, one sample more or less tells nothing about a share, so the factor there is that
    of all steps.
    """
    means = means[: len(samples)]
    num_samples = sum(samples)
    in_all = sum(means) / num_samples if num_samples else 1.0
    full = max(means, default=0.0) / 2
    return [mean / own if own and mean > full else in_all for own, mean in zip(samples, means, strict=True)]


def with_shares(pace_s: NDArray[np.float64], shares: Sequence[float]) -> NDArray[np.float64]:
    """Return ``[num_workers, num_steps]`` seconds of computing of these steps, if the workers had these shares."""
    return pace_s * np.array(shares)[:, None] * len(pace_s) if shares else pace_s


def _side(steps_s: NDArray[np.float64], *, gain: float) -> NDArray[np.int64]:
    """Return by worker 1 if its median step takes longer than is usual, -1 if it takes less, 0 if neither."""
    medians = np.median(steps_s, axis=1)
    usual = np.median(medians)
    return (medians > (1 + gain) * usual).astype(np.int64) - (medians < (1 - gain) * usual)


def _chance(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest error by chance of each worker's mean logarithm; few steps give a rough spread."""
    count = logarithms.shape[1]
    errors: NDArray[np.float64] = logarithms.std(axis=1, ddof=1) / math.sqrt(count)
    errors *= SIGNIFICANCE * (1 + 2 / (count - 1))
    return errors
