"""Rounds every number at random to one of the two levels around it (QSGD; `plesio.policies.compression.qsgd`)."""

import torch
from torch import Tensor

from plesio.policies.compression import Qsgd
from plesio.runtime.parameters.codecs.codec import Codec, generator_of

_STREAM = 2
_ZERO = 1e-30
"""A bucket whose largest magnitude is no larger is sent as zeros: the reciprocal of its scale would overflow."""


class QsgdCodec(Codec):
    """Payload: a float32 scale for each bucket, then the levels: int8, or two of 4 bits in a byte, the first lower.

    A level is ``⌊v s/M + u⌋`` with u uniform in [0, 1), which is v s/M in the mean.

    Args:
        rank: Ranks round independently.
    """

    summable = False

    def __init__(self, compression: Qsgd, *, num_elements: int, seed: int, rank: int) -> None:
        self.num_elements = num_elements
        self._seed, self._rank = seed, rank
        self._bits, self._num_levels, self._bucket = compression.bits, compression.num_levels, compression.bucket
        self._num_buckets = -(-num_elements // compression.bucket)

    def encode(self, update: Tensor, *, clock: int) -> Tensor:
        """Round at random: ``[..., num_elements]`` to ``[..., bytes]``."""
        parts = update.shape[:-1]
        padding = self._num_buckets * self._bucket - self.num_elements
        buckets = torch.nn.functional.pad(update.float(), (0, padding)).view(*parts, self._num_buckets, self._bucket)
        scales = buckets.abs().amax(-1)
        steps = torch.where(scales > _ZERO, self._num_levels / scales, 0.0)
        generator = generator_of(_STREAM, self._seed, self._rank, clock, device=update.device)
        levels = torch.rand(buckets.shape, generator=generator, device=update.device)
        # clamped, as 127 + 0.99999997 is 128 in float32
        levels.addcmul_(buckets, steps.unsqueeze(-1)).floor_().clamp_(-self._num_levels, self._num_levels)
        packed = levels.view(*parts, -1)[..., : self.num_elements].to(torch.int8).view(torch.uint8)
        return torch.cat([scales.view(torch.uint8), packed if self._bits == 8 else _pack_nibbles(packed)], -1)

    def add(self, payload: Tensor, *, to: Tensor, clock: int, scale: float = 1.0) -> None:
        """Add ``scale`` times what ``payload [..., bytes]`` says to ``to [..., num_elements]``."""
        num_bytes = 4 * self._num_buckets
        # copied, as a float32 may not begin anywhere
        scales = payload[..., :num_bytes].clone(memory_format=torch.contiguous_format).view(torch.float32)
        packed = payload[..., num_bytes:]
        if self._bits == 4:
            packed = _unpack_nibbles(packed, number=self.num_elements)
        parts = payload.shape[:-1]
        levels = torch.zeros(*parts, self._num_buckets, self._bucket, device=payload.device)
        levels.view(*parts, -1)[..., : self.num_elements] = packed.view(torch.int8)
        levels.mul_((scales / self._num_levels).unsqueeze(-1))
        to.add_(levels.view(*parts, -1)[..., : self.num_elements], alpha=scale)


def _pack_nibbles(levels: Tensor) -> Tensor:
    """Pack the low halves of bytes ``[..., n]``, two to a byte ``[..., ⌈n/2⌉]``."""
    pairs = torch.nn.functional.pad(levels, (0, levels.shape[-1] % 2)).view(*levels.shape[:-1], -1, 2)
    return (pairs[..., 0] & 0xF) | (pairs[..., 1] << 4)


def _unpack_nibbles(packed: Tensor, *, number: int) -> Tensor:
    """Unpack the bytes ``[..., number]`` and restore their sign."""
    signed = packed.view(torch.int8)
    return torch.stack([(signed << 4) >> 4, signed >> 4], -1).flatten(-2)[..., :number]
