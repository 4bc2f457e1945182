"""Factors matrices into two thin ones by a step of the power method (PowerSGD, Vogels et al. 2019, algorithm 1).

    P = M Q,   sum P over the ranks,   P <- orthonormal columns of P,   Q = M' P,   sum Q over the ranks,   M ≈ P Q'

Sums over the ranks of P and Q are those of the sum of all M, so what is exchanged is the factored *sum*. Q is where the
next exchange begins, so over exchanges it is the power method (*warm start*).

The part that a rank could not send is ``M - P (M'P)'``, with its own M: that beyond the subspace of P, as in the
paper's algorithm 2. torch's `powerSGD_hook` subtracts the mean's P Q' from every rank's M instead. Both residuals have
the same mean over the ranks, so what is sent is the same but for rounding. But in torch's a rank's residual minus the
ranks' mean residual is the sum of all that its updates ever differed from the mean update: nothing sends that, and it
grows without end. Here residuals are guarded, so they hold only what is still to be sent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plesio.policies.compression import PowerSgd, num_elements
from plesio.runtime.parameters.codecs.codec import generator_of
from plesio.runtime.worker.exchange.replica import all_finite

_STREAM = 3


@dataclass(frozen=True, slots=True)
class _Matrix:
    """One that is factored; ``begin`` is its beginning in the flat update."""

    begin: int
    rows: int
    columns: int
    rank: int

    @property
    def end(self) -> int:
        return self.begin + self.rows * self.columns

    def of(self, update: Tensor) -> Tensor:
        return update[self.begin : self.end].view(self.rows, self.columns)


class Factoring:
    """The factors of one rank's updates, and where the next exchange begins.

    Two payloads an exchange: `first` has everything that is sent in full and every P, `second` every Q. Each is summed
    over the ranks before it is used.

    Args:
        seed: The run's; all ranks begin alike.
    """

    def __init__(self, compression: PowerSgd, *, shapes: Sequence[Sequence[int]], seed: int) -> None:
        self.num_elements = num_elements(shapes)
        self._matrices: list[_Matrix] = []
        self._whole: list[tuple[int, int]] = []
        begin = 0
        for shape in shapes:
            factors = compression.factors(shape)
            end = begin + num_elements([shape])
            if factors is not None:
                self._matrices.append(_Matrix(begin, *factors))
            elif self._whole and self._whole[-1][1] == begin:
                self._whole[-1] = (self._whole[-1][0], end)
            else:
                self._whole.append((begin, end))
            begin = end
        self._num_whole = sum(end - begin for begin, end in self._whole)
        generator = generator_of(_STREAM, seed, device=torch.device("cpu"))
        self._starts = [torch.randn(m.columns, m.rank, generator=generator) for m in self._matrices]

    @property
    def factors_something(self) -> bool:
        return bool(self._matrices)

    def first(self, update: Tensor) -> Tensor:
        """Return the first payload: the parts of ``update`` that are sent in full, and every P."""
        whole = [update[begin:end].float() for begin, end in self._whole]
        starts = zip(self._matrices, self._starts, strict=True)
        left = [matrix.of(update).float() @ _orthonormal(start.to(update.device)) for matrix, start in starts]
        return torch.cat([*whole, *(p.view(-1) for p in left)])

    def second(self, update: Tensor, bases: Sequence[Tensor]) -> Tensor:
        """Compute every Q of ``update``, from the ``bases`` of the summed first payload."""
        right = [matrix.of(update).float().T @ p for matrix, p in zip(self._matrices, bases, strict=True)]
        return torch.cat([q.reshape(-1) for q in right]) if right else torch.zeros(0, device=update.device)

    def bases(self, first: Tensor) -> list[Tensor]:
        """Return orthonormal columns that span each P of a first payload."""
        sizes = [(matrix.rows, matrix.rank) for matrix in self._matrices]
        return [_orthonormal(p) for p in _split(first[self._num_whole :], sizes)]

    def add(self, first: Tensor, bases: Sequence[Tensor], second: Tensor, *, to: Tensor) -> None:
        """Add to ``to`` what the payloads, summed or a rank's own, say."""
        at = 0
        for begin, end in self._whole:
            to[begin:end] += first[at : at + end - begin]
            at += end - begin
        for matrix, p, q in zip(self._matrices, bases, self._right(second), strict=True):
            matrix.of(to).add_(p @ q.T)

    def subtract(self, bases: Sequence[Tensor], second: Tensor, *, of: Tensor) -> None:
        """Make the rank's own update its residual: what it sent in full is zero, of matrices its own P Q' is taken."""
        for begin, end in self._whole:
            of[begin:end] = 0
        for matrix, p, q in zip(self._matrices, bases, self._right(second), strict=True):
            matrix.of(of).sub_(p @ q.T)

    def begin_next_at(self, second: Tensor) -> None:
        """Begin the next exchange with every Q of the summed second payload, unless it is not finite."""
        if not all_finite([second]):
            return
        self._starts = [q.clone() for q in self._right(second)]

    def _right(self, second: Tensor) -> Iterator[Tensor]:
        return _split(second, [(matrix.columns, matrix.rank) for matrix in self._matrices])


def _split(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> Iterator[Tensor]:
    at = 0
    for rows, columns in shapes:
        yield flat[at : at + rows * columns].view(rows, columns)
        at += rows * columns


def _orthonormal(matrix: Tensor) -> Tensor:
    """Return orthonormal columns that span those of ``matrix``; any, where it has too few."""
    basis: Tensor = torch.linalg.qr(matrix).Q
    return basis
