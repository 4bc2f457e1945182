"""How the mean over the ranks is made: in full, of payloads that are summed, gathered or scattered, or of factors.

Each takes a rank's *share* of the mean (its update times its weight), so that the mean is the plain sum over the ranks,
and 16-bit sums stay in range. With feedback an exchange also carries whether any rank asks for a flush, so that all
ranks know it when the exchange is over and none has to be asked: one number more in a sum, one byte more in a part.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from plesio.policies.compression import Collective
from plesio.runtime.parameters.codecs.codec import Codec
from plesio.runtime.worker.compression.power_sgd import Factoring
from plesio.runtime.worker.exchange.group import Gathering, Group, Work

T = TypeVar("T")


@dataclass(slots=True)
class CountedGroup:
    """The group's collectives, with the bytes that this rank has sent, every collective being a ring."""

    group: Group
    sent_bytes: int = 0

    def all_reduce(self, tensor: Tensor) -> Work:
        self._count(Collective("all_reduce", tensor.numel() * tensor.element_size()))
        return self.group.all_reduce(tensor)

    def all_gather(self, tensor: Tensor) -> Gathering:
        self._count(Collective("all_gather", self.group.size * tensor.numel() * tensor.element_size()))
        return self.group.all_gather(tensor)

    def all_to_all(self, rows: Tensor) -> Gathering:
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


@dataclass(slots=True)
class Pending(Generic[T]):
    """An exchange under way.

    Attributes:
        take: Returns what comes of it when it is over; called once.
        took_s: Called then, returns the seconds that it took, if that is known.
        go_on: Called before, begins the second of two collectives when the first is over; all ranks do then, or none.
    """

    take: Callable[[], T]
    took_s: Callable[[], float | None] = lambda: None
    go_on: Callable[[], object] = lambda: None
    _found: T | None = None

    @torch.no_grad()
    def wait(self) -> T:
        if self._found is None:
            self._found = self.take()
        return self._found


Transfer = Pending[ExchangeOutcome]
PendingMean = Pending[Tensor]
"""A mean that is being made: flat, of the updates' dtype, and equal on all ranks."""


class Mean(Protocol):
    """A way to make it."""

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        """Begin an exchange; ``share`` is given away."""
        ...


@dataclass(frozen=True, slots=True)
class FullMean:
    """An all-reduce of everything; nobody can ask for anything."""

    wire: CountedGroup

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        work = self.wire.all_reduce(share)

        def finish() -> ExchangeOutcome:
            work.wait()
            return ExchangeOutcome(share)

        return Transfer(finish, work.took_s)


@dataclass(frozen=True, slots=True)
class WholeMean:
    """An all-reduce of summable payloads; others are gathered, and every rank adds them up in the order of ranks."""

    wire: CountedGroup
    codec: Codec
    feedback: bool

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        payload = self.codec.encode(share, clock=clock)
        # the flag is behind it, for what is in it begins where a float32 may
        sent = torch.cat([payload, payload.new_full((1,), asks)]) if self.feedback else payload
        gathering = None if self.codec.summable else self.wire.all_gather(sent)
        work = self.wire.all_reduce(sent) if gathering is None else gathering

        def finish() -> ExchangeOutcome:
            mean = torch.zeros_like(share)
            if self.feedback:
                self.codec.add(payload, to=share, clock=clock, scale=-1.0)
            if gathering is None:
                work.wait()
            parts = [sent] if gathering is None else gathering.wait()
            for part in parts:
                own = part[: len(payload)]
                # a part may begin anywhere in the memory of them all, and float32 numbers may not
                self.codec.add(own if gathering is None else own.clone(), to=mean, clock=clock)
            if not self.feedback:
                return ExchangeOutcome(mean)
            return ExchangeOutcome(mean, share, any(bool(part[-1] > 0) for part in parts))

        return Transfer(finish, work.took_s)


@dataclass(frozen=True, slots=True)
class ScatteredMean:
    """Each rank sums up an n-th of the payloads, and what it finds is encoded once more and gathered.

    1-bit Adam does so (Tang et al. 2021, section 4.3). With feedback, what the second encoding leaves out is in the
    residual of the rank that did it.

    Args:
        codec: Made for an n-th, rounded up; encodes and adds up all parts at once.
    """

    wire: CountedGroup
    codec: Codec
    num_elements: int
    feedback: bool

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        size, rank = self.wire.group.size, self.wire.group.rank
        parts = torch.nn.functional.pad(share, (0, size * self.codec.num_elements - self.num_elements)).view(size, -1)
        sent = self.codec.encode(parts, clock=2 * clock)  # a stream of random numbers for each of two encodings
        length = sent.shape[1]
        if self.feedback:
            sent = torch.cat([sent, sent.new_full((size, 1), asks)], 1)
        scattering = self.wire.all_to_all(sent)

        def decoded(rows: Tensor) -> Tensor:
            found = torch.zeros_like(parts)
            self.codec.add(rows, to=found, clock=clock)
            return found

        @functools.cache
        def go_on() -> tuple[Tensor, Gathering]:
            rows = torch.stack(list(scattering.wait()))
            asked = self.feedback and bool(rows[:, -1].any())
            payload = self.codec.encode(own := decoded(rows[:, :length]).sum(0), clock=2 * clock + 1)
            if self.feedback:
                payload = torch.cat([payload, payload.new_full((1,), asked)])
            return own, self.wire.all_gather(payload)

        def finish() -> ExchangeOutcome:
            own, gathering = go_on()
            rows = torch.stack(list(gathering.wait()))
            means = decoded(rows[:, :length])
            mean = means.view(-1)[: self.num_elements].clone()
            if not self.feedback:
                return ExchangeOutcome(mean)
            # the residual: what the two encodings have left out of this rank's share
            left = parts.clone()
            self.codec.add(sent[:, :length], to=left, clock=clock, scale=-1.0)
            left[rank] += own - means[rank]
            return ExchangeOutcome(mean, left.view(-1)[: self.num_elements].clone(), bool(rows[:, -1].any()))

        return Transfer(finish, lambda: scattering.took_s() + go_on()[1].took_s(), go_on)


@dataclass(frozen=True, slots=True)
class FactoredMean:
    """Two all-reduces, of every P and then of every Q."""

    wire: CountedGroup
    factoring: Factoring
    feedback: bool

    def begin(self, share: Tensor, *, clock: int, asks: bool) -> Transfer:
        first = self.factoring.first(share)
        if self.feedback:
            first = torch.cat([first, first.new_full((1,), asks)])
        work = self.wire.all_reduce(first)

        @functools.cache
        def go_on() -> tuple[Sequence[Tensor], Tensor, Work | None]:
            """Begin the sum of every Q; the share becomes the residual."""
            work.wait()
            bases = self.factoring.bases(first)
            second = self.factoring.second(share, bases)
            if self.feedback:
                self.factoring.subtract(bases, second, of=share)
            return bases, second, self.wire.all_reduce(second) if self.factoring.factors_something else None

        def finish() -> ExchangeOutcome:
            bases, second, summing = go_on()
            if summing is not None:
                summing.wait()
            mean = torch.zeros_like(share)
            self.factoring.add(first, bases, second, to=mean)
            self.factoring.begin_next_at(second)
            return ExchangeOutcome(mean, share, bool(first[-1] > 0)) if self.feedback else ExchangeOutcome(mean)

        def took_s() -> float:
            summing = go_on()[2]
            return work.took_s() + (0.0 if summing is None else summing.took_s())

        return Transfer(finish, took_s, go_on)
