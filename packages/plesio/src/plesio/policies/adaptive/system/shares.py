"""Shares of a round: workers that are slow for good are dealt fewer of its samples.

Slack cannot hide persistent slowness: sooner or later everyone waits for the slowest. So workers whose pace differs
significantly from the median (by `SIGNIFICANCE` standard errors, of logarithms) take shares of each round in proportion
to their pace; gradients and parameters are weighted by samples, so the mean is that of the same global batch. With a
part of a step that does not depend on its samples the rule reaches equal times in a few reviews.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["shares_by_pace", "to_equal_shares", "with_shares"]

SIGNIFICANCE = 4.0
"""Standard errors from the median that make a worker's pace its own."""
SMALLEST_SHARE = 0.02
"""Of an equal share: less is not worth a worker."""


def shares_by_pace(pace_s: NDArray[np.float64], before: Sequence[float], *, gain: float) -> tuple[float, ...]:
    """Shares in proportion to pace for workers whose pace is their own, the median's for all others.

    Args:
        pace_s: ``[num_workers, num_steps]`` seconds of computing at equal shares.
        before: The shares in force, which stay while too few steps are known; empty is equal shares.
        gain: Share of the usual seconds by which a worker's must differ as well.

    Returns:
        By worker, adding up to 1; empty is equal shares.
    """
    num_workers, num_steps = pace_s.shape
    if num_steps < 3:
        return tuple(before)
    means, logarithms = pace_s.mean(axis=1), np.log(pace_s)
    levels = logarithms.mean(axis=1)
    usual, usual_level = statistics.median(means.tolist()), statistics.median(levels.tolist())
    own = np.abs(levels - usual_level) > _chance(logarithms)
    differs = np.abs(means - usual) > gain * usual
    rates = 1 / np.where(own & differs, means, usual)
    shares = np.maximum(rates / rates.sum(), SMALLEST_SHARE / num_workers)
    return () if np.ptp(shares) < 1e-9 else tuple((shares / shares.sum()).tolist())


def to_equal_shares(samples: Sequence[int], means: Sequence[float]) -> list[float]:
    """By step, what its seconds are multiplied by to be those of an equal share: the mean over the workers by the own.

    In a short round, an epoch's last, one sample more or less says nothing of a share: there it is that of all steps.

    Args:
        samples: Of one worker, by step.
        means: Of all workers, by step.
    """
    means = means[: len(samples)]
    num_samples = sum(samples)
    in_all = sum(means) / num_samples if num_samples else 1.0
    full = max(means, default=0.0) / 2
    return [mean / own if own and mean > full else in_all for own, mean in zip(samples, means, strict=True)]


def with_shares(pace_s: NDArray[np.float64], shares: Sequence[float]) -> NDArray[np.float64]:
    """``[num_workers, num_steps]`` seconds of computing of these steps, if the workers had these shares."""
    return pace_s * np.array(shares)[:, None] * len(pace_s) if shares else pace_s


def _chance(logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far each worker's mean logarithm may be off by chance; of few steps its spread is a guess."""
    count = logarithms.shape[1]
    errors: NDArray[np.float64] = logarithms.std(axis=1, ddof=1) / math.sqrt(count)
    errors *= SIGNIFICANCE * (1 + 2 / (count - 1))
    return errors
