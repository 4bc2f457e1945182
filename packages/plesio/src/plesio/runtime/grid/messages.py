"""Messages of stages: tensors of any shapes in messages of one size, so that room is there before they come.

A message is a header, which says what tensors it has, and their bytes. The first one in a direction settles its size,
for those that follow too; before a larger one comes a message without tensors, which says how large they are from then
on. A worker that cannot go on says so in place of tensors, and
who hears it passes it on: so all know the reason, whoever they wait for.
"""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from plesio.core.errors import PlesioError, TaskError
from plesio.runtime.worker.exchange.links import Inbox, Links, PeerGoneError

_HEADER_BYTES = 1024
_SIZE_BYTES = 8
_ALIGNMENT = 64


class PeerFailedError(PlesioError):
    """Another worker of the grid cannot go on, for the reason that it gave."""


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _header(tensors: Sequence[Tensor], **more: object) -> bytes:
    rows = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in tensors]
    header = json.dumps({"tensors": rows, **more}).encode()
    if len(header) > _HEADER_BYTES:
        raise TaskError(f"a stage hands on {len(tensors)} tensors, more than a message can name; put them into fewer")
    return header.ljust(_HEADER_BYTES)


def num_message_bytes(tensors: Sequence[Tensor]) -> int:
    """Count the bytes of a message that has room for these."""
    return _HEADER_BYTES + sum(_aligned(tensor.numel() * tensor.element_size()) for tensor in tensors)


def pack(tensors: Sequence[Tensor], *, num_bytes: int, **more: object) -> Tensor:
    """Pack tensors into a message of ``num_bytes``; ``more`` goes into its header."""
    device = tensors[0].device if tensors else torch.device("cpu")
    message = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    header = torch.frombuffer(bytearray(_header(tensors, **more)), dtype=torch.uint8)
    message[:_HEADER_BYTES].copy_(header)
    place = _HEADER_BYTES
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        message[place : place + size].view(tensor.dtype).copy_(tensor.detach().reshape(-1))
        place += _aligned(size)
    return message


def _header_of(message: Tensor) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(bytes(message[:_HEADER_BYTES].cpu().numpy()))
    return header


def unpack(message: Tensor) -> tuple[list[Tensor], dict[str, object]]:
    """Return the tensors of a message, as views of it, and the other fields of its header."""
    header = _header_of(message)
    tensors, place = [], _HEADER_BYTES
    for name, shape in header.pop("tensors"):
        dtype = getattr(torch, name)
        size = math.prod(shape) * dtype.itemsize
        tensors.append(message[place : place + size].view(dtype).view(shape))
        place += _aligned(size)
    return tensors, header


def as_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def as_text(tensor: Tensor) -> str:
    return bytes(tensor.cpu().numpy()).decode()


@dataclass(slots=True)
class Outgoing:
    """Messages to one worker under one tag.

    Attributes:
        most: So many may be on their way; one that says a size counts as one of them, and makes room for itself.
    """

    links: Links
    to: int
    tag: int
    most: int = 2
    num_bytes: int | None = None

    def send(self, tensors: Sequence[Tensor], **more: object) -> None:
        needed = num_message_bytes(tensors)
        if self.num_bytes is None:
            self.num_bytes = needed
            size = torch.tensor([needed]).view(torch.uint8)
            self.links.send(size, to=self.to, tag=self.tag, most=self.most)
        if needed > self.num_bytes:
            self.most += 1  # the receiver may read nothing yet
            grown = pack([], num_bytes=self.num_bytes, grown=needed)
            self.links.send(grown, to=self.to, tag=self.tag, most=self.most)
            self.num_bytes = needed
        message = pack(tensors, num_bytes=self.num_bytes, **more)
        self.links.send(message, to=self.to, tag=self.tag, most=self.most)

    def deliver(self, tensors: Sequence[Tensor], **more: object) -> None:
        """Send tensors, and return when they have left."""
        self.send(tensors, **more)
        self.links.flush(self.to, tag=self.tag)  # what is under others may wait for the receiver's next step

    def fail(self, reason: str) -> None:
        """Send that there will be no more, and why; a receiver that is gone need not get it."""
        while len(json.dumps(reason)) > _HEADER_BYTES // 2:  # as written, where a character may take six
            reason = reason[: len(reason) * 3 // 4]
        with contextlib.suppress(PeerGoneError):
            self.send([], failed=reason)


@dataclass(slots=True)
class Incoming:
    """Messages from one worker under one tag; room for the next one is made as soon as its size is known.

    Attributes:
        pending: Messages that have been taken off the links, to be read first.
    """

    links: Links
    source: int
    tag: int
    num_bytes: int | None = None
    pending: list[Tensor] = field(default_factory=list)
    _expected: Inbox | None = None

    def expect(self) -> None:
        """Make room for a message that will come."""
        if self._expected is None and self.num_bytes is not None:
            self._expected = self.links.expect(self.num_bytes, source=self.source, tag=self.tag)

    def take(self, *, more: bool) -> tuple[list[Tensor], dict[str, object]]:
        """Wait for the next message.

        Args:
            more: True if one more will follow, so that room can be made for it at once.

        Raises:
            PeerFailedError: The sender cannot go on.
            PeerGoneError: The sender is gone.
        """
        message = self.pending.pop(0) if self.pending else self._wait()
        if more and not self.pending:
            self.expect()
        tensors, header = unpack(message)
        if "failed" in header:
            raise PeerFailedError(str(header["failed"]))
        return tensors, header

    def state(self) -> dict[str, Any]:
        """Return the size of messages, and those that were taken off and not read; plain."""
        return {"num_bytes": self.num_bytes, "pending": [message.clone() for message in self.pending]}

    def load(self, state: dict[str, Any]) -> None:
        self.num_bytes, self.pending = state["num_bytes"], list(state["pending"])

    def hold(self, count: int) -> None:
        """Take so many messages off the links, to be read later."""
        while len(self.pending) < count:
            self.pending.append(self._wait())

    def _wait(self) -> Tensor:
        if self.num_bytes is None:
            size = self.links.expect(_SIZE_BYTES, source=self.source, tag=self.tag).wait()
            self.num_bytes = int(size.view(torch.int64).item())
        while True:
            self.expect()
            assert self._expected is not None
            message = self._expected.wait()
            self._expected = None
            grown = _header_of(message).get("grown")
            if grown is None:
                return message
            self.num_bytes = grown
