"""How the mean over the ranks is made: in full, of payloads that are summed, gathered or scattered, or of factors.

Each takes a rank's *share* of the mean (its update times its weight), so that the mean is the plain sum over the ranks,
and 16-bit sums stay in range. With feedback an exchange also carries whether any rank asks for a flush, so that all
ranks know it when the exchange is over and none has to be asked: one number more in a sum, one byte more in a part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from plesio.policies.compression import Collective
from plesio.runtime.worker.compression.codec import Codec
from plesio.runtime.worker.compression.power_sgd import Factoring
from plesio.runtime.worker.compression.qsgd import QsgdCodec
from plesio.runtime.worker.exchange.group import Gathering, Group, Work

__all__ = [
    "CountedGroup",
    "ExchangeOutcome",
    "FactoredMean",
    "FullMean",
    "GatheredMean",
    "Mean",
    "ScatteredMean",
    "SummedMean",
    "Transfer",
]


@dataclass(slots=True)
class CountedGroup:
    """The group's collectives, counted.

    Attributes:
        sent_bytes: Bytes that this rank has sent, every collective being a ring.
    """

    group: Group
    sent_bytes: int = 0

    def all_reduce(self, tensor: Tensor) -> Work:
        """Begin to overwrite ``tensor`` with the sum over the ranks."""
        self._count(Collective("all_reduce", tensor.numel() * tensor.element_size()))
        return self.group.all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> Gathering:
        """Begin to collect every rank's ``tensor``."""
        self._count(Collective("all_gather", self.group.size * tensor.numel() * tensor.element_size()))
        return self.group.all_gather(tensor)

    def all_to_all(self, rows: Tensor) -> Gathering:
        """Begin to send row r to rank r, and to collect all ranks' rows for this one."""
        self._count(Collective("all_to_all", rows.numel() * rows.element_size()))
        return self.group.all_to_all(rows)

    def _count(self, collective: Collective) -> None:
        self.sent_bytes += collective.sent_bytes(num_ranks=self.group.size)


@dataclass(frozen=True, slots=True)
class ExchangeOutcome:
    """The result of an exchange.

    Attributes:
        mean: Equal on all ranks.
        residual: The part of this rank's share that was not sent; None if it is nothing, or is not needed.
        asked: True if some rank asks for a flush.
    """

    mean: Tensor
    residual: Tensor | None = None
    asked: bool = False


class Transfer(Protocol):
    """An exchange under way."""

    def finish(self) -> ExchangeOutcome:
        """Return when it is over."""
        ...


class Mean(Protocol):
    """A way to make it."""

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        """Begin an exchange; ``share`` is given away.

        Args:
            share: This rank's, flat.
            clock: The exchange's.
            asks: Whether this rank asks for a flush.
        """
        ...


@dataclass(frozen=True, slots=True)
class FullMean:
    """An all-reduce of everything; nobody can ask for anything."""

    wire: CountedGroup

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        """Begin an exchange; ``share`` is given away."""
        return _Full(share, self.wire.all_reduce(share))


@dataclass(frozen=True, slots=True)
class _Full:
    share: Tensor
    work: Work

    def finish(self) -> ExchangeOutcome:
        self.work.wait()
        return ExchangeOutcome(self.share)


@dataclass(frozen=True, slots=True)
class SummedMean:
    """An all-reduce of summable payloads.

    Args:
        wire: To the other ranks.
        codec: Makes them.
        feedback: Whether residuals are kept.
    """

    wire: CountedGroup
    codec: Codec
    feedback: bool

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        """Begin an exchange; ``share`` is given away."""
        payload = self.codec.encode(share, clock=clock)
        buffer = torch.cat([payload, payload.new_full((1,), asks)]) if self.feedback else payload
        return _Summed(self, share, payload, buffer, clock, self.wire.all_reduce(buffer))


@dataclass(frozen=True, slots=True)
class _Summed:
    way: SummedMean
    share: Tensor
    payload: Tensor
    buffer: Tensor
    clock: int
    work: Work

    def finish(self) -> ExchangeOutcome:
        codec, feedback = self.way.codec, self.way.feedback
        mean = torch.zeros_like(self.share)
        if feedback:
            codec.add(self.payload, to=self.share, clock=self.clock, scale=-1.0)
        self.work.wait()
        codec.add(self.buffer[: len(self.payload)], to=mean, clock=self.clock)
        if not feedback:
            return ExchangeOutcome(mean)
        return ExchangeOutcome(mean, self.share, bool(self.buffer[-1] > 0))


@dataclass(frozen=True, slots=True)
class GatheredMean:
    """An all-gather of payloads, which every rank decodes and adds up in the order of the ranks.

    Args:
        wire: To the other ranks.
        codec: Makes them.
        feedback: Whether residuals are kept.
    """

    wire: CountedGroup
    codec: Codec
    feedback: bool

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        """Begin an exchange; ``share`` is given away."""
        payload = self.codec.encode(share, clock=clock)
        if self.feedback:  # behind it, for what is in it begins where a float32 may
            payload = torch.cat([payload, payload.new_full((1,), asks)])
        return _Gathered(self, share, payload, clock, self.wire.all_gather(payload))


