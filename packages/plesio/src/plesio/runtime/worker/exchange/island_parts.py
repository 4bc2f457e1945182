"""The parts of tensors that an island's ranks hold; how they divide pushes and pulls; and gradients that must be alike.

A rank holds a block of a tensor (`block_of`): of a `DTensor` its shard, of any other tensor all of it. It receives from
the servers what it holds. What several ranks hold alike, as those of DDP do all and those of a tensor-parallel model
its norms, each of them sends a part of: no element goes to a server twice.

So each must have the gradient of the island's whole batch. Ranks that take slices of it without DDP have not, and would
train on a part of each gradient. The sums of magnitudes show it: those of equal gradients differ by rounding, those of
two slices of a batch by far more. They go with the flag by which ranks agree that a gradient is finite, so looking at
every step takes no collective more.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Self

import torch
from msgspec.structs import replace
from torch.distributed.tensor import DTensor

from plesio.core.errors import ConfigError, TaskError
from plesio.protocol.bulk import IslandPart
from plesio.runtime.parameters.blocks import TensorBlock
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.local_part import block_of, local_part
from plesio.runtime.worker.exchange.replica_tensors import ReplicaTensors
from plesio.runtime.worker.island import Island

_ROUNDING = 1e-4
"""Difference of two ranks' sums, relative to the largest sum, that rounding stays below."""


@dataclass(frozen=True, slots=True)
class Holders:
    """The ranks of an island that hold the same parts of some tensors.

    Attributes:
        held: By tensor, for each rank its elements in all, and the block of them that the rank holds; None without.
        first: By tensor, for each rank the first that holds the same block; a rank with an empty one is the only one.
    """

    island: Island
    held: Mapping[str, tuple[tuple[int, ...] | None, ...]]
    first: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], island: Island) -> Self:
        """Ask all ranks of the island, which all call it; what they find is the same."""
        own = {name: [tensor.numel(), *astuple(block_of(tensor, name=name))] for name, tensor in tensors.items()}
        everywhere = [json.loads(text) for text in island.all_texts(json.dumps(own))]
        held, first = {}, {}
        for name in sorted({name for one in everywhere for name in one}):
            held[name] = here = tuple(tuple(one[name]) if name in one else None for one in everywhere)
            alone = [one is None or TensorBlock(*one[1:]).numel == 0 for one in here]
            first[name] = tuple(rank if alone[rank] else here.index(one) for rank, one in enumerate(here))
        return cls(island, held, first)

    def num_alike(self, name: str) -> int:
        """Count the ranks that hold of this tensor what this rank holds."""
        ranks = self.first[name]
        return ranks.count(ranks[self.island.rank])


@dataclass(frozen=True, slots=True)
class IslandLayout:
    """One rank's share of a layout.

    Attributes:
        sent: The slices that this rank sends, as ranges of its own part of each tensor; as many as the layout has.
        parts: The same for each server, in the server's terms.
    """

    sent: SliceLayout
    received: SliceLayout
    parts: tuple[IslandPart, ...]

    @classmethod
    def of(cls, layout: SliceLayout, tensors: Mapping[str, torch.Tensor], *, island: Island) -> "IslandLayout":
        """Agree on who sends what; all ranks of the island call it.

        Raises:
            TaskError: A tensor is placed so that its parts cannot be exchanged, or the ranks hold different ones.
        """
        holders = Holders.of(tensors, island)
        for name, held in holders.held.items():
            if None in held or len({one[0] for one in held if one is not None}) > 1:
                raise TaskError(f'"{name}" is not alike on all ranks of the island: each must have the whole model')
        received = {name: block_of(tensor, name=name) for name, tensor in tensors.items()}
        sent = {name: _share(name, holders, block=block) for name, block in received.items()}
        parts = tuple(
            IslandPart(
                number=island.rank,
                count=island.size,
                sent=tuple(astuple(sent[piece.name]) for piece in slices),
                received=tuple(astuple(received[piece.name]) for piece in slices),
            )
            for slices in layout.servers
        )
        return cls(_local(layout, sent, held=received), _local(layout, received, held=received), parts)


