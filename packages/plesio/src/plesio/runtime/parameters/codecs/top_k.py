"""Sends the numbers of largest magnitude, and their places.

Places are bits in bytes: rising ones in Elias-Fano's code (`plesio.policies.compression.sparse` says how it works).
"""

import numpy as np
import torch
from torch import Tensor

from plesio.policies.compression import TopK, TwoBits, elias_fano_low_bits, place_bits
from plesio.runtime.parameters.codecs.codec import Codec
from plesio.runtime.parameters.codecs.two_bits import TwoBitsCodec


def pack_bits(bits: Tensor) -> Tensor:
    """Pack n bits (a uint8 tensor of zeros and ones) into bytes [⌈n/8⌉], the first the lowest of its byte; zero-padded.

    >>> pack_bits(torch.tensor([1, 0, 0, 0, 0, 0, 0, 1, 1], dtype=torch.uint8)).tolist()
    [129, 1]
    """
    columns = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    packed = columns[:, 0].clone()
    for place in range(1, 8):
        packed |= columns[:, place] << place
    return packed


def unpack_bits(packed: Tensor, *, num_bits: int) -> Tensor:
    """Return the bits that `pack_bits` packed, as a uint8 tensor of zeros and ones.

    >>> unpack_bits(torch.tensor([129, 1], dtype=torch.uint8), num_bits=9).tolist()
    [1, 0, 0, 0, 0, 0, 0, 1, 1]
    """
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (packed.unsqueeze(1) >> shifts).bitwise_and_(1).view(-1)[:num_bits]


def pack_places(places: Tensor, *, among: int) -> Tensor:
    """Pack rising ``places`` [k] (int64) in ``range(among)`` into bytes, as many as `place_bits` says."""
    kept = len(places)
    low = elias_fano_low_bits(kept, among=among)
    if place_bits(kept, among=among) == among:
        bits = torch.zeros(among, dtype=torch.uint8, device=places.device)
        bits[places] = 1
        return pack_bits(bits)
    order = torch.arange(kept, device=places.device)
    high_bits = torch.zeros(kept + (among - 1 >> low), dtype=torch.uint8, device=places.device)
    high_bits[(places >> low) + order] = 1
    shifts = torch.arange(low, device=places.device)
    low_bits = (places.unsqueeze(1) >> shifts).bitwise_and_(1).to(torch.uint8).view(-1)
    return pack_bits(torch.cat([low_bits, high_bits]))


def unpack_places(packed: Tensor, *, num_places: int, among: int) -> Tensor:
    """Return the places that `pack_places` packed.

    >>> packed = pack_places(torch.tensor([3, 64, 65, 999]), among=1_000)
    >>> len(packed), unpack_places(packed, num_places=4, among=1_000).tolist()
    (5, [3, 64, 65, 999])
    """
    num_bits = place_bits(num_places, among=among)
    bits = unpack_bits(packed, num_bits=num_bits)
    if num_bits == among:
        return bits.nonzero().squeeze(1)
    low = elias_fano_low_bits(num_places, among=among)
    shifts = torch.arange(low, device=packed.device)
    low_parts = (bits[: num_places * low].view(num_places, low).long() << shifts).sum(1)
    high_parts = bits[num_places * low :].nonzero().squeeze(1) - torch.arange(num_places, device=packed.device)
    return (high_parts << low) + low_parts


_MAGNITUDE = 0x7FFF_FFFF


class TopKCodec(Codec):
    """Payload: k numbers in the order of their places, in float32 or two bits, then the places, as bytes."""

    summable = False

    def __init__(self, compression: TopK, *, num_elements: int) -> None:
        self.num_elements = num_elements
        self._num_kept = compression.num_kept(num_elements)
        self._two_bits = None if compression.bits != 2 else TwoBitsCodec(TwoBits(), num_elements=self._num_kept)
        self._chunk = num_elements if compression.chunk is None else min(compression.chunk, num_elements)
        self._kept_of = compression.num_kept
        self._num_bytes = 4 * self._num_kept
        if self._two_bits is not None:
            self._num_bytes = -(-TwoBits().payload_bits(self._num_kept) // 8)

    def encode(self, update: Tensor, *, clock: int) -> Tensor:
        """Take the largest; of equal ones at the threshold, the first."""
        numbers = update.float()
        places = self._largest(numbers)
        largest = numbers[places]
        sent = largest.view(torch.uint8) if self._two_bits is None else self._two_bits.encode(largest, clock=clock)
        return torch.cat([sent, pack_places(places, among=self.num_elements)])

    def _largest(self, numbers: Tensor) -> Tensor:
        # the bits of magnitudes, read as integers, are in the order of the magnitudes, and NaN is above them all
        magnitudes = numbers.view(torch.int32) & _MAGNITUDE
        if self._chunk == self.num_elements:
            return _largest_of(magnitudes, self._num_kept)
        # whole chunks all at once, and what is left of them
        whole = self.num_elements // self._chunk * self._chunk
        rows = magnitudes[:whole].view(-1, self._chunk)
        number = self._kept_of(self._chunk)
        threshold = rows.topk(number).values[:, -1:]
        chosen = rows >= threshold
        if int(chosen.sum()) > number * len(rows):  # of equal ones, the first
            above, equal = rows > threshold, rows == threshold
            chosen = above | equal & (equal.cumsum(-1) <= number - above.sum(-1, keepdim=True))
        places = [chosen.view(-1).nonzero().squeeze(1)]
        if whole < self.num_elements:
            places.append(whole + _largest_of(magnitudes[whole:], self._kept_of(self.num_elements - whole)))
        return torch.cat(places)

    def add(self, payload: Tensor, *, to: Tensor, clock: int, scale: float = 1.0) -> None:
        sent = payload[: self._num_bytes]
        numbers = sent.view(torch.float32) if self._two_bits is None else self._two_bits.decode(sent, clock=clock)
        places = unpack_places(payload[self._num_bytes :], num_places=self._num_kept, among=self.num_elements)
        to.index_add_(0, places, numbers.to(to.dtype), alpha=scale)


def _largest_of(magnitudes: Tensor, number: int) -> Tensor:
    """Return the rising places of the largest; of equal ones at the threshold, the first."""
    threshold = _smallest_of_largest(magnitudes, number)
    places = (magnitudes >= threshold).nonzero().squeeze(1)
    surplus = len(places) - number
    if surplus == 0:
        return places
    at_threshold = (magnitudes[places] == threshold).nonzero().squeeze(1)
    keep = torch.ones(len(places), dtype=torch.bool, device=places.device)
    keep[at_threshold[-surplus:]] = False
    return places[keep]


def _smallest_of_largest(magnitudes: Tensor, number: int) -> int:
    index = len(magnitudes) - number
    if magnitudes.device.type == "cpu":  # four times as fast as kthvalue
        return int(np.partition(magnitudes.numpy(), index)[index])
    return int(magnitudes.kthvalue(index + 1).values)
