"""Records: the frozen values that are logged, sent and written to files, and the one way between them and JSON values.

A record's text is a JSON object of its fields. `Record.left_out` says which fields it leaves out; they have their
defaults when it is read back. If a field can hold one of several types, the object names its type (msgspec's tagged
unions); in a field that can hold one type only it does not.

A dataclass is a record, too, without omissions and tags. Reading is strict: a field that is missing, unknown or of
another type is an error that says where. The numbers NaN and infinity, which JSON itself lacks, are written as Python's
``json`` writes them where records travel (`to_values`), and as a text or null in files for others (`to_json`).
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

import msgspec

from plesio.core.errors import DataError


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is logged and sent."""

    omits: ClassVar[tuple[str, ...]] = ()
    """Fields that the text leaves out where they have their defaults."""

    def left_out(self) -> tuple[str, ...]:
        """Return the names of the fields that this record's text leaves out."""
        defaults = _defaults(type(self))
        return tuple(name for name in self.omits if getattr(self, name) == defaults[name])


def to_values(record: Any) -> dict[str, Any]:
    """Return a record as JSON values, or raise `TypeError` where a field holds something that JSON has no place for.

    >>> class Point(Record):
    ...     omits = ("label",)
    ...     at_s: float
    ...     label: str = ""
    >>> to_values(Point(at_s=1.5)), to_values(Point(at_s=float("nan"), label="late"))
    ({'at_s': 1.5}, {'at_s': nan, 'label': 'late'})
    """
    values: dict[str, Any] = msgspec.to_builtins(record, enc_hook=_plain)
    if isinstance(record, Record):
        _shorten(record, values)
    return values


def from_values(values: object, kind: Any) -> Any:
    """Return the value of type ``kind`` (a record, or a union of records) that `to_values` wrote.

    Raises `DataError` if it is none; the message says where it is not.
    """
    try:
        made = msgspec.convert(values, type=kind)
    except msgspec.ValidationError as error:
        raise DataError(str(error)) from error
    if dataclasses.is_dataclass(kind):
        _check_names(values, made, "$")
    return made


def to_json(value: Any, *, not_finite: Callable[[float], str | None] = str) -> Any:
    """Return what a file for other programs has of a value: records as objects, sequences and arrays as lists.

    ``not_finite`` gives the stand-in for NaN and infinity. Raises `TypeError` for a value of another type.

    >>> to_json({"rate": float("inf"), 4: (1, 2.5)})
    {'rate': 'inf', '4': [1, 2.5]}
    """
    return _finite(msgspec.to_builtins(value, enc_hook=_plain), not_finite)


def _finite(value: Any, not_finite: Callable[[float], str | None]) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else not_finite(value)
    if isinstance(value, dict):
        return {str(key): _finite(one, not_finite) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one, not_finite) for one in value]
    return value


def _check_names(values: Any, made: Any, where: str) -> None:
    """Refuse fields that a dataclass lacks, as msgspec does for its own structs."""
    if dataclasses.is_dataclass(made):
        unknown = values.keys() - {field.name for field in dataclasses.fields(made)}
        if unknown:
            raise DataError(f"Object contains unknown field `{min(unknown)}` - at `{where}`")
        for name, value in values.items():
            _check_names(value, getattr(made, name), f"{where}.{name}")
    elif isinstance(made, list | tuple):
        for value, one in zip(values, made, strict=True):
            _check_names(value, one, f"{where}[...]")


def _plain(value: Any) -> object:
    """Return what Python itself has for a value of another type: numbers, texts and arrays of NumPy's, mappings."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, range):
        return list(value)
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
    """Return the fields that hold records, and the tag that is implied there."""
    found: dict[str, str | None] = {}
    hints = get_type_hints(kind)
    for name in kind.__struct_fields__:
        kinds = [one for one in get_args(hints[name]) or (hints[name],) if isinstance(one, type)]
        records = [one for one in kinds if issubclass(one, Record)]
        if records:
            found[name] = records[0].__struct_config__.tag_field if len(records) == 1 else None
    return found