def check_alike(tensors: ReplicaTensors, rail: Group) -> None:
    """Refuse islands of which ranks of one number hold different parts (ConfigError); all ranks of the rail call it."""
    digest = torch.tensor(list(hashlib.sha256(tensors.held().encode()).digest()[:8]))
    if any(not torch.equal(other, digest) for other in rail.all_gather(digest).wait()):
        raise ConfigError("islands that are sharded otherwise cannot average their parts; use exchange=store")


def _share(name: str, holders: Holders, *, block: TensorBlock) -> TensorBlock:
    """Return this rank's share of a block that it may hold together with others."""
    held, rank = [one for one in holders.held[name] if one is not None], holders.island.rank
    if sum(TensorBlock(*each[1:]).numel for each in set(held)) != held[rank][0]:
        raise TaskError(f'the ranks of the island do not hold all of "{name}", each element once or alike')
    alike = [number for number, each in enumerate(held) if each == held[rank]]
    return block.share(alike.index(rank), of=len(alike))


def _local(layout: SliceLayout, blocks: Mapping[str, TensorBlock], *, held: Mapping[str, TensorBlock]) -> SliceLayout:
    """Return the slices as ranges of a rank's own parts of the tensors: of ``blocks``, within what it has ``held``."""
    servers = []
    for slices in layout.servers:
        local = []
        for piece in slices:
            block, first = blocks[piece.name], held[piece.name]
            before = (block.row - first.row) * first.num_columns
            start, stop = block.within(piece.start, piece.stop)
            local.append(replace(piece, start=before + start, stop=before + stop))
        servers.append(tuple(local))
    return SliceLayout(tuple(servers))


def place_gradients(parameters: Mapping[str, torch.Tensor]) -> None:
    """Place each gradient as its parameter is, which those of sequence-parallel layers are not; all ranks call it."""
    for parameter in parameters.values():
        placed, gradient = getattr(parameter, "placements", None), parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != placed:
            parameter.grad = gradient.redistribute(placements=placed)


class AlikeGradients:
    """The gradients of parameters of which several ranks hold the same part; all ranks of the island make it."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], island: Island) -> None:
        first = Holders.of(parameters, island).first
        alike = {name: ranks for name, ranks in first.items() if len(set(ranks)) < len(ranks)}
        self._island = island
        self._parameters = {name: parameters.get(name) for name in alike}
        self._first = torch.tensor(list(alike.values()), dtype=torch.int64).reshape(len(alike), island.size).T
        """By rank and parameter, the first rank that holds the same part, ``[ranks, parameters]``."""

    def agree(self, *, finite: bool) -> bool:
        """Tell whether the gradient is ``finite`` on all ranks of the island, which all call it.

        Raises:
            TaskError: It is, and ranks that hold a parameter alike have different gradients of it.
        """
        magnitudes = [_magnitude(parameter) for parameter in self._parameters.values()]
        own = torch.tensor([float(not finite)])
        if magnitudes:
            own = torch.cat((own, torch.stack([one.to(magnitudes[0].device) for one in magnitudes]).cpu()))
        everywhere = torch.stack(self._island.gathered(own))
        if everywhere[:, 0].any():
            return False
        sums = everywhere[:, 1:]
        apart = (sums - sums.gather(0, self._first)).abs()
        if magnitudes and apart.max() > _ROUNDING * sums.max():
            name = list(self._parameters)[int(apart.amax(0).argmax())]
            raise TaskError(
                f'the ranks of the island hold "{name}" alike and have different gradients of it: give all of them '
                "the whole batch (and one seed), or call the model in DistributedDataParallel where each takes a slice"
            )
        return True


def _magnitude(parameter: torch.Tensor | None) -> torch.Tensor:
    gradient = None if parameter is None else parameter.grad
    if gradient is None:
        return torch.zeros(())
    local = local_part(gradient)
    local = local.coalesce().values() if local.is_sparse else local
    wide = torch.promote_types(local.dtype, torch.float32)
    sum_: torch.Tensor = torch.linalg.vector_norm(local, 1, dtype=wide)
    return sum_.float()
