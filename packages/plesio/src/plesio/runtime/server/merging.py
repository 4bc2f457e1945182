"""How a shard makes one update of several: their mean, by directions, and what is changed of late ones.

Each is of one slice. A tensor that lies on two servers is merged as two, so its lengths and angles are those of its
parts.

*By directions* (radial-directional averaging; "Decoupled DiLoCo", arXiv 2604.21428): ``r u / |u|`` with the mean length
``r = Σ w |d|`` and the mean direction ``u = Σ w d/|d|``.

*Late deltas* are corrected after an idea of HeLoCo (arXiv 2606.00271), of which only a summary was at hand; the formula
is ours. Let g = -d be a late delta as a gradient and v the outer momentum. If they point apart, g loses its part along
v, and otherwise stays:

    g <- g - min(0, g·v / v·v) v

So what is old cannot undo where all have been going meanwhile.
"""

from collections.abc import Sequence

import torch

__all__ = ["along_momentum", "mean_by_directions", "mean_of"]

Counted = Sequence[tuple[torch.Tensor, int]]
"""Values of a slice, each with the number by which it counts."""


def mean_of(values: Counted, count: int) -> torch.Tensor:
    """Sum of value times number, over ``count``: an update without this slice counts as zero, as in an all-reduce."""
    first, times = values[0]
    if times == count:
        return first
    total = first * times if times > 1 else first.clone()
    for value, number in values[1:]:
        total.add_(value, alpha=number)
    return total.div_(count)


def mean_by_directions(values: Counted, count: int) -> torch.Tensor:
    """Mean length of the values in the direction of their mean direction; one of zeros has none.

    >>> mean_by_directions([(torch.tensor([3.0, 0.0]), 1), (torch.tensor([0.0, 1.0]), 1)], 2)
    tensor([1.4142, 1.4142])
    """
    lengths = [float(torch.linalg.vector_norm(value)) for value, _ in values]
    directions = [(value / (length or 1.0), number) for (value, number), length in zip(values, lengths, strict=True)]
    direction = mean_of(directions, count)
    radius = sum(length * number for length, (_, number) in zip(lengths, values, strict=True)) / count
    return direction * (radius / (float(torch.linalg.vector_norm(direction)) or 1.0))


def along_momentum(delta: torch.Tensor, momentum: torch.Tensor | None) -> torch.Tensor:
    """Return a late delta without its part against the outer momentum, which is of gradients.

    >>> along_momentum(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.0]))
    tensor([0., 2.])
    >>> along_momentum(torch.tensor([-1.0, 2.0]), torch.tensor([4.0, 0.0]))
    tensor([-1.,  2.])
    """
    if momentum is None:
        return delta
    against = float(torch.sum(delta * momentum))
    return delta if against <= 0 else delta.sub(momentum, alpha=against / float(torch.sum(momentum * momentum)))
