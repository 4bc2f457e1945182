"""Mixing matrices: how replicas that talk to their neighbours alone come to agree.

Replica s becomes the weighted mean of itself and its neighbours, ``x_s <- sum_r P_sr x_r``. With a symmetric, doubly
stochastic P the mean over all replicas stays as it is, and if the graph is connected their distance from it shrinks by
the second largest absolute value of an eigenvalue, ``rho``, at each mixing; ``1 - rho`` is the *spectral gap* (Xiao and
Boyd 2004; Nedic and Ozdaglar 2009).

A mixing whose result is applied n mixings late is ``x_{j+1} = x_j + (P - I) x_{j-n}``. A mode with eigenvalue lambda
shrinks if and only if ``1 - lambda < 2 sin(pi / (2 (2n + 1)))``, the stability limit of a delayed first-order recursion
(Levin and May 1976).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from plesio.core.errors import ConfigError, nearest

GraphName = Literal["all", "ring", "exponential"]
GRAPHS: tuple[GraphName, ...] = get_args(GraphName)
_TOLERANCE = 1e-8


@dataclass(frozen=True, slots=True)
class Mixing:
    """A mixing matrix.

    Attributes:
        name: Name of its graph, or ``matrix``.
        matrix: P, rows of weights.
    """

    name: str
    matrix: tuple[tuple[float, ...], ...]

    @classmethod
    def on(cls, graph: str, size: int) -> "Mixing":
        """Give equal weights to a replica and its neighbours on a named graph.

        ``all``: everybody's neighbour. ``ring``: the next on either side. ``exponential``: those 1, 2, 4 ... places
        away on either side.

        >>> Mixing.on("ring", 4).matrix[0]
        (0.3333333333333333, 0.3333333333333333, 0.0, 0.3333333333333333)
        >>> round(Mixing.on("ring", 4).spectral_gap, 4)
        0.6667

        Raises:
            ConfigError: There is no such graph.
        """
        distances = {
            "all": range(1, size),
            "ring": (1,),
            "exponential": [2**power for power in range(size.bit_length()) if 2**power < size],
        }
        if graph not in distances:
            raise ConfigError(f'there is no graph "{graph}" to mix on; {nearest(graph, GRAPHS)}')
        rows = []
        for place in range(size):
            near = {place} | {(place + sign * far) % size for far in distances[graph] for sign in (1, -1)}
            rows.append(tuple(1 / len(near) if other in near else 0.0 for other in range(size)))
        return cls(graph, tuple(rows))

    @classmethod
    def given(cls, matrix: Sequence[Sequence[float]]) -> "Mixing":
        """Check a matrix of the user's and mix by it.

        >>> Mixing.given([[0.5, 0.5], [0.5, 0.5]]).spectral_gap
        1.0

        Raises:
            ConfigError: It is not square, symmetric and doubly stochastic, its graph is not connected, or its spectral
                gap is 0.
        """
        rows = tuple(tuple(float(weight) for weight in row) for row in matrix)
        if not rows or any(len(row) != len(rows) for row in rows):
            raise ConfigError(f"a mixing matrix is square; this one has rows of {[len(row) for row in rows]}")
        values = np.array(rows)
        if not np.all(np.isfinite(values)) or values.min() < -_TOLERANCE:
            raise ConfigError("a mixing matrix has weights of 0 and more; one of these is negative, or no number")
        for place, total in enumerate(values.sum(axis=1)):
            if abs(total - 1) > 1e-6:
                raise ConfigError(f"a mixing matrix is doubly stochastic; its row {place} adds up to {total:g}, not 1")
        if not np.allclose(values, values.T, atol=1e-6):
            row, column = np.unravel_index(np.argmax(abs(values - values.T)), values.shape)
            raise ConfigError(
                f"a mixing matrix is symmetric; this one has {values[row, column]:g} at ({row}, {column}) and "
                f"{values[column, row]:g} at ({column}, {row})"
            )
        values = (values + values.T) / 2  # what is within the tolerance would move the replicas' mean
        mixing = cls("matrix", tuple(tuple(float(weight) for weight in row) for row in values))
        cut_off = mixing.unreached(lost=())
        if cut_off:
            raise ConfigError(
                f"the mixing matrix's graph is not connected: group {cut_off[0]} never hears of group 0; "
                "give some pair of their parts a weight"
            )
        if mixing.spectral_gap < _TOLERANCE:
            raise ConfigError(
                "the mixing matrix has a spectral gap of 0: its groups pass their weights to and fro and never agree; "
                "give some group a weight of its own, on the diagonal"
            )
        return mixing

    def among(self, places: Sequence[int], *, num_joined: int = 0) -> "Mixing":
        """Return the mixing of the replicas at ``places``, and of others after them: the same graph at the new size.

        A given matrix is restricted to the replicas that are left: each keeps the weight that it gave to the lost ones,
        so that the matrix stays symmetric and doubly stochastic, and no mode of it shrinks more slowly than before
        (Cauchy's interlacing).

        >>> Mixing.given([[0.5, 0.5, 0.0], [0.5, 0.25, 0.25], [0.0, 0.25, 0.75]]).among([0, 1]).matrix
        ((0.5, 0.5), (0.5, 0.5))
        """
        if self.name != "matrix":
            return Mixing.on(self.name, len(places) + num_joined)
        assert not num_joined, "a matrix has no row for them"
        rows = []
        for place in places:
            row = [self.matrix[place][other] for other in places]
            row[places.index(place)] += 1.0 - sum(row)
            rows.append(tuple(row))
        return Mixing(self.name, tuple(rows))

    @property
    def size(self) -> int:
        """Replicas."""
        return len(self.matrix)

    @property
    def rho(self) -> float:
        """By what the distance from the mean shrinks at each mixing; 0 for a replica by itself."""
        others = np.sort(np.linalg.eigvalsh(np.array(self.matrix)))[:-1]
        return float(abs(others).max(initial=0.0))

    @property
    def spectral_gap(self) -> float:
        """``1 - rho``."""
        return 1.0 - self.rho

    def neighbours(self, place: int) -> dict[int, float]:
        """Return the weight of each replica with which this one mixes."""
        return {other: weight for other, weight in enumerate(self.matrix[place]) if other != place and weight > 0}

    def unreached(self, *, lost: Sequence[int]) -> list[int]:
        """Return the replicas that have no way to the first one that is left, if ``lost`` are gone."""
        left = [place for place in range(self.size) if place not in lost]
        reached, border = set(left[:1]), left[:1]
        while border:
            border = [
                other for place in border for other in self.neighbours(place) if other in left and other not in reached
            ]
            reached.update(border)
        return [place for place in left if place not in reached]

    def most_mixings_late(self) -> int:
        """Return how many mixings late the result of one may be applied at most without replicas drifting apart."""
        widest = 1.0 - float(np.linalg.eigvalsh(np.array(self.matrix))[0])
        late = 0
        while widest < 2 * math.sin(math.pi / (2 * (2 * (late + 1) + 1))) - _TOLERANCE and late < 1000:
            late += 1
        return late
