"""Time to a target, read off a smoothed curve, so that chance between two evaluations does not decide.

The points are smoothed by samples, not by time: a local linear fit at every evaluation, with tricube weights
(Cleveland 1979) over a twelfth of the run's samples to each side. A line is reproduced exactly. The time is where the
smoothed curve first comes to the target, interpolated between two evaluations, first in samples and then in seconds.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

HALF_WIDTH = 1 / 12
"""Half of the window, as a share of the whole run's samples."""
Array = npt.NDArray[np.float64]


def smoothed(samples: Sequence[float], points: Sequence[float]) -> Array:
    """Return the fit at each of ``samples``, which increase and end with the run.

    >>> smoothed([0, 1, 2, 3], [1.0, 3.0, 5.0, 7.0]).round(6).tolist()
    [1.0, 3.0, 5.0, 7.0]
    """
    places, values = np.asarray(samples, dtype=float), np.asarray(points, dtype=float)
    spacing = np.diff(places).max() if len(places) > 1 else 1.0
    half_width = max(HALF_WIDTH * places[-1], 1.5 * spacing)  # at least one neighbour on each side has weight
    offsets = places[None, :] - places[:, None]
    weights = np.clip(1 - np.abs(offsets / half_width) ** 3, 0, None) ** 3
    totals = weights.sum(1)
    mean_offsets, mean_values = (weights * offsets).sum(1) / totals, weights @ values / totals
    centred = offsets - mean_offsets[:, None]
    spreads = (weights * centred**2).sum(1)
    slopes = (weights * centred * (values[None, :] - mean_values[:, None])).sum(1) / np.where(spreads > 0, spreads, 1)
    return np.asarray(mean_values - slopes * mean_offsets)


def samples_to(target: float, samples: Sequence[float], points: Sequence[float]) -> float:
    """Return the samples at which the smoothed curve first is at ``target`` or above; inf if it never is."""
    fit = smoothed(samples, points)
    reached = np.nonzero(fit >= target)[0]
    if len(reached) == 0:
        return math.inf
    after = int(reached[0])
    if after == 0:
        return float(samples[0])
    share = (target - fit[after - 1]) / (fit[after] - fit[after - 1])
    return float(samples[after - 1] + share * (samples[after] - samples[after - 1]))


def seconds_to(target: float, samples: Sequence[float], seconds: Sequence[float], points: Sequence[float]) -> float:
    """Seconds at which that is; inf if it never is.

    >>> seconds_to(50.0, samples=[0, 10, 20], seconds=[0.0, 1.0, 4.0], points=[0.0, 40.0, 80.0])
    1.75
    """
    return (
        float(np.interp(reached, samples, seconds))
        if (reached := samples_to(target, samples, points)) < math.inf
        else math.inf
    )
