"""The ranks of an island that hold the same part of a tensor."""

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Self

import torch

from plesio.runtime.parameters.blocks import TensorBlock
from plesio.runtime.worker.exchange.local_part import block_of
from plesio.runtime.worker.island import Island

__all__ = ["Holders"]


@dataclass(frozen=True, slots=True)
class Holders:
    """The holders of some tensors.

    Attributes:
        first: By tensor, for each rank the first that holds the same part; a rank with no part is the only one.
    """

    island: Island
    first: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor], island: Island) -> Self:
        """Ask all ranks of the island, which all call it; what they find is the same."""
        own = {name: astuple(block_of(tensor, name=name)) for name, tensor in tensors.items()}
        everywhere = [json.loads(text) for text in island.all_texts(json.dumps(own))]
        first = {}
        for name in sorted({name for one in everywhere for name in one}):
            held = [one.get(name) for one in everywhere]
            alone = [block is None or TensorBlock(*block).numel == 0 for block in held]
            first[name] = tuple(rank if alone[rank] else held.index(block) for rank, block in enumerate(held))
        return cls(island, first)

    def num_alike(self, name: str) -> int:
        """Count the ranks that hold of this tensor what this rank holds."""
        ranks = self.first[name]
        return ranks.count(ranks[self.island.rank])
