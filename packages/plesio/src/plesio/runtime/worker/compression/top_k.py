"""Sends the numbers of largest magnitude, and their places."""

import numpy as np
import torch
from torch import Tensor

from plesio.policies.compression import TopK
from plesio.runtime.worker.compression.bits import pack_places, unpack_places
from plesio.runtime.worker.compression.codec import Codec

__all__ = ["TopKCodec"]

_MAGNITUDE = 0x7FFF_FFFF


class TopKCodec(Codec):
    """Payload: k float32 numbers in the order of their places, then the places, as bytes."""

    summable = False

    def __init__(self, compression: TopK, *, num_elements: int) -> None:
        self.num_elements = num_elements
        self._num_kept = compression.num_kept(num_elements)

    def encode(self, update: Tensor, *, clock: int) -> Tensor:
        """Take the largest; of equal ones at the threshold, the first."""
        numbers = update.float()
        places = self._largest(numbers)
        return torch.cat([numbers[places].view(torch.uint8), pack_places(places, among=self.num_elements)])

    def _largest(self, numbers: Tensor) -> Tensor:
        # the bits of magnitudes, read as integers, are in the order of the magnitudes, and NaN is above them all
        magnitudes = numbers.view(torch.int32) & _MAGNITUDE
        threshold = _smallest_of_largest(magnitudes, self._num_kept)
        places = (magnitudes >= threshold).nonzero().squeeze(1)
        surplus = len(places) - self._num_kept
        if surplus == 0:
            return places
        at_threshold = (magnitudes[places] == threshold).nonzero().squeeze(1)
        keep = torch.ones(len(places), dtype=torch.bool, device=places.device)
        keep[at_threshold[-surplus:]] = False
        return places[keep]

    def add(self, payload: Tensor, *, to: Tensor, clock: int, scale: float = 1.0) -> None:
        num_bytes = 4 * self._num_kept
        numbers = payload[:num_bytes].view(torch.float32)
        places = unpack_places(payload[num_bytes:], num_places=self._num_kept, among=self.num_elements)
        to.index_add_(0, places, numbers.to(to.dtype), alpha=scale)


def _smallest_of_largest(magnitudes: Tensor, number: int) -> int:
    index = len(magnitudes) - number
    if magnitudes.device.type == "cpu":  # four times as fast as kthvalue
        return int(np.partition(magnitudes.numpy(), index)[index])
    return int(magnitudes.kthvalue(index + 1).values)
