"""How a shard makes one update of several: their mean, by directions, and what is changed of late ones.

Values are slices. A tensor that lies on two servers is merged as two, so its lengths and angles are those of its parts.

*By directions* (radial-directional averaging; "Decoupled DiLoCo", arXiv 2604.21428): ``r u / |u|`` with the mean length
``r = Σ w |d|`` and the mean direction ``u = Σ w d/|d|``.

*Late deltas* are corrected after an idea of HeLoCo (arXiv 2606.00271), of which only a summary was at hand; the formula
is ours. Let g = -d be a late delta as a gradient, v the outer momentum and μ its factor. If they point the same way, g
loses the share μ of its part along v, and otherwise stays:

    g <- g - μ max(0, g·v / v·v) v

Steps in the direction of v have been made since the delta's worker set out, and g asks for them once more.
"""

from collections.abc import Sequence

import torch

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
    """Mean length of the values in the direction of their mean direction; zeros have no direction.

    >>> mean_by_directions([(torch.tensor([3.0, 0.0]), 1), (torch.tensor([0.0, 1.0]), 1)], 2)
    tensor([1.4142, 1.4142])
    """
    lengths = [float(torch.linalg.vector_norm(value)) for value, _ in values]
    directions = [(value / (length or 1.0), number) for (value, number), length in zip(values, lengths, strict=True)]
    direction = mean_of(directions, count)
    radius = sum(length * number for length, (_, number) in zip(lengths, values, strict=True)) / count
    return direction * (radius / (float(torch.linalg.vector_norm(direction)) or 1.0))


def corrected(delta: torch.Tensor, velocity: torch.Tensor | None, *, momentum: float) -> torch.Tensor:
    """Return a late delta with less of its part along the outer momentum, which is of gradients.

    >>> corrected(torch.tensor([-1.0, 2.0]), torch.tensor([4.0, 0.0]), momentum=0.5)
    tensor([-0.5000,  2.0000])
    >>> corrected(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.0]), momentum=0.5)
    tensor([1., 2.])
    """
    if velocity is None:
        return delta
    along = -float(torch.sum(delta * velocity))
    return delta if along <= 0 else delta.add(velocity, alpha=momentum * along / float(torch.sum(velocity * velocity)))
