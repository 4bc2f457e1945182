"""A codec: a flat update in, a small tensor of the length of its closed form out, and back."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor


class Codec(ABC):
    """Turns flat updates of one length into payloads, and adds payloads up.

    A payload that is *summable* is a tensor whose sum over the ranks is the payload of the sum, so that an all-reduce
    can make it. Others are bytes, and are gathered.
    """

    summable: bool
    payload_dtype: torch.dtype = torch.uint8
    num_elements: int

    @abstractmethod
    def encode(self, update: Tensor, *, clock: int) -> Tensor:
        """Encode ``update`` [num_elements], which is left as it is.

        The same update, seed, rank and clock give the same payload, to the bit. The payload of an update of NaN alone
        decodes to NaN alone.
        """

    @abstractmethod
    def add(self, payload: Tensor, *, to: Tensor, clock: int, scale: float = 1.0) -> None:
        """Add ``scale`` times what ``payload`` says to the flat tensor ``to``."""

    def decode(self, payload: Tensor, *, clock: int) -> Tensor:
        decoded = torch.zeros(self.num_elements, device=payload.device)
        self.add(payload, to=decoded, clock=clock)
        return decoded


def generator_of(*key: int, device: torch.device) -> torch.Generator:
    """Return a generator whose numbers depend on ``key`` alone, such as (seed, rank, clock), on this kind of device."""
    [seed] = np.random.SeedSequence(key).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(seed))
