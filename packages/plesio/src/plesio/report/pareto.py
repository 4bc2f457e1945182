"""Choices that are worth having: no other beats them in both respects."""

from collections.abc import Mapping

__all__ = ["pareto_front"]


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names of the points with no other that costs no more and gains no less, from the cheapest on.

    Args:
        points: (cost, gain) of each.

    >>> pareto_front({"slow": (3.0, 0.9), "fast": (1.0, 0.8), "bad": (2.0, 0.7), "best": (3.0, 0.95)})
    ['fast', 'best']
    """
    front: list[str] = []
    most = float("-inf")
    for name, (_, gain) in sorted(points.items(), key=lambda item: (item[1][0], -item[1][1])):
        if gain > most:
            front.append(name)
            most = gain
    return front
