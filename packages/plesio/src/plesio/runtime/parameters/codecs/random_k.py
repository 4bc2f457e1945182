"""Sends numbers at places that all ranks draw alike: one in each of k equal blocks (`plesio.policies.compression`)."""

import torch
from torch import Tensor

from plesio.policies.compression import RandomK
from plesio.runtime.parameters.codecs.codec import Codec, generator_of

_STREAM = 1
"""In the key of the generator, so that its numbers are not those of another codec."""


class RandomKCodec(Codec):
    """Payload: ``[k]`` float32 numbers, in the order of their places.

    Args:
        seed: The run's; the same on all ranks.
    """

    summable = True
    payload_dtype = torch.float32

    def __init__(self, compression: RandomK, *, num_elements: int, seed: int) -> None:
        self.num_elements, self._seed = num_elements, seed
        kept = compression.num_kept(num_elements)
        edges = torch.arange(kept + 1) * num_elements // kept
        self._starts, self._sizes = edges[:-1], edges.diff()
        self._unbiased = not compression.feedback
        self._drawn: tuple[int, Tensor] | None = None

    def places(self, clock: int, *, device: torch.device) -> Tensor:
        """Return the places [k] of the exchange at ``clock``, rising."""
        if self._drawn is None or self._drawn[0] != clock:
            # drawn on the CPU, for ranks on other devices must draw the same
            generator = generator_of(_STREAM, self._seed, clock, device=torch.device("cpu"))
            share = torch.rand(len(self._sizes), dtype=torch.float64, generator=generator)
            self._drawn = clock, (self._starts + (share * self._sizes).long()).to(device)
        return self._drawn[1]

    def encode(self, update: Tensor, *, clock: int) -> Tensor:
        """Take the numbers at the places; without feedback, times the sizes of their blocks."""
        kept = update[self.places(clock, device=update.device)].float()
        return kept.mul_(self._sizes.to(kept)) if self._unbiased else kept

    def add(self, payload: Tensor, *, to: Tensor, clock: int, scale: float = 1.0) -> None:
        to.index_add_(0, self.places(clock, device=to.device), payload.to(to.dtype), alpha=scale)
