"""Records: the frozen values that are logged and sent, and the one way between them and JSON values.

A record's text is a JSON object of its fields. `Record.left_out` says which fields it leaves out; they have their
defaults when it is read back. Where one of several types may stand, the object names its type (msgspec's tagged
unions); in a field that can hold one type only it does not.

Reading is strict: a field that is missing, unknown or of another type is an error that says where. The numbers NaN and
infinity, which JSON itself lacks, are written as Python's ``json`` writes them.
"""

from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

import msgspec

from plesio.core.errors import DataError

__all__ = ["Record", "from_values", "to_values"]


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is logged and sent."""

    omits: ClassVar[tuple[str, ...]] = ()
    """Fields that the text leaves out where they have their defaults."""

    def left_out(self) -> tuple[str, ...]:
        """Names of the fields that this record's text leaves out."""
        defaults = _defaults(type(self))
        return tuple(name for name in self.omits if getattr(self, name) == defaults[name])


def to_values(record: Any) -> dict[str, Any]:
    """Return a record as JSON values; a plain struct of msgspec's or a dataclass, too.

    >>> class Point(Record):
    ...     omits = ("label",)
    ...     at_s: float
    ...     label: str = ""
    >>> to_values(Point(at_s=1.5)), to_values(Point(at_s=float("nan"), label="late"))
    ({'at_s': 1.5}, {'at_s': nan, 'label': 'late'})

    Raises:
        TypeError: A field holds something that JSON has no place for.
    """
    values: dict[str, Any] = msgspec.to_builtins(record, enc_hook=_plain)
    if isinstance(record, Record):
        _shorten(record, values)
    return values


def from_values(values: object, kind: Any) -> Any:
    """Return the value of type ``kind`` (a record, or a union of records) that `to_values` wrote.

    Raises:
        DataError: It is none; the message says where it is not.
    """
    try:
        return msgspec.convert(values, type=kind)
    except msgspec.ValidationError as error:
        raise DataError(str(error)) from error


def _plain(value: object) -> object:
    """A number or text of a type derived from Python's own, such as ``numpy.float64``, as one of Python's own."""
    for kind in (float, int, str):
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _shorten(record: Record, values: dict[str, Any]) -> None:
    for name in record.left_out():
        del values[name]
    for name, tag in _inner(type(record)).items():
        inner = getattr(record, name)
        if isinstance(inner, Record) and name in values:
            _shorten(inner, values[name])
            if tag is not None:
                values[name].pop(tag, None)


@cache
def _defaults(kind: type[Record]) -> dict[str, Any]:
    return {field.name: field.default for field in msgspec.structs.fields(kind)}


@cache
def _inner(kind: type[Record]) -> dict[str, str | None]:
    """The fields that hold records, and the tag that goes without saying there."""
    found: dict[str, str | None] = {}
    hints = get_type_hints(kind)
    for name in kind.__struct_fields__:
        kinds = [one for one in get_args(hints[name]) or (hints[name],) if isinstance(one, type)]
        records = [one for one in kinds if issubclass(one, Record)]
        if records:
            found[name] = records[0].__struct_config__.tag_field if len(records) == 1 else None
    return found
