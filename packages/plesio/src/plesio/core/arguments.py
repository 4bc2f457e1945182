"""Arguments and fields are looked through before anything begins, by their types.

A type is one of Python's, a class, a protocol, a Literal, or a union, tuple or sequence of these. Which numbers it may
be is beside it (`plesio.core.within`), and so are words for it, where its own name does not say what to write:
``Annotated[Policy | str, 'a policy or its text, as in "ssp:4"']``. Numbers of NumPy become Python's, and lists tuples.
"""

import dataclasses
import functools
import inspect
import math
import os
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from plesio.core.errors import ConfigError, nearest
from plesio.core.within import ANY, Within

Asked = ParamSpec("Asked")
Result = TypeVar("Result")
Fit = Callable[[Any], Any]
_LONG = 10**20
_NOUNS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    NoneType: "None",
    Callable: "a function",
}


def checked(function: Callable[Asked, Result]) -> Callable[Asked, Result]:
    """Wrap ``function`` so that it refuses, before it begins, arguments that its parameters' types do not take.

    >>> @checked
    ... def keep(num: Annotated[int, Within(1)], where: Path | str | None = None): pass
    >>> keep(1.5)
    Traceback (most recent call last):
    plesio.core.errors.ConfigError: keep: num is 1.5; write a whole number of 1 or more
    >>> keep(1, where=3)
    Traceback (most recent call last):
    plesio.core.errors.ConfigError: keep: where is 3; write a path or None
    """
    signature, owner = inspect.signature(function), f"{function.__qualname__.removesuffix('.__init__')}: "

    @functools.wraps(function)
    def ask(*args: Asked.args, **kwargs: Asked.kwargs) -> Result:
        given = signature.bind(*args, **kwargs)
        for name, hint in _hints(function).items():
            if name in given.arguments:
                value = given.arguments[name]
                given.arguments[name] = _fitting(owner, name, hint, value, ConfigError)
        return function(*given.args, **given.kwargs)

    return ask


def check_fields(thing: Any, owner: str, *, error: type[ConfigError] = ConfigError) -> None:
    """Raise ``error`` unless every field of a dataclass that was just made is what its type takes; it may be frozen."""
    kind: Any = type(thing)
    hints = _hints(kind)
    for one in dataclasses.fields(thing):
        value = getattr(thing, one.name)
        fitting = _fitting(owner, one.name, hints[one.name], value, error)
        if fitting is not value:
            object.__setattr__(thing, one.name, fitting)


def shown(value: Any) -> str:
    """Write a refused value as part of a line."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LONG:
        return f"a number of {int(math.log10(abs(value))) + 1} digits"
    text = repr(value)
    return textwrap.shorten(text, width=60, placeholder="...") if "\n" not in text else f"a {type(value).__name__}"


@functools.cache
def _hints(owner: Any) -> Mapping[str, tuple[Any, Fit]]:
    hints = typing.get_type_hints(owner, include_extras=True)
    return {name: (hint, _fit(hint)) for name, hint in hints.items() if name != "return" and not _is_class_var(hint)}


def _is_class_var(hint: Any) -> bool:
    return hint is ClassVar or get_origin(hint) is ClassVar


def _fitting(owner: str, name: str, hint: tuple[Any, Fit], value: Any, error: type[ConfigError]) -> Any:
    wanted, fit = hint
    try:
        return fit(value)
    except _UnfitError as unfit:
        known = get_args(wanted) if get_origin(wanted) is Literal else ()
        if known and all(isinstance(one, str) for one in (value, *known)):
            raise error(f'{owner}{name} is "{value}"; {nearest(value, known)}') from None
        raise error(f"{owner}{name} is {shown(value)}; {str(unfit) or f'write {_words(wanted)}'}") from None


class _UnfitError(Exception):
    """A value is of another type; says what to write where its words would not."""


def _fit(hint: Any, within: Within = ANY) -> Fit:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fit(parts[0], next((note for note in parts[1:] if isinstance(note, Within)), within))
    if origin in (Union, UnionType):
        return partial(_one_of, [_fit(part, within) for part in parts])
    if hint in (int, float):
        return partial(_number, Integral if hint is int else Real, within)
    if origin in (tuple, Sequence, list, Iterable):
        several = origin is not tuple or Ellipsis in parts
        return partial(_items, hint, [_fit(part, within) for part in parts if part is not Ellipsis], several)
    return partial(_itself, hint, origin)


def _one_of(fits: Sequence[Fit], value: Any) -> Any:
    said = ""
    for fit in fits:
        try:
            return fit(value)
        except _UnfitError as unfit:
            said = said or str(unfit)
    raise _UnfitError(said)


def _items(hint: Any, fits: list[Fit], several: bool, value: Any) -> Any:
    """Convert each item; a list stays a list unless a tuple is wanted."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return _itself(hint, get_origin(hint), value)
    if not several and len(fits) != len(value):
        raise _UnfitError
    fitted = [fit(one) for fit, one in zip(fits * len(value) if several else fits, value, strict=True)]
    return tuple(fitted) if isinstance(value, tuple) or get_origin(hint) is tuple else fitted


def _number(kind: Any, within: Within, value: Any) -> int | float:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _UnfitError
    number: int | float = int(value) if isinstance(value, Integral) else float(value)
    refusal = within.refusal(number)
    if refusal:
        raise _UnfitError("" if within.words in refusal or "finite" in refusal else refusal)
    return number


def _itself(hint: Any, origin: Any, value: Any) -> Any:
    if not _is(hint, origin, value):
        raise _UnfitError
    return value


def _is(hint: Any, origin: Any, value: Any) -> bool:
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(hint))
    kind = origin or hint
    if kind is Callable:
        return callable(value)
    if kind in (tuple, Sequence, list):
        return False
    if kind is Iterable:
        return isinstance(value, Iterable) and not isinstance(value, str | bytes)
    if kind is Path:
        return isinstance(value, os.PathLike)
    if getattr(kind, "_is_protocol", False):
        return not isinstance(value, type) and all(_has(value, name) for name in _members(kind))
    return isinstance(value, kind)


def _has(value: Any, name: str) -> bool:
    return inspect.getattr_static(value, name, None) is not None or name in getattr(value, "__dict__", ())


@functools.cache
def _members(protocol: type) -> tuple[str, ...]:
    parents = [one for one in protocol.__mro__ if getattr(one, "_is_protocol", False)]
    names = {name for one in parents for name in (*vars(one), *inspect.get_annotations(one))}
    return tuple(sorted(name for name in names if not name.startswith("_")))


def _words(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        plain = _words(parts[0])
        for note in parts[1:]:
            plain = note if isinstance(note, str) else f"{plain} of {note.words}" if isinstance(note, Within) else plain
        return plain
    if origin in (Union, UnionType):
        kinds = [part for part in parts if part is not str or Path not in parts]
        return " or ".join(map(_words, kinds))
    if origin is Literal:
        return " or ".join(f'"{one}"' if isinstance(one, str) else repr(one) for one in parts)
    if origin in (tuple, Sequence, list, Iterable):
        return f"several, each {_words(parts[0])}"
    kind = origin or hint
    return _NOUNS.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
