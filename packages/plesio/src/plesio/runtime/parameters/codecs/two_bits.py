"""Sends every number as its sign and one of two magnitudes (`plesio.policies.compression.two_bits`)."""

import torch
from torch import Tensor

from plesio.policies.compression import TwoBits
from plesio.runtime.parameters.codecs.codec import Codec

_LARGE = 2
"""The bit of a large number; the lowest bit is that of a negative one."""


class TwoBitsCodec(Codec):
    """Payload: for each bucket the lower and the higher magnitude (float32), then the numbers, four to a byte."""

    summable = False

    def __init__(self, compression: TwoBits, *, num_elements: int) -> None:
        self.num_elements = num_elements
        self._bucket, self._threshold = compression.bucket, compression.threshold
        self._num_buckets = -(-num_elements // compression.bucket)

    def encode(self, update: Tensor, *, clock: int) -> Tensor:
        """Encode ``[..., num_elements]`` to ``[..., bytes]``."""
        buckets = self._buckets(update.float())
        magnitudes = buckets.abs()
        # in 64 bits, for sums of large numbers; zeros that fill the last bucket are no numbers of it
        totals = magnitudes.sum(-1, dtype=torch.float64)
        sizes = totals.new_full((self._num_buckets,), self._bucket)
        sizes[-1] -= self._num_buckets * self._bucket - self.num_elements
        large = magnitudes > (totals / sizes * self._threshold).unsqueeze(-1)
        num_large = large.sum(-1)
        above = torch.where(large, magnitudes, 0.0).sum(-1, dtype=torch.float64)
        higher = above / num_large.clamp(min=1)
        lower = (totals - above) / (sizes - num_large).clamp(min=1)
        codes = (buckets < 0).to(torch.uint8) | (large.to(torch.uint8) * _LARGE)
        pair = torch.stack([lower, higher], -1).float().flatten(-2).view(torch.uint8)
        return torch.cat([pair, _packed(codes.flatten(-2)[..., : self.num_elements])], -1)

    def _buckets(self, numbers: Tensor) -> Tensor:
        padding = self._num_buckets * self._bucket - self.num_elements
        padded = torch.nn.functional.pad(numbers, (0, padding))
        return padded.view(*numbers.shape[:-1], self._num_buckets, self._bucket)

    def add(self, payload: Tensor, *, to: Tensor, clock: int, scale: float = 1.0) -> None:
        """Add ``scale`` times what ``payload [..., bytes]`` says to ``to [..., num_elements]``."""
        num_bytes = 8 * self._num_buckets
        # copied, as a float32 may not begin anywhere
        pair = payload[..., :num_bytes].clone(memory_format=torch.contiguous_format).view(torch.float32)
        pair = pair.view(*payload.shape[:-1], self._num_buckets, 2)
        codes = self._buckets(_unpacked(payload[..., num_bytes:], number=self.num_elements))
        numbers = torch.where(codes >= _LARGE, pair[..., 1:], pair[..., :1])
        numbers = torch.where((codes & 1).bool(), -numbers, numbers)
        to.add_(numbers.flatten(-2)[..., : self.num_elements], alpha=scale)


def _packed(codes: Tensor) -> Tensor:
    """Pack codes of two bits ``[..., n]``, four to a byte ``[..., ⌈n/4⌉]``, the first lowest."""
    fours = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % 4)).view(*codes.shape[:-1], -1, 4)
    return fours[..., 0] | (fours[..., 1] << 2) | (fours[..., 2] << 4) | (fours[..., 3] << 6)


def _unpacked(packed: Tensor, *, number: int) -> Tensor:
    fours = torch.stack([packed, packed >> 2, packed >> 4, packed >> 6], -1)
    return fours.bitwise_and_(3).flatten(-2)[..., :number]
