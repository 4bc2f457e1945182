"""The gradients of an island's ranks at a step: placed as the parameters are, and equal where ranks hold them alike.

Each rank sends a part of what several hold alike (`island_layout`), so each must have the gradient of the island's
whole batch. Ranks that take slices of it without DDP have not, and would train on a part of each gradient. The sums of
magnitudes show it: those of equal gradients differ by rounding, those of two slices of a batch by far more. They go
with the flag by which ranks agree that a gradient is finite, so looking at every step takes no collective more.
"""

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor

from plesio.core.errors import TaskError
from plesio.runtime.worker.exchange.holders import Holders
from plesio.runtime.worker.exchange.local_part import local_part
from plesio.runtime.worker.island import Island

__all__ = ["AlikeGradients", "place_gradients"]

_ROUNDING = 1e-4
"""Difference of two ranks' sums, relative to the largest sum, that rounding stays below."""


def place_gradients(parameters: Mapping[str, torch.Tensor]) -> None:
    """Place each gradient as its parameter is, which those of sequence-parallel layers are not; all ranks call it."""
    for parameter in parameters.values():
        placed, gradient = getattr(parameter, "placements", None), parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != placed:
            parameter.grad = gradient.redistribute(placements=placed)


class AlikeGradients:
    """The gradients of parameters of which several ranks hold the same part; all ranks of the island make it.

    Args:
        parameters: This rank's, by name.
        island: The ranks.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], island: Island) -> None:
        first = Holders.of(parameters, island).first
        alike = {name: ranks for name, ranks in first.items() if len(set(ranks)) < len(ranks)}
        self._island = island
        self._parameters = {name: parameters.get(name) for name in alike}
        self._first = torch.tensor(list(alike.values()), dtype=torch.int64).reshape(len(alike), island.size).T
        """By rank and parameter, the first rank that holds the same part, ``[ranks, parameters]``."""

    def agree(self, *, finite: bool) -> bool:
        """Tell whether the gradient is ``finite`` on all ranks of the island, which all call it.

        Raises:
            TaskError: It is, and ranks that hold a parameter alike have different gradients of it.
        """
        magnitudes = [_magnitude(parameter) for parameter in self._parameters.values()]
        own = torch.tensor([float(not finite)])
        if magnitudes:
            own = torch.cat((own, torch.stack([one.to(magnitudes[0].device) for one in magnitudes]).cpu()))
        everywhere = torch.stack(self._island.gathered(own))
        if everywhere[:, 0].any():
            return False
        sums = everywhere[:, 1:]
        apart = (sums - sums.gather(0, self._first)).abs()
        if magnitudes and apart.max() > _ROUNDING * sums.max():
            name = list(self._parameters)[int(apart.amax(0).argmax())]
            raise TaskError(
                f'the ranks of the island hold "{name}" alike and have different gradients of it: give all of them '
                "the whole batch (and one seed), or call the model in DistributedDataParallel where each takes a slice"
            )
        return True


def _magnitude(parameter: torch.Tensor | None) -> torch.Tensor:
    """Return the sum of the magnitudes of the gradient's elements."""
    gradient = None if parameter is None else parameter.grad
    if gradient is None:
        return torch.zeros(())
    local = local_part(gradient)
    local = local.coalesce().values() if local.is_sparse else local
    wide = torch.promote_types(local.dtype, torch.float32)
    sum_: torch.Tensor = torch.linalg.vector_norm(local, 1, dtype=wide)
    return sum_.float()
