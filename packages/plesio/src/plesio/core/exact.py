"""Values as plain ones, and back as they were: equal, and of the same types.

Plain values are numbers, texts, lists, tuples, and tables by text; so a file of them can run nothing when it is read.
Whatever Python's own types need beside is a table that names its kind.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

KIND = "kind"
_ATOMS = (type(None), bool, float, str)
_MOST_BITS = 1024
"""Bits of the largest integer that is written as a number."""
_FACTORIES = {"None": None, **{kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}}


class _Kind(NamedTuple):
    """One of Python's types.

    Attributes:
        type: The type itself; subclasses are other types.
        parts: Function that takes a value apart into values that can be encoded themselves.
        whole: Makes it of them again.
    """

    type: type
    parts: Callable[[Any], Iterable[Any]]
    whole: Callable[..., Any]


def _ordered(items: list[tuple[Any, Any]], attributes: dict[str, Any]) -> OrderedDict[Any, Any]:
    made = OrderedDict(items)
    vars(made).update(attributes)  # a module's state_dict has its versions there
    return made


_TABLES = {
    "dict": _Kind(dict, lambda it: [], dict),
    "OrderedDict": _Kind(OrderedDict, lambda it: [dict(vars(it))], _ordered),
    "Counter": _Kind(Counter, lambda it: [], lambda items: Counter(dict(items))),
    "defaultdict": _Kind(
        defaultdict,
        lambda it: [getattr(it.default_factory, "__name__", "None")],
        lambda items, factory: defaultdict(_FACTORIES[factory], items),
    ),
}
"""Are made of their items and of these parts."""
_KINDS = {
    **_TABLES,
    "deque": _Kind(deque, lambda it: [it.maxlen, *it], lambda most, *items: deque(items, most)),
    "set": _Kind(set, iter, lambda *items: set(items)),
    "frozenset": _Kind(frozenset, iter, lambda *items: frozenset(items)),
    "int": _Kind(int, lambda it: [hex(it)], lambda text: int(text, 16)),
    "complex": _Kind(complex, lambda it: [it.real, it.imag], complex),
    "bytes": _Kind(bytes, lambda it: [it.decode("latin-1")], lambda text: text.encode("latin-1")),
    "bytearray": _Kind(bytearray, lambda it: [it.decode("latin-1")], lambda text: bytearray(text, "latin-1")),
    "range": _Kind(range, lambda it: [it.start, it.stop, it.step], range),
    "date": _Kind(date, lambda it: [it.isoformat()], date.fromisoformat),
    "datetime": _Kind(
        datetime,
        lambda it: [it.replace(tzinfo=None).isoformat(), it.fold, it.tzinfo],
        lambda text, fold, zone: datetime.fromisoformat(text).replace(fold=fold, tzinfo=zone),
    ),
    "timedelta": _Kind(timedelta, lambda it: [it.days, it.seconds, it.microseconds], timedelta),
    "timezone": _Kind(timezone, lambda it: [it.utcoffset(None), it.tzname(None)], timezone),
    "path": _Kind(type(Path()), lambda it: [str(it)], Path),
}
_NAMES = {kind.type: name for name, kind in _KINDS.items()}


def encoded(value: Any, *, other: Callable[[Any, str], Any], path: str = "") -> Any:
    """Return ``value`` as plain values; lists, tables and the like are copied.

    ``other`` is given each value of another type, and its path from the outermost; it returns a stand-in, or raises.

    >>> def refuse(value, path): raise TypeError(f"{path} is a {type(value).__name__}")
    >>> def again(value): return decoded(encoded(value, other=refuse), other=refuse)
    >>> again({"seen": deque([1, (2, 3)], maxlen=4), 7: {1 + 2j}})
    {'seen': deque([1, (2, 3)], maxlen=4), 7: {(1+2j)}}
    >>> again({"rule": [0, max]})
    Traceback (most recent call last):
    TypeError: rule[1] is a builtin_function_or_method
    """
    kind = type(value)
    if kind in _ATOMS or (kind is int and value.bit_length() <= _MOST_BITS):
        return value
    if kind in (list, tuple):
        return kind(encoded(one, other=other, path=f"{path}[{at}]") for at, one in enumerate(value))
    if kind not in _NAMES or (kind is defaultdict and value.default_factory not in _FACTORIES.values()):
        return other(value, path)
    name = _NAMES[kind]
    plain = {KIND: name, "of": [encoded(part, other=other, path=path) for part in _KINDS[name].parts(value)]}
    if name in _TABLES:
        plain["items"] = [
            (encoded(key, other=other, path=f"a key of {path}"), encoded(one, other=other, path=_within(path, key)))
            for key, one in value.items()
        ]
    return plain


def decoded(value: Any, *, other: Callable[[dict[str, Any], str], Any]) -> Any:
    """Rebuild the value that `encoded` was given; ``other`` is given each table of a kind that is not Python's."""
    if type(value) in (list, tuple):
        return type(value)(decoded(one, other=other) for one in value)
    if type(value) is not dict:
        return value
    if value[KIND] not in _KINDS:
        return other(value, value[KIND])
    parts = [decoded(part, other=other) for part in value["of"]]
    if value[KIND] in _TABLES:
        parts.insert(0, decoded(value["items"], other=other))
    return _KINDS[value[KIND]].whole(*parts)


def _within(path: str, key: Any) -> str:
    if not isinstance(key, str) or not key.isidentifier():
        return f"{path}[{key!r}]"
    return f"{path}.{key}" if path else key


def own_numbers(value: Any) -> Any:
    """Put Python's numbers in place of NumPy's, in lists and tables too: a file of plain values takes these.

    >>> import numpy as np
    >>> own_numbers({"lr": np.float64(0.5), "lrs": [np.int64(3), (np.float32(0.25), "text")]})
    {'lr': 0.5, 'lrs': [3, (0.25, 'text')]}
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {key: own_numbers(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(own_numbers(one) for one in value)
    return value
