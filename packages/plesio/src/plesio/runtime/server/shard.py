"""One server's part of the shared parameters, and how updates change it. No sockets, no clock.

An update waits here from the moment its last byte is in until it is to be applied (with a weight, alone or averaged
with others) or dropped. Every server applies the same updates in the same order, because the coordinator alone decides;
a version is therefore the same updates on every server. A pull from several servers may see them one order apart: it
asks each for its present, and waits for none.

Two ways to apply, chosen by the policy's ``update``:

* ``gradient``: a stock `torch.optim` optimizer steps with the mean gradient and every learning rate times the weight,
  or makes the part of its step that is due to updates which are but a part of a round (`interleaved`). A slice whose
  gradient was absent from all updates is left alone, as torch leaves a parameter whose ``grad`` is None.
* ``delta``: the mean delta times the weight is added. Where there is an outer optimizer too, it steps, as above, with
  the mean delta as a negative gradient.

Tensors of 16 bits are kept in float32 (*masters*), which updates and the optimizer work on: a share of an update that
is less than half of what the 16 bits resolve would be lost otherwise, time and again. What is pulled is rounded.

Floating-point buffers (BatchNorm's running statistics) move towards the mean of what the updates of a version carried,
by ``1 / num_live`` for each.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from plesio.policies import UpdateKind
from plesio.protocol.bulk import BlockRow, Initial, OptimizerSpec, Table
from plesio.protocol.effects import ApplyOrder
from plesio.runtime.parameters.layout import Slice, slices_of
from plesio.runtime.parameters.optimizer_spec import SUPPORTED_OPTIMIZERS
from plesio.runtime.parameters.optimizer_state import Piece, read_state, write_state
from plesio.runtime.parameters.optimizers import Optimizers, parts_of
from plesio.runtime.server.compressed_pulls import CompressedPulls
from plesio.runtime.server.interleaved import InterleavedOptimizer
from plesio.runtime.server.island_state import state_in
from plesio.runtime.server.merging import corrected, mean_by_directions, mean_of
from plesio.runtime.server.payloads import Payload, taken_apart, values_of


@dataclass(frozen=True, slots=True)
class PulledSlices:
    """Slices that changed since the puller's version (None: all there are), in order, sharing the shard's memory.

    If all was asked for, the optimizer's state follows them, and ``state`` is its table. If it is ``compressed``, the
    parts have how they have changed.
    """

    version: int
    present: tuple[int, ...] | None
    parts: Sequence[torch.Tensor]
    state: Table | None = None
    compressed: bool = False

    def packed(
        self, allocate: Callable[[int], NDArray[np.uint8]] = lambda num: np.empty(num, np.uint8)
    ) -> torch.Tensor:
        """Join the parts to one payload, copied by one call to memory of so many bytes."""
        payload = torch.from_numpy(allocate(sum(part.numel() for part in self.parts)))
        if self.parts:
            torch.cat(list(self.parts), out=payload)
        return payload


def warm_up() -> None:
    """Have all of torch in memory that a shard needs: the first optimizer of a process imports torch's compiler."""
    torch.optim.SGD([torch.zeros(1)], lr=0.1)


@dataclass(slots=True)
class _Pending:
    values: dict[int, torch.Tensor]
    groups: Sequence[dict[str, Any]] | None


