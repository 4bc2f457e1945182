"""Where a rising function is zero, for the equations here that have no closed solution."""

from collections.abc import Callable

__all__ = ["rising_root"]

_HALVINGS = 200
"""More than doubles have digits: the interval has shrunk to two neighbours long before."""


def rising_root(function: Callable[[float], float], low: float, high: float) -> float:
    """The place between ``low`` and ``high`` at which the rising ``function`` turns positive, by bisection.

    >>> rising_root(lambda x: x * x - 2, 0, 2)
    1.414213562373095
    """
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if function(middle) <= 0:
            low = middle
        else:
            high = middle
    return low