@dataclass(frozen=True, slots=True)
class _Gathered:
    way: GatheredMean
    share: Tensor
    payload: Tensor
    clock: int
    gathering: Gathering

    def finish(self) -> ExchangeOutcome:
        codec, feedback = self.way.codec, self.way.feedback
        size = len(self.payload) - feedback
        mean = torch.zeros_like(self.share)
        if feedback:
            codec.add(self.payload[:size], to=self.share, clock=self.clock, scale=-1.0)
        parts = self.gathering.wait()
        for part in parts:
            # a part may begin anywhere in the memory of them all, and float32 numbers may not
            codec.add(part[:size].clone(), to=mean, clock=self.clock)
        if not feedback:
            return ExchangeOutcome(mean)
        return ExchangeOutcome(mean, self.share, any(bool(part[-1]) for part in parts))


@dataclass(frozen=True, slots=True)
class ScatteredMean:
    """Each rank sums up an n-th of the payloads, and what it finds is encoded once more and gathered.

    As 1-bit Adam has it (Tang et al. 2021, section 4.3). Only the first of the two goes on while the caller does
    something else. With feedback, what the second encoding leaves out is in the residual of the rank that did it.

    Args:
        wire: To the other ranks.
        codec: Made for an n-th, rounded up; rounds and adds up all parts at once.
        num_elements: Their number in all.
        feedback: Whether residuals are kept.
    """

    wire: CountedGroup
    codec: QsgdCodec
    num_elements: int
    feedback: bool

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        """Begin an exchange; ``share`` is given away."""
        size = self.wire.group.size
        parts = torch.nn.functional.pad(share, (0, size * self.codec.num_elements - self.num_elements)).view(size, -1)
        payloads = self.codec.encode(parts, clock=2 * clock)  # a stream of random numbers for each of two encodings
        if self.feedback:
            payloads = torch.cat([payloads, payloads.new_full((size, 1), asks)], 1)
        return _Scattered(self, parts, payloads, clock, self.wire.all_to_all(payloads))


@dataclass(frozen=True, slots=True)
class _Scattered:
    way: ScatteredMean
    parts: Tensor
    payloads: Tensor
    clock: int
    scattering: Gathering

    def finish(self) -> ExchangeOutcome:
        way, codec, feedback = self.way, self.way.codec, self.way.feedback
        length = self.payloads.shape[1] - feedback
        rows = torch.stack(list(self.scattering.wait()))
        asked = feedback and bool(rows[:, -1].any())
        payload = codec.encode(own := self._decoded(rows[:, :length]).sum(0), clock=2 * self.clock + 1)
        if feedback:
            payload = torch.cat([payload, payload.new_full((1,), asked)])
        rows = torch.stack(list(way.wire.all_gather(payload).wait()))
        asked = feedback and bool(rows[:, -1].any())
        means = self._decoded(rows[:, :length])
        mean = means.view(-1)[: way.num_elements].clone()
        return ExchangeOutcome(mean, self._residual(own, means[way.wire.group.rank]) if feedback else None, asked)

    def _decoded(self, payloads: Tensor) -> Tensor:
        parts = torch.zeros_like(self.parts)
        self.way.codec.add(payloads, to=parts, clock=self.clock)
        return parts

    def _residual(self, own: Tensor, sent: Tensor) -> Tensor:
        """Return the part of this rank's share that the two encodings left out."""
        codec, length = self.way.codec, self.payloads.shape[1] - 1
        left = self.parts.clone()
        codec.add(self.payloads[:, :length], to=left, clock=self.clock, scale=-1.0)
        left[self.way.wire.group.rank] += own - sent
        return left.view(-1)[: self.way.num_elements].clone()


@dataclass(frozen=True, slots=True)
class FactoredMean:
    """Two all-reduces, of every P and then of every Q; only the first goes on while the caller does something else.

    Args:
        wire: To the other ranks.
        factoring: The factors of this rank's matrices.
        feedback: Whether residuals are kept.
    """

    wire: CountedGroup
    factoring: Factoring
    feedback: bool

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        """Begin an exchange; ``share`` is given away."""
        first = self.factoring.first(share)
        if self.feedback:
            first = torch.cat([first, first.new_full((1,), asks)])
        return _Factored(self, share, first, self.wire.all_reduce(first))


@dataclass(frozen=True, slots=True)
class _Factored:
    way: FactoredMean
    share: Tensor
    first: Tensor
    work: Work

    def finish(self) -> ExchangeOutcome:
        factoring, feedback = self.way.factoring, self.way.feedback
        self.work.wait()
        mean = torch.zeros_like(self.share)
        bases = factoring.bases(self.first)
        second = self._second(bases)
        factoring.add(self.first, bases, second, to=mean)
        factoring.begin_next_at(second)
        if not feedback:
            return ExchangeOutcome(mean)
        return ExchangeOutcome(mean, self.share, bool(self.first[-1] > 0))

    def _second(self, bases: Sequence[Tensor]) -> Tensor:
        """Compute every Q of the mean; the share becomes the residual."""
        factoring = self.way.factoring
        own = factoring.second(self.share, bases)
        if self.way.feedback:
            factoring.subtract(bases, own, of=self.share)
        if factoring.factors_something:
            self.way.wire.all_reduce(own).wait()
        return own
