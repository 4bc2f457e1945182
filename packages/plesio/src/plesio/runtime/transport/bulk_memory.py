"""The memory of an endpoint's bulk messages: where they are put together, read in place, and sent from."""

from typing import Any

from plesio.core.records import to_values
from plesio.runtime.transport.assembly import Assembler, BufferPool
from plesio.runtime.transport.mappings import Mappings
from plesio.runtime.transport.outbox import Outbox
from plesio.runtime.transport.segments import MemoryOffer, make_pool

_FREE_PAYLOADS = 4
"""Largest payloads for which buffers are kept that nobody uses."""


class BulkMemory:
    """The memory of one endpoint.

    Args:
        shared: Whether a peer can be on this host.
    """

    def __init__(self, *, max_bytes: int, shared: bool) -> None:
        max_free_bytes = _FREE_PAYLOADS * max_bytes
        self.pool = BufferPool(max_free_bytes=max_free_bytes)
        """Buffers of what is received in chunks."""
        self.assembler = Assembler(self.pool, max_bytes=max_bytes)
        self.outbox = Outbox(
            segments=make_pool(max_free_bytes=max_free_bytes) if shared else None, max_free_bytes=max_free_bytes
        )
        self.mappings = Mappings(max_bytes=max_bytes)

    @property
    def offer(self) -> Any:
        """Offer of segments to a peer on this host, in JSON's values; None where there are none."""
        return None if self.outbox.segments is None else to_values(self.outbox.segments.offer)

    def admit(self, peer: bytes, offer: object) -> bool:
        """Tell whether the segments that ``peer`` offers can be opened from here; its earlier offer is forgotten."""
        return self.mappings.admit(peer, MemoryOffer.read(offer))

    def forget(self, peer: bytes) -> None:
        """Share no memory any more with this peer, which is gone, or begins anew."""
        self.mappings.forget(peer)
        self.outbox.forget(peer)

    def close(self) -> None:
        """Free everything; may be called twice."""
        self.mappings.close()
        self.outbox.close()
