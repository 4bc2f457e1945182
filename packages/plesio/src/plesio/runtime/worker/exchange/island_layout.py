"""How an island's ranks divide a worker's pushes and pulls: what each sends of every server's slices, and receives.

A rank receives what it holds: of a `DTensor` its shard, of any other tensor all of it. What several ranks hold alike,
as those of DDP do all and those of a tensor-parallel model its norms, each of them sends a part of: no element goes to
a server twice.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

import torch
from msgspec.structs import replace

from plesio.core.errors import ConfigError, TaskError
from plesio.protocol.bulk import IslandPart
from plesio.runtime.parameters.blocks import TensorBlock
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.worker.exchange.group import Group
from plesio.runtime.worker.exchange.local_part import block_of
from plesio.runtime.worker.exchange.replica import Replica
from plesio.runtime.worker.island import Island

__all__ = ["IslandLayout", "check_alike"]


@dataclass(frozen=True, slots=True)
class IslandLayout:
    """One rank's share of a layout.

    Attributes:
        sent: The slices that this rank sends, as ranges of its own part of each tensor; as many as the layout has.
        received: The slices that it receives, alike.
        parts: The same for each server, in the server's terms.
    """

    sent: SliceLayout
    received: SliceLayout
    parts: tuple[IslandPart, ...]

    @classmethod
    def of(cls, layout: SliceLayout, tensors: Mapping[str, torch.Tensor], *, island: Island) -> "IslandLayout":
        """Agree on who sends what; all ranks of the island call it.

        Args:
            layout: The whole tensors'.
            tensors: By name, as this rank has them.
            island: The ranks.

        Raises:
            TaskError: A tensor is placed so that its parts cannot be exchanged, or the ranks hold different ones.
        """
        received = {name: block_of(tensor, name=name) for name, tensor in tensors.items()}
        own = json.dumps({name: [tensors[name].numel(), *astuple(block)] for name, block in received.items()})
        everywhere = [json.loads(text) for text in island.all_texts(own)]
        sent = {name: _share(name, everywhere, rank=island.rank, block=block) for name, block in received.items()}
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


def check_alike(replica: Replica, rail: Group) -> None:
    """Refuse islands of which ranks of one number hold different parts; all ranks of the rail call it.

    Raises:
        ConfigError: They do.
        TaskError: A tensor is placed so that its parts cannot be exchanged.
    """
    digest = torch.tensor(list(hashlib.sha256(replica.tensors.held().encode()).digest()[:8]))
    if any(not torch.equal(other, digest) for other in rail.all_gather(digest).wait()):
        raise ConfigError("islands that are sharded otherwise cannot average their parts; use exchange=store")


def _share(name: str, everywhere: Sequence[Mapping[str, list[int]]], *, rank: int, block: TensorBlock) -> TensorBlock:
    """Return this rank's share of a block that it may hold together with others."""
    own = everywhere[rank][name]
    if any(one.keys() != everywhere[0].keys() or one[name][0] != own[0] for one in everywhere):
        raise TaskError(
            f'"{name}" or another tensor is not alike on all ranks of the island: each must have the whole model'
        )
    held = [one[name][1:] for one in everywhere]
    distinct = {tuple(each) for each in held}
    if sum(TensorBlock(*each).numel for each in distinct) != own[0]:
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
