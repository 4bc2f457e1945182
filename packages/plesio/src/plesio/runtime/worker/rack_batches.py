"""The samples of a rack that leases as one: its leader asks the coordinator and broadcasts; each takes its part.

A block's batches are the rack's: each is divided over its workers, which so make equally many steps. A quicker rack
asks earlier and gets more blocks, as a quicker worker does. Nothing crosses racks but the leader's questions and the
answers; in the rack goes one small broadcast for each block, at the same place in every worker's loop.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from msgspec.structs import replace

from plesio.core.errors import DataError
from plesio.protocol.message import Message, decode, encode, kind_of
from plesio.protocol.plans import Block, PlanFigures, Span, cut
from plesio.runtime.worker.exchange.group import Group, broadcast_text
from plesio.runtime.worker.loading import BlockSource, LeasedBatches

M = TypeVar("M", bound=Message)

_NOTHING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rack:
    """This worker's rack, in a run whose racks share a store.

    Attributes:
        group: Its workers; rank 0 leads.
        evaluates: Whether the worker that evaluates is one of them.
        together: Whether racks exchange in rounds of all.
    """

    group: Group
    sizes: tuple[int, ...]
    evaluates: bool
    together: bool

    @property
    def leads(self) -> bool:
        return self.group.rank == 0

    def broadcast(self, message: M | None, kind: type[M]) -> M | None:
        """Return the leader's value, a message of this type or None, on all of the rack; all call it together.

        The others' values do not matter.
        """
        text = json.dumps(None if message is None else encode(message)[1])
        found = json.loads(broadcast_text(text, group=self.group, source=0))
        return None if found is None else decode(kind_of(kind), found, kind, peer="the rack's leader")


def figures_for_racks(figures: PlanFigures, *, sizes: tuple[int, ...], together: bool) -> PlanFigures:
    """Return the part of a plan that is dealt out: a last rest too small for a batch is not, as on a collective.

    Raises:
        DataError: An epoch does not give every worker a sample.

    >>> figures_for_racks(PlanFigures(num_samples=9, batch_size=4, budget_samples=19), sizes=(2, 2), together=False)
    PlanFigures(num_samples=9, batch_size=4, budget_samples=18)
    """
    least = sum(sizes) if together else max(sizes)
    epochs, rest = divmod(figures.budget_samples, figures.num_samples)
    budget = epochs * figures.num_samples + (rest if rest >= least else 0)
    if figures.num_samples < least or budget == 0:
        num_samples = min(figures.num_samples, figures.budget_samples)
        raise DataError(
            f"{num_samples} samples are too few for racks of {', '.join(map(str, sizes))} workers: use fewer"
        )
    return replace(figures, budget_samples=budget)


class RackBlocks:
    """Blocks that the leader leases and all of the rack receive, by the same calls at the same places; see `Leases`."""

    def __init__(
        self,
        rack: Group,
        *,
        lease: Callable[..., BlockSource],
        before_rest: Callable[[], None],
        on_admitted: Callable[[int], None],
        on_halt: Callable[[], None],
    ) -> None:
        self._rack = rack
        self._source = lease(on_admitted=self._note, on_halt=self._note_halt) if rack.rank == 0 else None
        self._before_rest, self._on_admitted, self._on_halt = before_rest, on_admitted, on_halt
        self._clock = _NOTHING
        self._halted = False

    def _note(self, clock: int) -> None:
        self._clock = clock

    def _note_halt(self) -> None:
        self._halted = True

    def request(self, *, idle: bool) -> None:
        if self._source is not None:
            self._source.request(idle=idle)  # hands in what is held back before a rest
        elif idle:
            self._before_rest()

    def receive(self) -> Block | None:
        block = None if self._source is None else self._source.receive()
        clock, self._clock = self._clock, _NOTHING
        halted, self._halted = self._halted, False
        fields = [_NOTHING] * 5 if block is None else [block.id, block.epoch, block.start, block.stop, block.batch_size]
        sent = torch.tensor([clock, int(halted), *fields])
        self._rack.broadcast(sent)
        clock, halted, number, epoch, start, stop, batch_size = sent.tolist()
        if clock != _NOTHING:
            self._on_admitted(clock)
        if halted:
            self._on_halt()
        if number == _NOTHING:
            return None
        size = self._rack.size
        return Block(id=number, epoch=epoch, start=start, stop=stop, batch_size=batch_size, num_workers=size)

    def finish(self, block: int, *, num_samples: int) -> None:
        if self._source is not None:
            self._source.finish(block, num_samples=num_samples)

    def release(self) -> None:
        if self._source is not None:
            self._source.release()


class RackBatches:
    """One worker's part of the batches that its rack leases."""

    redealt = False

    def __init__(self, whole: LeasedBatches, *, rack: Group) -> None:
        self._whole, self._rack = whole, rack
        self._dealt: deque[tuple[int, int]] = deque()
        """Samples of this worker and of the rack, of each batch that was drawn and not trained on."""

    def batches(self) -> Iterator[Sequence[Span]]:
        for batch in self._whole.batches():
            num_samples = sum(map(len, batch))
            share, extra = divmod(num_samples, self._rack.size)
            begin = self._rack.rank * share + min(self._rack.rank, extra)
            num_own = share + (self._rack.rank < extra)
            self._dealt.append((num_own, num_samples))
            yield cut(batch, [begin, num_own])[1]

    def wait(self) -> bool:
        self._dealt.clear()
        return self._whole.wait()

    def taken(self, num_samples: int) -> None: ...

    def trained(self, num_samples: int) -> int | None:
        of_rack = 0
        while num_samples > 0 and self._dealt:
            own, of_all = self._dealt.popleft()
            num_samples -= own
            of_rack += of_all
        return self._whole.trained(of_rack)

    def close(self) -> None:
        self._dealt.clear()
        self._whole.close()
