"""One rank's connections to the servers, where a worker is an island.

All ranks make the same calls at the same places. The leader alone sends and receives control messages, and tells the
others each one that it waits for, so that all decide alike. Bulk data go by each rank's own connections, its own part.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from msgspec.structs import replace

from plesio.core.results import Found
from plesio.protocol.bulk import Pull
from plesio.protocol.message import Message, decode, encode, kind_of
from plesio.runtime.parameters.layout import SliceLayout
from plesio.runtime.worker.exchange.group import CutOffError
from plesio.runtime.worker.exchange.island_parts import IslandLayout
from plesio.runtime.worker.exchange.replica_tensors import Described
from plesio.runtime.worker.exchange.store_client import Present, StoreClient
from plesio.runtime.worker.island import Island

M = TypeVar("M", bound=Message)


def layout_for(client: StoreClient, tensors: Sequence[Described]) -> SliceLayout:
    """Return the layout of these tensors on the servers; the ranks of an island divide it among them."""
    layout = SliceLayout.of(tensors, num_servers=len(client.endpoints))
    if isinstance(client, IslandClient):
        client.divide(layout, {name: tensor for name, tensor, _, _ in tensors})
    return layout


class IslandClient(StoreClient):
    """A rank's end of its connections."""

    def __init__(self, *arguments: Any, island: Island, **connections: Any) -> None:
        super().__init__(*arguments, **connections)
        self._island = island

    def divide(self, layout: SliceLayout, tensors: Mapping[str, torch.Tensor]) -> None:
        """Agree with the other ranks on what of the layout each sends and receives, once; see `IslandLayout.of`.

        The first request for the parameters tells the servers.
        """
        self.divided = self.divided or IslandLayout.of(layout, tensors, island=self._island)

    def send(self, message: Message) -> None:
        if self._island.leads:
            super().send(message)

    def await_message(self, kind: type[M], **how: Any) -> M:
        text = ""
        if self._island.leads:
            try:
                message = super().await_message(kind, **how)
            except CutOffError:
                self._island.told("")
                raise
            text = json.dumps(encode(message)[1])
        if not (text := self._island.told(text)):
            raise CutOffError("the island's leader was cut off")
        told: M = decode(kind_of(kind), json.loads(text), kind, peer="the island's leader")
        return told

    def await_alone(self, kind: type[M], *, timeout_s: float | None = None) -> M:
        return super().await_message(kind, timeout_s=timeout_s)

    def ignore_next(self, kind: type[Message]) -> None:
        if self._island.leads:
            super().ignore_next(kind)

    def _ask(self, message: Message, *, clock: int = 0, present: Present | None = None) -> int:
        if not isinstance(message, Pull) or message.known is not None:
            return super()._ask(message, clock=clock, present=present)
        assert self.divided is not None, "divided before anything is asked for"
        self._let_go()
        number = next(self._numbers)
        for endpoint, part in zip(self.endpoints, self.divided.parts, strict=True):
            kind, meta = encode(replace(message, part=part))
            endpoint.push(self._header(kind, clock=clock, request=number), meta=meta)
        return number

    def common(self, found: Found) -> Found:
        return None if found is None else self._island.metric(found)
