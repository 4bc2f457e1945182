"""The interface of all compressions, and the one that compresses nothing."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from plesio.core.errors import PolicySpecError
from plesio.core.within import ABOVE_0
from plesio.policies.fields import check_policy

Shapes = int | Sequence[Sequence[int]]
"""Shapes of the tensors that lie one after the other in a flat one, or the number of its elements."""
FLOAT_BYTES = 4
FLOAT_BITS = 8 * FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of an exchange.

    Attributes:
        operation: Kind of collective.
        num_bytes: S, as `plesio.cost` counts it: the bytes of the reduced tensor, of all gathered parts together, or of
            one rank's messages to all others.
    """

    operation: Literal["all_reduce", "all_gather", "all_to_all"]
    num_bytes: int

    def sent_bytes(self, *, num_ranks: int) -> int:
        """Return the bytes that each rank of a ring sends: ``2(n-1)/n S``, or ``(n-1)/n S`` without sums."""
        passes = 2 if self.operation == "all_reduce" else 1
        return round(passes * (num_ranks - 1) / num_ranks * self.num_bytes)


def num_elements(shapes: Shapes) -> int:
    """Return how many numbers tensors of these shapes have together.

    >>> num_elements([(4, 3), (4,)])
    16
    """
    return shapes if isinstance(shapes, int) else sum(math.prod(shape) for shape in shapes)


class Compression(ABC):
    """A stage of an exchange: the part of an update that is sent. Frozen; closed forms are for float32 tensors.

    Attributes:
        cuts: True if slices of an update can be compressed one by one, with as much gain as the whole.
        on_store: True if a payload can be read by itself, as a server does.
    """

    __slots__ = ()

    cuts: ClassVar[bool] = True
    on_store: ClassVar[bool] = True

    @property
    @abstractmethod
    def spec(self) -> str:
        """The text that `parse_compression` turns into an equal value."""

    @property
    def head(self) -> str:
        """The spec without feedback and guard."""
        return self.spec

    @property
    @abstractmethod
    def keeps_residual(self) -> bool:
        """True if the part that was not sent is added to the next update."""

    @abstractmethod
    def payload_bits(self, shapes: Shapes) -> int:
        """Return the bits that one rank contributes to an exchange; places and scales are among them.

        It is packed into ``⌈bits / 8⌉`` bytes. With feedback the exchange carries one number or byte more, by which a
        rank asks for a flush; `collectives` has that as well.
        """

    @abstractmethod
    def contraction(self, shapes: Shapes) -> float:
        """Return δ, the least share of ``‖x‖²`` that is sent of any x; in the mean, if the codec is random."""

    @abstractmethod
    def collectives(self, shapes: Shapes, *, num_ranks: int) -> tuple[Collective, ...]:
        """Return the collectives of one exchange, in their order."""

    def sent_bytes(self, shapes: Shapes, *, num_ranks: int) -> int:
        """Return the bytes that each rank sends in one exchange, all collectives being rings.

        >>> from plesio.policies.compression import parse_compression
        >>> specs = [parse_compression(text) for text in ("none", "fp16", "topk:0.01", "qsgd:8")]
        >>> [spec.sent_bytes(1_000_000, num_ranks=2) for spec in specs]
        [4000000, 2000000, 50704, 1007816]

        The more ranks, the less an all-gather saves (top-k); sums by parts save the same (QSGD):

        >>> [spec.sent_bytes(1_000_000, num_ranks=8) for spec in specs]
        [7000000, 3500000, 354928, 1763720]
        """
        return sum(each.sent_bytes(num_ranks=num_ranks) for each in self.collectives(shapes, num_ranks=num_ranks))

    def residual_limit(self, shapes: Shapes) -> float:
        """Return the largest ratio of the residual's norm to the updates' mean norm: ``2√(1-δ)/δ``, and at least 1."""
        delta = self.contraction(shapes)
        return max(1.0, 2 * math.sqrt(1 - delta) / delta)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCompression(Compression):
    """Sends everything as it is."""

    spec: ClassVar[str] = "none"
    keeps_residual: ClassVar[bool] = False

    def payload_bits(self, shapes: Shapes) -> int:
        return FLOAT_BITS * num_elements(shapes)

    def contraction(self, shapes: Shapes) -> float:
        return 1.0

    def collectives(self, shapes: Shapes, *, num_ranks: int) -> tuple[Collective, ...]:
        return (Collective("all_reduce", FLOAT_BYTES * num_elements(shapes)),)


NO_COMPRESSION = NoCompression()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lossy(Compression):
    """A compression that loses something; `PolicySpecError` for a value that it cannot have.

    Args:
        feedback: True if the part that was not sent is added to the next update.
        guard: Multiple of the average ‖x‖ beyond which the residual is sent in full; None for the limit that the
            contraction allows (`residual_limit`).
    """

    feedback: bool = True
    guard: Annotated[float, ABOVE_0] | None = None
    feedback_by_default: ClassVar[bool] = True

    @property
    @abstractmethod
    def head(self) -> str:
        """The spec without feedback and guard, of which the spec is made."""

    @property
    def spec(self) -> str:
        parts = [self.head]
        if self.feedback != self.feedback_by_default:
            parts.append("feedback" if self.feedback else "no_feedback")
        if self.guard is not None:
            parts.append(f"guard:{write_number(self.guard)}")
        return "+".join(parts)

    @property
    def keeps_residual(self) -> bool:
        return self.feedback

    def residual_limit(self, shapes: Shapes) -> float:
        return Compression.residual_limit(self, shapes) if self.guard is None else self.guard

    def __post_init__(self) -> None:
        check_policy(self, f"{type(self).__name__}: ")
        if self.guard is not None and not self.feedback:
            raise PolicySpecError(f"{self.head}: without feedback there is nothing to guard; leave the guard out")


class SummedByParts(Lossy):
    """A compression whose mean is made by parts: every rank sums up an n-th, and encodes it once more.

    So the bytes sent do not grow with the ranks. Levels of different scales cannot be added up on the way, and
    gathering all ranks' would be n/2 times as much.
    """

    __slots__ = ()

    def collectives(self, shapes: Shapes, *, num_ranks: int) -> tuple[Collective, ...]:
        """Return an all-to-all of the parts, and an all-gather of their sums."""
        num_bytes = -(-self.payload_bits(-(-num_elements(shapes) // num_ranks)) // 8) + self.feedback
        return (Collective("all_to_all", num_ranks * num_bytes), Collective("all_gather", num_ranks * num_bytes))


def write_number(value: float) -> str:
    """Write a number without a "+", which begins an option, and without a needless ".0"."""
    return repr(float(value)).removesuffix(".0").replace("+", "")
