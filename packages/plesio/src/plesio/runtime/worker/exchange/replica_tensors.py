"""The tensors of a replica by name, in the order in which all workers have them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from plesio.runtime.parameters.layout import TensorKind
from plesio.runtime.worker.exchange.local_part import block_of
from plesio.runtime.worker.island import Island

Described = tuple[str, torch.Tensor, TensorKind, int]
"""Name, tensor, kind and parameter group, as `Layout.of` takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTensors:
    """Lists the tensors of a replica; ``group_of`` is -1 for a parameter in no group of the optimizer."""

    model: torch.nn.Module
    parameters: Mapping[str, torch.nn.Parameter]
    frozen: Mapping[str, torch.nn.Parameter]
    buffers: Mapping[str, torch.Tensor]
    group_of: Mapping[str, int]

    def exchanged(self) -> list[Described]:
        """List the tensors that exchanges move in name order, parameters first."""
        parameters: list[Described] = [
            (name, self.parameters[name].detach(), "parameter", self.group_of[name]) for name in sorted(self.parameters)
        ]
        return parameters + [(name, self.buffers[name], "buffer", -1) for name in sorted(self.buffers)]

    def still(self) -> list[Described]:
        """List the tensors that workers share only at the start: frozen parameters and integer buffers."""
        others = {name: b for name, b in self.model.named_buffers() if name not in self.buffers}
        return [
            (name, tensor.detach(), "still", -1)
            for name, tensor in sorted({**self.frozen, **others}.items(), key=lambda named: named[0])
        ]

    def all(self) -> Sequence[torch.Tensor]:
        return [t.detach() for t in (*self.parameters.values(), *self.frozen.values(), *self.model.buffers())]

    def not_trained(self) -> Sequence[torch.Tensor]:
        """Return the parameters that were frozen when the workers agreed on what is trained, and all buffers."""
        return [t.detach() for t in (*self.frozen.values(), *self.model.buffers())]

    def digest(self) -> str:
        """Return a short name for the tensors' names, shapes and dtypes: equal on workers whose models are alike."""
        text = repr(
            [
                (name, tuple(tensor.shape), str(tensor.dtype), kind)
                for name, tensor, kind, _ in [*self.exchanged(), *self.still()]
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def held(self) -> str:
        """Describe which parts of the tensors are here, where they are those of an island's rank.

        It raises TaskError if one is placed so that its parts cannot be exchanged.
        """
        return repr([(name, block_of(tensor, name=name)) for name, tensor, _, _ in [*self.exchanged(), *self.still()]])

    def parts(self, island: Island | None) -> str | None:
        """Return a short name for the parts that the ranks of the island hold, all of which call it; None without."""
        if island is None:
            return None
        return hashlib.sha256("".join(island.all_texts(self.held())).encode()).hexdigest()[:16]

    @property
    def num_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.parameters.values())
