"""Shares of a step's samples: in proportion to speed, in whole samples, under caps, and moved a bit at a time.

The step's time is ``max Bᵢ/vᵢ`` with the samples Bᵢ and the speeds vᵢ. Without caps it is the least, ``B/Σv``, where
shares are proportional to speeds. With caps, whoever would exceed its own gets just that, and the rest is divided among
the others in the same way (water-filling), which is again the least.

Workers with different numbers of samples have means of different variance; only if gradients are weighted by ``Bᵢ/B``
is their sum the gradient of the batch. `unweighted_variance` says what the plain mean would cost.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from plesio.core.errors import ConfigError

Samples = NDArray[np.int64]


def divide(total: int, speeds: ArrayLike, *, cap: int | None = None) -> Samples:
    """Return whole samples in proportion to ``speeds``, none above ``cap``; they add up to ``total``.

    >>> divide(32, [1.0, 1.0, 2.0]), divide(32, [1.0, 1.0, 2.0], cap=12)
    (array([ 8,  8, 16]), array([10, 10, 12]))

    Raises:
        ConfigError: The caps leave no room for all.
    """
    speed = np.asarray(speeds, float)
    if cap is None:
        return _whole(total * speed / speed.sum(), total=total)
    if cap * len(speed) < total:
        raise ConfigError(
            f"{len(speed)} workers hold {cap} samples each, and {total} are to be held; write larger caps"
        )
    wanted = np.full(len(speed), float(cap))
    free = np.ones(len(speed), dtype=bool)
    left = float(total)
    while free.any():
        parts = left * speed / speed[free].sum()
        above = free & (parts > cap)
        if not above.any():
            wanted[free] = parts[free]
            break
        free &= ~above
        left -= cap * int(above.sum())
    return _whole(wanted, total=total, cap=cap)


def moved(current: Samples, wanted: Samples, *, most: int) -> Samples:
    """Return ``wanted``, or as much of the way there as takes no worker more than ``most`` samples from ``current``.

    >>> moved(np.array([10, 10, 10]), np.array([4, 12, 14]), most=3)
    array([ 7, 11, 12])
    """
    change = wanted - current
    largest = int(np.abs(change).max())
    if largest <= most:
        return wanted
    return current + _toward_zero(change * most / largest)


def unweighted_variance(samples: ArrayLike) -> float:
    """Return the variance of the plain mean of workers' mean gradients, over that of the mean weighted by samples.

    ``B Σ(1/Bᵢ) / N²``; 1 for equal shares, otherwise more.

    >>> unweighted_variance([8, 8]), round(unweighted_variance([4, 12]), 3)
    (1.0, 1.333)
    """
    counts = np.asarray(samples, float)
    return float(counts.sum() * (1 / counts).sum() / len(counts) ** 2)


def _whole(parts: NDArray[np.float64], *, total: int, cap: int | None = None) -> Samples:
    """Round by largest remainders."""
    floors = np.floor(parts + 1e-9).astype(np.int64)
    remainders = parts - floors
    if cap is not None:
        remainders = np.where(floors < cap, remainders, -1.0)
    floors[np.argsort(-remainders, kind="stable")[: total - int(floors.sum())]] += 1
    return floors


def _toward_zero(change: NDArray[np.float64]) -> Samples:
    """Return whole numbers that add up to 0, none larger than the change that it stands for rounded up."""
    whole = np.trunc(change + np.copysign(1e-9, change)).astype(np.int64)
    surplus = int(whole.sum())
    beyond = np.argsort(-np.abs(change - whole), kind="stable")
    for place in beyond:
        if surplus == 0:
            break
        if surplus < 0 < change[place] - whole[place] or surplus > 0 > change[place] - whole[place]:
            step = -int(np.sign(surplus))
            whole[place] += step
            surplus += step
    return whole
