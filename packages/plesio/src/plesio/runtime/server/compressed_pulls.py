"""Pulls that carry how the parameters have changed, compressed: what a pull leaves out comes with the next.

A server keeps the parameters as each worker has them, and encodes how its own differ from them. It encodes what a
worker of one process pulls together, of an island each tensor's part by itself: what several ranks hold alike is
encoded once, so that it stays alike.
"""

from collections.abc import Hashable, Iterable, Sequence

import torch

from plesio.policies.compression import parse_compression
from plesio.protocol.bulk import BlockRow
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.parameters.layout import Slice
from plesio.runtime.server.payloads import views_of

_Pairs = list[tuple[torch.Tensor, torch.Tensor]]
"""Parameters as they are, and as a worker has them."""


class CompressedPulls:
    """The parameters as the workers have them that pull compressed.

    Args:
        slices: The shard's.
        views: Their values, flat, as they are pulled.
    """

    def __init__(self, slices: Sequence[Slice], views: Sequence[torch.Tensor]) -> None:
        self._slices, self._views = slices, views
        self._held: dict[int, dict[int, torch.Tensor]] = {}
        """By worker and slice."""

    def sent_in_full(self, worker: int, indices: Iterable[int]) -> None:
        """Take note that a worker gets these slices as they are."""
        parameters = {index: self._views[index].clone() for index in indices if self._slices[index].kind == "parameter"}
        self._held.setdefault(worker, {}).update(parameters)

    def forget(self, worker: int) -> None:
        self._held.pop(worker, None)

    def changes(
        self,
        worker: int,
        among: Sequence[int] | None,
        compressed: str,
        *,
        version: int,
        parts: Sequence[Sequence[BlockRow] | None],
    ) -> tuple[Sequence[int], list[list[torch.Tensor]]] | None:
        """Encode how what a worker has differs from the parameters.

        Args:
            worker: It gets them.
            among: Indices of those that may be copied; None: all.
            compressed: The compression.
            version: The parameters'.
            parts: For each of the worker's ranks, the part of every slice's tensor; None: all.

        Returns:
            The indices, and what each rank is sent of them (uint8); None if they cannot be sent so.
        """
        held = self._held.get(worker)
        if held is None:
            return None
        indices = sorted(held) if among is None else list(among)
        units: dict[Hashable, _Pairs] = {}
        orders: list[list[Hashable]] = []
        for blocks in parts:
            if blocks is None:
                units[0] = [(self._views[index], held[index]) for index in indices]
                orders.append([0])
                continue
            orders.append([(index, blocks[index]) for index in indices])
            for index in indices:
                cut = (views_of(of, self._slices[index], blocks[index]) for of in (self._views[index], held[index]))
                units[index, blocks[index]] = list(zip(*cut, strict=True))
        encoded = _encoded(units, compressed, worker=worker, version=version)
        return None if encoded is None else (indices, [[encoded[key] for key in order] for order in orders])


def _encoded(
    units: dict[Hashable, _Pairs], compressed: str, *, worker: int, version: int
) -> dict[Hashable, torch.Tensor] | None:
    """Encode each unit by itself, and bring what the worker has up to that; None if one cannot be sent so."""
    encoded: dict[Hashable, torch.Tensor] = {}
    sent: list[tuple[_Pairs, torch.Tensor]] = []
    for number, (key, pairs) in enumerate(units.items()):
        flat = torch.cat([(now - have).float().reshape(-1) for now, have in pairs] or [torch.empty(0)])
        if not len(flat):
            encoded[key] = torch.empty(0, dtype=torch.uint8)
            continue
        codec = make_codec(parse_compression(compressed), num_elements=len(flat), seed=number, rank=worker)
        payload = codec.encode(flat, clock=version)
        encoded[key] = payload.view(torch.uint8)
        sent.append((pairs, codec.decode(payload, clock=version)))
    if not all(bool(one.isfinite().all()) for _, one in sent):
        return None
    for pairs, changes in sent:
        for (_, have), part in zip(pairs, torch.split(changes, [have.numel() for _, have in pairs]), strict=True):
            have.add_(part.view_as(have).to(have.dtype))
    return encoded
