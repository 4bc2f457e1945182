"""Blocks of tensors: the part of a tensor that one rank of an island holds, and where it lies in a server's slices.

A server keeps a tensor flattened, cut where its neighbour begins (`layout`); a rank keeps a box of it, as a `DTensor`
that is sharded along some dimensions does. Seen as a matrix of rows of ``width`` elements, a box that is a part of one
dimension, or of the first and one more, is a range of rows times a range of columns:

    Shard(0) of [6, 4], the second of three      elements 8 to 15, without a gap: rows of one element each
    Shard(1) of [6, 4], the second of two        rows 0 to 5, columns 2 and 3 of 4

The elements of a box that lie in a slice come one after the other in the rank's own tensor too. So a rank's part of a
slice is again a range, of its own flattened tensor, and goes over the wire without a table of places.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch


@dataclass(frozen=True, slots=True)
class TensorBlock:
    """Rows ``row`` to ``row + num_rows`` times columns ``column`` to ``column + num_columns`` of rows of ``width``.

    >>> TensorBlock.of_box((6, 4), offsets=(2, 0), sizes=(2, 4))
    TensorBlock(width=1, row=8, num_rows=8, column=0, num_columns=1)
    >>> TensorBlock.of_box((6, 4), offsets=(0, 2), sizes=(6, 2))
    TensorBlock(width=4, row=0, num_rows=6, column=2, num_columns=2)
    """

    width: int
    row: int
    num_rows: int
    column: int
    num_columns: int

    @classmethod
    def of_box(cls, shape: Sequence[int], *, offsets: Sequence[int], sizes: Sequence[int]) -> Self | None:
        """Return the block of this box of a tensor; None if it is a part of other dimensions than described above."""
        cut = [dim for dim, (size, whole) in enumerate(zip(sizes, shape, strict=True)) if size != whole]
        last = cut[-1] if cut else 0
        first = cut[0] if len(cut) == 2 else last
        between = math.prod(shape[first + 1 : last])
        if len(cut) > 2 or (first < last and math.prod(shape[:first]) > 1):
            return None
        width, inner = math.prod(shape[last:]), math.prod(shape[last + 1 :])
        if not shape:
            return cls(width=1, row=0, num_rows=1, column=0, num_columns=1)
        rows = 0, math.prod(shape[:last])
        if first < last:
            rows = offsets[first] * between, sizes[first] * between
        columns = offsets[last] * inner, sizes[last] * inner
        if rows[1] == 1 or columns[1] == width:  # without a gap
            return cls(
                width=1, row=rows[0] * width + columns[0], num_rows=rows[1] * columns[1], column=0, num_columns=1
            )
        return cls(width=width, row=rows[0], num_rows=rows[1], column=columns[0], num_columns=columns[1])

    @property
    def numel(self) -> int:
        return self.num_rows * self.num_columns

    def share(self, number: int, *, of: int) -> "TensorBlock":
        """Return the ``number``-th of so many parts with about equally many rows."""
        begin, end = (self.num_rows * k // of for k in (number, number + 1))
        return TensorBlock(self.width, self.row + begin, end - begin, self.column, self.num_columns)

    def within(self, start: int, stop: int) -> tuple[int, int]:
        """Return which of the block's elements lie between ``start`` and ``stop`` of the flattened tensor.

        >>> TensorBlock(width=4, row=0, num_rows=6, column=2, num_columns=2).within(3, 11)
        (1, 5)
        """
        return self._before(start), self._before(stop)

    def _before(self, position: int) -> int:
        row, column = divmod(position, self.width)
        if row < self.row:
            return 0
        if row >= self.row + self.num_rows:
            return self.numel
        return (row - self.row) * self.num_columns + min(max(column - self.column, 0), self.num_columns)

    def views(self, flat: torch.Tensor, *, start: int, stop: int) -> Iterator[torch.Tensor]:
        """Yield the block's elements that lie in a slice, in order, as at most three matrices that share its memory."""
        position, end = self.within(start, stop)
        while position < end:
            row, column = divmod(position, self.num_columns)
            whole = (end - position) // self.num_columns if column == 0 else 0
            num_rows, num_columns = (
                (whole, self.num_columns) if whole else (1, min(end - position, self.num_columns - column))
            )
            first = (self.row + row) * self.width + self.column + column - start
            yield flat.as_strided((num_rows, num_columns), (self.width, 1), flat.storage_offset() + first)
            position += num_rows * num_columns
