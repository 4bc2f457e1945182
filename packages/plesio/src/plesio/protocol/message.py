"""Messages: what all of them have in common, and how they become a kind and JSON values, and back.

A message's type is its *kind*, a number in the head of the frame; its fields are the JSON object behind the head. So a
kind is msgspec's tag, kept outside the text. Kinds on the control channel and on the data channel are counted apart;
those from 240 on are the transport's own.
"""

from functools import cache
from typing import Any, ClassVar, Self, get_args

from plesio.core.errors import DataError, TransportError
from plesio.core.records import Record, from_values, to_values

_TAG = "kind"


class Message(Record, frozen=True, kw_only=True, tag_field=_TAG):
    """Base of every message; a type's ``tag`` is its kind, and no two types of a channel share one."""

    urgent: ClassVar[bool] = False
    """It goes to the worker's heartbeat thread, which receives it in the middle of a step, and its answers."""

    def body(self) -> dict[str, Any]:
        values = to_values(self)
        del values[_TAG]
        return values

    @classmethod
    def of_body(cls, body: dict[str, Any]) -> Self:
        """Make the message with these fields.

        Raises:
            DataError: A field is missing, unknown or of another type.
        """
        message: Self = from_values(body, cls)
        return message


@cache
def kind_of(message: type[Message]) -> int:
    kind = message.__struct_config__.tag
    assert isinstance(kind, int), f"{message} has no kind"
    return kind


def encode(message: Message) -> tuple[int, dict[str, Any]]:
    return kind_of(type(message)), message.body()


def decode(kind: int, body: Any, expected: Any, *, peer: str) -> Any:
    """Decode a message of one of the types ``expected`` (a message type or a union of them).

    Raises:
        TransportError: It is none of them; one line that names the sender.
    """
    message = _by_kind(expected).get(kind)
    if message is None:
        raise TransportError(f"{peer} sent a message of kind {kind}, which has no place here")
    try:
        return message.of_body(body)
    except DataError as error:
        name = message.__name__
        raise TransportError(f"{peer} sent a message {name} that cannot be read: {error}") from error


@cache
def _by_kind(expected: Any) -> dict[int, type[Message]]:
    return {kind_of(message): message for message in get_args(expected) or (expected,)}
