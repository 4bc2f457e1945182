"""All gradients of a replica as one flat tensor for each dtype, and back."""

from collections.abc import Sequence

import torch
from torch import Tensor

from plesio.runtime.exchange.replica import Replica

__all__ = ["FlatGradients"]


class FlatGradients:
    """Takes the gradients off a replica, and puts others on.

    A parameter that has no gradient counts as having a gradient of zeros, so that what is exchanged has one length
    whatever a step has used, and gets one like all others.

    Args:
        replica: Whose.
    """

    def __init__(self, replica: Replica) -> None:
        parameters = list(replica.parameters.values())
        self._groups = [
            [p for p in parameters if p.dtype == dtype] for dtype in dict.fromkeys(p.dtype for p in parameters)
        ]

    @property
    def shapes(self) -> list[list[torch.Size]]:
        """Of the parameters in each flat tensor, in their order."""
        return [[parameter.shape for parameter in group] for group in self._groups]

    @torch.no_grad()
    def take(self) -> list[Tensor]:
        """The gradients; the replica has none afterwards."""
        flats = [
            torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in group])
            for group in self._groups
        ]
        for group in self._groups:
            for parameter in group:
                parameter.grad = None
        return flats

    @torch.no_grad()
    def give(self, flats: Sequence[Tensor]) -> None:
        """Make ``flats`` the gradients; they share their memory."""
        for group, flat in zip(self._groups, flats, strict=True):
            for parameter, part in zip(group, torch.split(flat, [p.numel() for p in group]), strict=True):
                parameter.grad = part.view_as(parameter)

    @torch.no_grad()
    def zeros(self) -> list[Tensor]:
        """Gradients of nothing."""
        return [torch.cat([torch.zeros_like(p).reshape(-1) for p in group]) for group in self._groups]
