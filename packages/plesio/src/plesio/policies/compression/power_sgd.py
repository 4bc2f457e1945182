"""Matrices as products of two thin ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from plesio.core.within import AT_LEAST_1
from plesio.policies.compression.stage import FLOAT_BITS, FLOAT_BYTES, Collective, Lossy, Shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSgd(Lossy):
    """Compression of every matrix M to a product PQ' with R columns each, by one warm-started step of the power method.

    A tensor of shape (n, a, b, ...) is a matrix of n rows and ab... columns. It is factored where that is less to send,
    ``R(n + m) < nm``; otherwise it is sent in full, as vectors are.

    Args:
        rank: R; less where a matrix has fewer rows or columns.
    """

    cuts: ClassVar[bool] = False
    """A slice is no matrix."""
    on_store: ClassVar[bool] = False

    rank: Annotated[int, AT_LEAST_1]

    @property
    def head(self) -> str:
        return f"powersgd:{self.rank}"

    def factors(self, shape: Sequence[int]) -> tuple[int, int, int] | None:
        """Return the rows, columns and rank of a tensor's factors; None if it is sent in full.

        >>> PowerSgd(rank=2).factors((32, 16, 3, 3)), PowerSgd(rank=2).factors((32,))
        ((32, 144, 2), None)
        """
        if len(shape) < 2:
            return None
        rows, columns = shape[0], math.prod(shape[1:])
        rank = min(rows, columns, self.rank)
        return (rows, columns, rank) if rank * (rows + columns) < rows * columns else None

    def payload_bits(self, shapes: Shapes) -> int:
        """Return ``32 R(n + m)`` of each matrix that is factored, 32 of each other number."""
        return FLOAT_BITS * sum(self._num_sent(shapes))

    def contraction(self, shapes: Shapes) -> float:
        """Return the least ``R / min(n, m)``: the mean share of an unstructured matrix that a random start captures.

        There is no bound that holds for a start that was kept from the last time; in practice it captures far more.
        """
        found = [self.factors(shape) for shape in _shapes(shapes)]
        return min((rank / min(rows, columns) for rows, columns, rank in filter(None, found)), default=1.0)

    def collectives(self, shapes: Shapes, *, num_ranks: int) -> tuple[Collective, ...]:
        """Return an all-reduce of every P and of all that is sent in full, then one of every Q."""
        first, second = self._num_sent(shapes)
        sizes = (first + self.feedback, second) if second else (first + self.feedback,)
        return tuple(Collective("all_reduce", FLOAT_BYTES * size) for size in sizes)

    def _num_sent(self, shapes: Shapes) -> tuple[int, int]:
        """Return the numbers in every P and in what is sent in full, and in every Q."""
        first = second = 0
        for shape in _shapes(shapes):
            factors = self.factors(shape)
            first += math.prod(shape) if factors is None else factors[0] * factors[2]
            second += 0 if factors is None else factors[1] * factors[2]
        return first, second


def _shapes(shapes: Shapes) -> Sequence[Sequence[int]]:
    return ((shapes,),) if isinstance(shapes, int) else shapes
