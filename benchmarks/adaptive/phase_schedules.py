"""Learning-rate schedules in pieces, whose boundaries are therefore known, and what they say about the phases."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Piece", "Schedule", "cosine", "exponential", "flat", "linear", "root", "warm_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a schedule: relative rates, one a step.

    Attributes:
        kind: Name of its shape.
        rates: The rates.
    """

    kind: str
    rates: tuple[float, ...]


def _piece(kind: str, num_steps: int, rate: Callable[[float], float]) -> Piece:
    return Piece(kind=kind, rates=tuple(rate(step / num_steps) for step in range(num_steps)))


def warm_up(num_steps: int, *, start: float = 0.0, top: float = 1.0, shape: str = "linear") -> Piece:
    """A rise from ``start`` (not itself) to ``top``: ``linear``, ``cosine``, or ``stairs`` of a fifth of it each."""
    rise: dict[str, Callable[[float], float]] = {
        "linear": lambda share: share + 1 / num_steps,
        "cosine": lambda share: (1 - math.cos(math.pi * (share + 1 / num_steps))) / 2,
        "stairs": lambda share: (math.floor(5 * share) + 1) / 5,
    }
    return _piece("warm_up", num_steps, lambda share: start + (top - start) * rise[shape](share))


def flat(num_steps: int, level: float = 1.0) -> Piece:
    """One rate."""
    return _piece("flat", num_steps, lambda _: level)


def cosine(num_steps: int, *, floor: float = 0.0, top: float = 1.0) -> Piece:
    """Half a cosine down to ``floor`` (Loshchilov & Hutter 2017)."""
    return _piece("cosine", num_steps, lambda share: floor + (top - floor) * (1 + math.cos(math.pi * share)) / 2)


def linear(num_steps: int, *, floor: float = 0.0, top: float = 1.0) -> Piece:
    """A straight line down to ``floor``."""
    return _piece("linear", num_steps, lambda share: top + (floor - top) * share)


def exponential(num_steps: int, *, floor: float, top: float = 1.0, every: int = 1) -> Piece:
    """Down to ``floor`` by a steady factor, once in ``every`` steps."""
    return _piece(
        "exponential",
        num_steps,
        lambda share: top * (floor / top) ** (int(share * num_steps) // every * every / num_steps),
    )


def root(num_steps: int, *, scale: int) -> Piece:
    """Down as 1 / sqrt(1 + step / scale) (Vaswani et al. 2017)."""
    return _piece("root", num_steps, lambda share: 1 / math.sqrt(1 + share * num_steps / scale))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Pieces one after the other; a *cycle* begins with the first, with a warm-up, and where a piece begins higher up.

    Two adjacent warm-ups are one.
    """

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, *pieces: Piece) -> "Schedule":
        """These pieces one after the other."""
        return cls(pieces)

    @property
    def rates(self) -> list[float]:
        """Relative rates, one a step."""
        return [rate for piece in self.pieces for rate in piece.rates]

    @property
    def num_steps(self) -> int:
        """Of the whole schedule."""
        return sum(len(piece.rates) for piece in self.pieces)

    @property
    def starts_with_warm_up(self) -> bool:
        """Whether its author has marked the first phase."""
        return self.pieces[0].kind == "warm_up"

    def ramps(self) -> list[tuple[int, int]]:
        """(first step, step after the last) of each warm-up."""
        return [(a, b) for piece, a, b in self._placed() if piece.kind == "warm_up"]

    def jumps(self) -> list[int]:
        """Steps at which the rate is suddenly higher."""
        rates = self.rates
        return [a for piece, a, _ in self._placed() if a and piece.kind != "warm_up" and rates[a] > 1.2 * rates[a - 1]]

    def drops(self) -> list[int]:
        """Steps at which the rate is suddenly lower, from one flat piece to the next."""
        pieces = [(piece, a) for piece, a, _ in self._placed()]
        return [a for (before, _), (piece, a) in itertools.pairwise(pieces) if before.kind == piece.kind == "flat"]

    def cycles(self) -> list[tuple[int, int]]:
        """(first step, step after the last) of each cycle."""
        starts = sorted({0, *self.jumps(), *(a for a, _ in self.ramps())})
        return list(itertools.pairwise([*starts, self.num_steps]))

    def budget_left(self) -> list[float]:
        """At each step, the share of its cycle's sum of rates that is still to be spent, this step included."""
        shares: list[float] = []
        rates = self.rates
        for first, end in self.cycles():
            left = list(itertools.accumulate(reversed(rates[first:end])))[::-1]
            shares += [value / left[0] for value in left]
        return shares

    def _placed(self) -> list[tuple[Piece, int, int]]:
        ends = list(itertools.accumulate(len(piece.rates) for piece in self.pieces))
        return [(piece, end - len(piece.rates), end) for piece, end in zip(self.pieces, ends, strict=True)]
