"""What a part of a worker remembers, as plain values: numbers, texts, tensors, and lists and tables of them.

A part's attributes are taken as they are, so a part needs no code of its own to be saved; what it was given (a clock,
a connection) is left out by name. Only plain values are written, and only they are read back: a file of them can run
nothing.
"""

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

__all__ = ["own_numbers", "recall", "remember"]

_KIND = "kind of part"


def remember(part: object, *, without: Collection[str] = (), inner: Collection[type] = ()) -> dict[str, Any]:
    """The attributes of ``part`` as plain values.

    Args:
        part: Whose.
        without: Attributes to leave out.
        inner: Types of parts that its attributes may hold, and are remembered with them.

    >>> class Counter:
    ...     def __init__(self): self.last, self.seen = deque([1, 2], maxlen=2), {("a", 1): 3}
    >>> values = remember(Counter()); values["seen"]
    {'kind of part': 'table', 'items': [[['tuple', 'a', 1], 3]]}
    >>> other = Counter(); other.last = deque(); recall(other, values); other.last, other.seen
    (deque([1, 2], maxlen=2), {('a', 1): 3})
    """
    known = {kind.__name__: kind for kind in inner}
    return {name: _plain(getattr(part, name), known) for name in _names(part) if name not in without}


def recall(part: object, values: dict[str, Any], *, inner: Collection[type] = ()) -> None:
    """Give ``part`` the attributes that `remember` took of another one like it."""
    known = {kind.__name__: kind for kind in inner}
    for name, value in values.items():
        setattr(part, name, _back(value, known))


def own_numbers(value: Any) -> Any:
    """``value`` with Python's numbers in place of NumPy's, in lists and tables too: a file of plain values takes these.

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


def _names(part: object) -> Iterator[str]:
    for kind in type(part).__mro__:
        yield from getattr(kind, "__slots__", ())
    yield from getattr(part, "__dict__", ())


def _plain(value: Any, known: dict[str, type]) -> Any:
    if type(value).__name__ in known:
        kind = known[type(value).__name__]
        return {_KIND: kind.__name__, "values": remember(value, inner=known.values())}
    if isinstance(value, deque):
        return {_KIND: "deque", "items": [_plain(one, known) for one in value], "most": value.maxlen}
    if isinstance(value, dict):
        return {_KIND: "table", "items": [[_plain(key, known), _plain(one, known)] for key, one in value.items()]}
    if isinstance(value, tuple):
        return ["tuple", *(_plain(one, known) for one in value)]
    if isinstance(value, list):
        return ["list", *(_plain(one, known) for one in value)]
    return value


def _back(value: Any, known: dict[str, type]) -> Any:
    if isinstance(value, list):
        items = [_back(one, known) for one in value[1:]]
        return tuple(items) if value[0] == "tuple" else items
    if not isinstance(value, dict):
        return value
    if value[_KIND] == "deque":
        return deque((_back(one, known) for one in value["items"]), maxlen=value["most"])
    if value[_KIND] == "table":
        return {_back(key, known): _back(one, known) for key, one in value["items"]}
    kind = known[value[_KIND]]
    part: object = object.__new__(kind)
    recall(part, value["values"], inner=known.values())
    return part
