"""Some of the numbers: the largest, or random ones.

How the places of the largest are written: in Elias-Fano's code (Elias 1974, Fano 1971). For k places in rising order
among n, the ``l = ⌊log2(n/k)⌋`` low bits are written as they are, and the high parts as one string of ``k +
⌊(n-1)/2^l⌋`` bits with a one for each place: the i-th one stands at i plus the i-th place's high part. So the length is
known beforehand, which an all-gather of equal parts needs (a Golomb code's is not), and it is within about half a bit a
place of the entropy: at a hundredth of 259,008 it takes 8.6 bits a place, where plain indices take 18. If it is longer
than a bitmap (from about a third of all places on), a bitmap is written.
"""

import math
from abc import ABC
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, ClassVar, Literal

from plesio.core.within import AT_LEAST_1, Within
from plesio.policies.compression.stage import (
    FLOAT_BITS,
    FLOAT_BYTES,
    Collective,
    Lossy,
    Shapes,
    num_elements,
    write_number,
)
from plesio.policies.compression.two_bits import TwoBits

CHUNK = 4096
"""Numbers of a chunk where none is named."""


def elias_fano_low_bits(num_places: int, *, among: int) -> int:
    """Return ``⌊log2(n/k)⌋``: how many bits of each place Elias-Fano's code writes as they are."""
    return (among // num_places).bit_length() - 1


def place_bits(num_places: int, *, among: int) -> int:
    """Return the bits that give ``num_places`` of ``among`` numbers, by Elias-Fano's code or a bitmap if shorter.

    >>> place_bits(2591, among=259_008), place_bits(50, among=100)
    (22183, 100)
    """
    low = elias_fano_low_bits(num_places, among=among)
    return min(among, num_places * (low + 1) + (among - 1 >> low))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sparse(Lossy, ABC):
    density: Annotated[float, Within(0, 1, without="low")]
    name: ClassVar[str]

    @property
    def head(self) -> str:
        return f"{self.name}:{write_number(self.density)}"

    def num_kept(self, shapes: Shapes) -> int:
        """Return ``k = ⌈ρn⌉``, with ρ as it is written: 0.07 of 100 are 7."""
        return math.ceil(Fraction(repr(float(self.density))) * num_elements(shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(_Sparse):
    """The largest in magnitude of all numbers together (not of each tensor), or of each chunk, and their places.

    In chunks every part of a model sends some, as in SparseLoCo (2508.15706): 64 of each 4096, in two bits.

    Args:
        density: ρ, the share that is sent; of each chunk, rounded up.
        chunk: Numbers of a chunk; None: all are one.
        bits: Bits of a number that is sent.

    >>> TopK(density=0.01).payload_bits(1_000_000) / 10_000
    40.5624
    >>> sparse = TopK(density=1 / 64, chunk=4096, bits=2)
    >>> sparse.spec, sparse.num_kept(409_600), round(sparse.payload_bits(409_600) / 6400, 2)
    ('topk:0.015625+chunks+bits:2', 6400, 10.13)
    """

    name: ClassVar[str] = "topk"

    chunk: Annotated[int, AT_LEAST_1] | None = None
    bits: Literal[2, 32] = 32

    @property
    def head(self) -> str:
        chunks = {None: "", CHUNK: "+chunks"}.get(self.chunk, f"+chunks:{self.chunk}")
        bits = "" if self.bits == FLOAT_BITS else f"+bits:{self.bits}"
        return f"{self.name}:{write_number(self.density)}{chunks}{bits}"

    def num_kept(self, shapes: Shapes) -> int:
        """Return ``⌈ρn⌉``, of each chunk."""
        if self.chunk is None:
            return _Sparse.num_kept(self, shapes)
        whole, rest = divmod(num_elements(shapes), self.chunk)
        return whole * _Sparse.num_kept(self, self.chunk) + _Sparse.num_kept(self, rest)

    def payload_bits(self, shapes: Shapes) -> int:
        """Return the bits of the numbers, and those of their places among all."""
        kept = self.num_kept(shapes)
        numbers = FLOAT_BITS * kept if self.bits == FLOAT_BITS else 8 * -(-TwoBits().payload_bits(kept) // 8)
        return numbers + place_bits(kept, among=num_elements(shapes))

    def contraction(self, shapes: Shapes) -> float:
        """Return ``k / n``: the largest are, in the mean, no smaller than the others; of what two bits keep of them."""
        kept = self.num_kept(shapes)
        return kept / num_elements(shapes) * (1.0 if self.bits == FLOAT_BITS else TwoBits().contraction(kept))

    def collectives(self, shapes: Shapes, *, num_ranks: int) -> tuple[Collective, ...]:
        """Return one all-gather: ranks choose different places."""
        num_bytes = -(-self.payload_bits(shapes) // 8) + self.feedback
        return (Collective("all_gather", num_ranks * num_bytes),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomK(_Sparse):
    """Numbers at random places, one in each of k equal blocks.

    The places follow from the run's seed and the clock, which all ranks know, so none is sent, and numbers of equal
    places are added up on the way. One in each block, and not any k of n as in Stich et al. 2018: a number is sent as
    often, so δ and the variance are the same, and drawing takes time for k numbers and not for n. Without feedback what
    is sent is multiplied by its block's size, which makes it unbiased.

    Args:
        density: ρ, the share that is sent.
    """

    name: ClassVar[str] = "randk"
    on_store: ClassVar[bool] = False

    def payload_bits(self, shapes: Shapes) -> int:
        return FLOAT_BITS * self.num_kept(shapes)

    def contraction(self, shapes: Shapes) -> float:
        """Return one over the size of the largest block, about ``k / n``; meant for feedback, without a factor."""
        return 1 / -(-num_elements(shapes) // self.num_kept(shapes))

    def collectives(self, shapes: Shapes, *, num_ranks: int) -> tuple[Collective, ...]:
        return (Collective("all_reduce", FLOAT_BYTES * (self.num_kept(shapes) + self.feedback)),)