class Shard:
    """The slices of one server.

    Args:
        block: Their initial values, ``[block_bytes]`` uint8; owned by the shard from now on.
        optimizer: Steps with ``gradient`` updates; with deltas, if there is one.
    """

    def __init__(
        self,
        slices: Sequence[Slice],
        *,
        block: torch.Tensor,
        update: UpdateKind,
        optimizer: OptimizerSpec | None,
    ) -> None:
        self.version = 0
        self._slices = slices
        self._block = block
        self._update = update
        self._changed_at = [0] * len(slices)
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._snapshots: dict[int, torch.Tensor] = {}
        self._views = [piece.view(block) for piece in slices]
        self._tensors = [
            view.float() if view.dtype.itemsize == 2 and piece.kind != "still" else view
            for view, piece in zip(self._views, slices, strict=True)
        ]
        """The masters of those of 16 bits that move, else the views themselves."""
        self._num_moving = sum(piece.kind != "still" for piece in slices)  # those that do not come last
        self._num_bytes = [piece.num_bytes for piece in slices]
        self._bytes = self._parts(block)
        self._optimizer = None if optimizer is None else self._build(optimizer)
        self._pulls = CompressedPulls(slices, self._views)
        self._steps: dict[int, list[InterleavedOptimizer]] = {}
        """By fragment, as each has rounds of its own."""

    @classmethod
    def of(cls, initial: Initial, payload: NDArray[np.uint8]) -> Self:
        """Return the shard with the values and the optimizer's state that a worker has sent, packed."""
        torch.set_num_threads(1)
        slices = slices_of(initial.slices)
        block, packed = _unpacked(slices, torch.from_numpy(payload))
        shard = cls(slices, block=block, update=initial.update, optimizer=initial.optimizer)
        if initial.state:
            shard._load_state(initial.state, packed)
        return shard

    def _build(self, spec: OptimizerSpec) -> torch.optim.Optimizer | None:
        """Build one optimizer of each class, joined to one."""
        groups: dict[str, list[dict[str, Any]]] = {}
        self._group_of: dict[int, int] = {}
        for number in sorted(range(len(spec.groups)), key=lambda number: spec.names.index(spec.names[number])):
            members = [i for i, piece in enumerate(self._slices) if piece.group == number]
            if not members:
                continue
            for index in members:
                self._tensors[index] = torch.nn.Parameter(self._tensors[index])
            self._group_of[number] = len(self._group_of)
            groups.setdefault(spec.names[number], []).append(
                {**_options(spec.groups[number]), "params": [self._tensors[index] for index in members]}
            )
        parts = [SUPPORTED_OPTIMIZERS[name](own) for name, own in groups.items()]
        return Optimizers(parts) if len(parts) > 1 else parts[0] if parts else None

    def _pieces(self) -> list[Piece]:
        """Return the parameters' slices, each whole, as the optimizer has them."""
        return [
            (tensor, replace(piece, start=0, stop=piece.stop - piece.start))
            for tensor, piece in zip(self._tensors, self._slices, strict=True)
            if piece.kind == "parameter"
        ]

    def begin_again(self, initial: Initial, payload: NDArray[np.uint8]) -> None:
        """Take other initial values, if no update has been applied; a worker that was quicker has sent the same."""
        if self.version:
            return
        block, packed = _unpacked(self._slices, torch.from_numpy(payload))
        self._block.copy_(block)
        for view, tensor in self._narrow(range(len(self._views))):
            tensor.detach().copy_(view)
        if self._optimizer is not None:
            self._optimizer.state.clear()
        self._load_state(initial.state or [], packed)

    def _load_state(self, table: Table, payload: torch.Tensor) -> None:
        """Go on from this state of the optimizer (its tensors packed, uint8)."""
        if self._optimizer is not None:
            write_state(self._optimizer, self._pieces(), table=table, payload=payload)

    def push(
        self,
        worker: int,
        *,
        clock: int,
        payloads: Sequence[Payload],
        groups: Sequence[dict[str, Any]] | None,
        num_steps: int = 1,
    ) -> None:
        """Keep an update until the policy decides on it.

        A worker's payload is kept until it is applied or dropped, those of an island's ranks are copied. ``groups`` are
        the optimizer's options, where they changed. Compressed gradients are sums over ``num_steps``.

        Raises:
            ExchangeError: A payload is not as long as its slices, or cannot be read.
        """
        steps = num_steps if self._update == "gradient" else 1
        found = values_of(payloads, self._slices, of=f"an update of worker {worker}", num_steps=steps)
        # converted only where a master has another type
        values = {index: value.to(self._tensors[index].dtype) for index, value in found.items()}
        self._pending[worker, clock] = _Pending(values, groups)

    def apply(self, order: ApplyOrder) -> None:
        """Make the mean of the order's pending updates, times its weight, its version."""
        pending = [self._pending.pop(update) for update in order.updates]
        counts = [1] * len(pending) if order.counts is None else order.counts
        weight = order.weight if self._update == "gradient" else order.share
        for one in pending:
            if one.groups is not None:
                self._set_options(one.groups)
        # a slice that is absent from all updates is left alone; absent from some, it adds nothing to the mean of all
        touched = sorted({index for one in pending for index in one.values})
        for index in touched:
            values = [(one.values[index], n) for one, n in zip(pending, counts, strict=True) if index in one.values]
            tensor = self._tensors[index]
            if self._slices[index].kind == "buffer":
                count = sum(n for _, n in values)
                tensor.lerp_(mean_of(values, count), min(1.0, count / order.num_live))
            elif self._update == "delta" and self._optimizer is None:
                tensor.add_(mean_of(values, sum(counts)), alpha=order.weight)
            elif order.share == 0:  # kept back of rounds that momentum has taken note of
                assert self._optimizer is not None
                rate = self._optimizer.param_groups[self._group_of[self._slices[index].group]]["lr"]
                tensor.detach().add_(mean_of(values, sum(counts)), alpha=order.weight * rate)
            elif self._update == "delta":  # of a round, of which this is a share
                tensor.grad = self._merged(index, pending, counts, order) * -(order.weight / order.share)
            else:
                tensor.grad = mean_of(values, sum(counts))
            self._changed_at[index] = order.version
        # one step, of all slices together
        for stepper in self._steps_of(order.fragment) if order.share > 0 else ():
            stepper.step(weight=weight, share=order.share, age=order.age)
        for view, tensor in self._narrow(touched):  # what is pulled is rounded
            view.copy_(tensor.detach())
        self.version = order.version

    def _merged(
        self, index: int, pending: Sequence[_Pending], counts: Sequence[int], order: ApplyOrder
    ) -> torch.Tensor:
        """Return the mean of the deltas of a slice, as the order has it made."""
        assert self._optimizer is not None
        velocity = self._optimizer.state.get(self._tensors[index], {}).get("momentum_buffer")
        momentum = self._optimizer.param_groups[0].get("momentum", 0.0)
        late = order.late or [False for _ in pending]
        values = [
            (corrected(one.values[index], velocity, momentum=momentum) if is_late else one.values[index], number)
            for one, number, is_late in zip(pending, counts, late, strict=True)
            if index in one.values
        ]
        return (mean_by_directions if order.by_directions else mean_of)(values, sum(counts))

    def _steps_of(self, fragment: int) -> list[InterleavedOptimizer]:
        if fragment not in self._steps:
            parts = [] if self._optimizer is None else parts_of(self._optimizer)
            self._steps[fragment] = list(map(InterleavedOptimizer, parts))
        return self._steps[fragment]

    def _narrow(self, indices: Iterable[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the slices that have masters, each with its master."""
        for index in indices:
            if self._views[index].dtype != self._tensors[index].dtype:
                yield self._views[index], self._tensors[index]

    def _set_options(self, groups: Sequence[dict[str, Any]]) -> None:
        if self._optimizer is None:
            return
        for number, options in enumerate(groups):
            if number in self._group_of:
                self._optimizer.param_groups[self._group_of[number]].update(_options(options))

    def drop(self, worker: int, *, clock: int) -> None:
        self._pending.pop((worker, clock), None)

    def pull(
        self,
        known_version: int | None,
        *,
        among: Sequence[int] | None = None,
        worker: int = 0,
        compressed: str | None = None,
        parts: Sequence[Sequence[BlockRow] | None] = (None,),
    ) -> list[PulledSlices]:
        """Return the slices that changed after ``known_version`` (all, also those that never change, when None).

        Args:
            known_version: The one that the worker has.
            among: Indices of those that may be returned; None: all.
            worker: It gets them.
            compressed: Encode how the parameters have changed since the worker's last pull, if it has made one; the
                rest comes with the next. In full if it cannot be sent so, or from a version below 0.
            parts: For each of the worker's ranks, the part of every slice's tensor that it gets; None for all.

        Returns:
            The parts that each rank gets.
        """
        if compressed is not None and known_version is not None and known_version >= 0:
            changes = self._pulls.changes(worker, among, compressed, version=self.version, parts=parts)
            if changes is not None:
                indices, sent = changes
                return [PulledSlices(self.version, tuple(indices), one, compressed=bool(indices)) for one in sent]
            known_version = -1
        if known_version is None:
            present = list(range(len(self._slices)))
        else:
            present = [
                index
                for index in (range(len(self._slices)) if among is None else among)
                if self._changed_at[index] > known_version and self._slices[index].kind == "parameter"
            ]
        if compressed is not None:
            self._pulls.sent_in_full(worker, present)
        here = tuple(present) if len(present) < len(self._slices) else None
        return [PulledSlices(self.version, here, self._cut(self._bytes, present, blocks)) for blocks in parts]

    def forget(self, worker: int) -> None:
        """Forget what a worker has of the parameters; if it pulls again, it gets all."""
        self._pulls.forget(worker)

    def _cut(
        self, parts: list[torch.Tensor], indices: Sequence[int], blocks: Sequence[BlockRow] | None
    ) -> list[torch.Tensor]:
        """Return these slices' bytes, of which ``parts`` has all, or the blocks' bytes in them."""
        if blocks is None:
            return [parts[index] for index in indices]
        return [cut for i in indices for cut in taken_apart(parts[i], self._slices[i], blocks[i])]

    def pull_all(self, *, blocks: Sequence[BlockRow] | None = None) -> PulledSlices:
        """Return all slices that move, and the optimizer's state; or the ``blocks`` in them."""
        for stepper in (one for steps in self._steps.values() for one in steps):
            stepper.end_round()
        table, tensors = ([], []) if self._optimizer is None else read_state(self._optimizer, self._pieces())
        if blocks is not None:
            table, tensors = state_in(blocks, self._slices, table, tensors)
        parts = self._cut(self._bytes, range(self._num_moving), blocks)
        return self._moving(parts, [tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors], table)

    def pull_shared(self, snapshot: int | None, *, blocks: Sequence[BlockRow] | None = None) -> PulledSlices:
        """Return all slices that move, or the ``blocks`` in them, as they were at a snapshot, or are now."""
        parts = self._bytes if snapshot is None else self._parts(self._snapshots[snapshot])
        return self._moving(self._cut(parts, range(self._num_moving), blocks))

    def _moving(
        self, parts: list[torch.Tensor], also: Sequence[torch.Tensor] = (), state: Table | None = None
    ) -> PulledSlices:
        count = self._num_moving
        present = None if count == len(self._slices) else tuple(range(count))
        return PulledSlices(self.version, present, [*parts, *also], state)

    def snapshot(self, number: int) -> None:
        last = self._slices[self._num_moving - 1] if self._num_moving else None
        self._snapshots[number] = self._block[: 0 if last is None else last.offset + last.num_bytes].clone()

    def _parts(self, block: torch.Tensor) -> list[torch.Tensor]:
        """Return the bytes of every slice, sharing the block's memory."""
        return [
            block[piece.offset : piece.offset + num_bytes]
            for piece, num_bytes in zip(self._slices, self._num_bytes, strict=True)
        ]


def _unpacked(slices: Sequence[Slice], packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split off the block of the slices' values from what follows them."""
    block = torch.zeros(slices[-1].offset + slices[-1].num_bytes if slices else 0, dtype=torch.uint8)
    position = 0
    for piece in slices:
        block[piece.offset : piece.offset + piece.num_bytes] = packed[position : position + piece.num_bytes]
        position += piece.num_bytes
    return block, packed[position:]


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
