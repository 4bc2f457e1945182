"""Dataclasses, arrays and numbers as what JSON has."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["to_json"]


def to_json(value: Any) -> Any:
    """``value`` as JSON values: dataclasses as objects, sequences and arrays as lists, what is not finite as text.

    >>> to_json({"rate": float("inf"), 4: (1, 2.5)})
    {'rate': 'inf', '4': [1, 2.5]}

    Raises:
        TypeError: A value of another type.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(each) for key, each in value.items()}
    if hasattr(value, "tolist"):  # numpy's arrays and scalars
        return to_json(value.tolist())
    if isinstance(value, (list, tuple, range)):
        return [to_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise TypeError(f"{type(value).__name__} has no place in JSON")
