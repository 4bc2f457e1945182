"""Rounds every number to 16 bits, as torch's own `fp16_compress_hook` and `bf16_compress_hook` do."""

import torch
from torch import Tensor

from plesio.policies.compression import HalfPrecision
from plesio.runtime.parameters.codecs.codec import Codec


class HalfPrecisionCodec(Codec):
    """Payload: ``[num_elements]`` of float16 or bfloat16."""

    summable = True

    def __init__(self, compression: HalfPrecision, *, num_elements: int) -> None:
        self.num_elements = num_elements
        self.payload_dtype = torch.float16 if compression.form == "fp16" else torch.bfloat16

    def encode(self, update: Tensor, *, clock: int) -> Tensor:
        return update.to(self.payload_dtype)

    def add(self, payload: Tensor, *, to: Tensor, clock: int, scale: float = 1.0) -> None:
        to.add_(payload.to(to.dtype), alpha=scale)
