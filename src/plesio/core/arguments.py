"""Checks of a call's arguments, from one table for each call."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from plesio.core.errors import ConfigError

__all__ = ["CALLABLE", "FOLDER", "YES_OR_NO", "Wanted", "check_arguments", "instance", "number", "or_none", "whole"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The values that an argument may have.

    Attributes:
        words: What to write.
        holds: Whether a value is that.
    """

    words: str
    holds: Callable[[Any], bool]


def whole(least: int) -> Wanted:
    """A whole number of at least ``least``; numpy's are, too."""
    return Wanted(f"a whole number of at least {least}", lambda value: _is(value, Integral) and value >= least)


def number(words: str, *, holds: Callable[[float], bool]) -> Wanted:
    """A number of which ``holds`` is true."""
    return Wanted(words, lambda value: _is(value, Real) and holds(float(value)))


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def instance(*kinds: type, words: str) -> Wanted:
    """An object of one of these types."""
    return Wanted(words, lambda value: isinstance(value, kinds))


def or_none(wanted: Wanted) -> Wanted:
    """The same, or None."""
    return Wanted(f"{wanted.words}, or None,", lambda value: value is None or wanted.holds(value))


CALLABLE = Wanted("a function", callable)
FOLDER = instance(str, os.PathLike, words="a path")
YES_OR_NO = instance(bool, words="True or False")


def check_arguments(call: str, wanted: Mapping[str, Wanted], values: Mapping[str, Any]) -> None:
    """Return when every argument that the table has is what it may be.

    >>> check_arguments("join", {"keep": whole(1)}, {"keep": 1.5})
    Traceback (most recent call last):
    plesio.core.errors.ConfigError: join(keep=1.5): a whole number of at least 1 is needed

    Raises:
        ConfigError: One is not.
    """
    for name, one in wanted.items():
        if not one.holds(values[name]):
            text = repr(values[name])
            text = text if len(text) <= 60 else f"<{type(values[name]).__name__}>"
            raise ConfigError(f"{call}({name}={text}): {one.words} is needed")
