"""A function's inputs, read off it: names, units, defaults, explanations; and the fields of a class in the same form.

A parameter's name ends in its unit, and that is how its text is read: ``gradient_bytes`` is ``--gradient "700 MB"``,
``latency_s`` is ``--latency "10 us"``, ``budget_dollars`` is ``--budget 2M``, ``bytes_per_s`` is ``--bandwidth "25
GB/s"``, and ``num_workers`` is ``--workers 256``. Its type says the rest: int, float, bool, str, a Literal of texts, or
a tuple of one of them, written with commas. Which numbers it may be is beside the type (`plesio.core.within`), and so
is its option where the name does not say it (`Written`), and the other input without which it has no effect
(`plesio.core.only_with`). What it means is in the ``Args:`` of the docstring. Positional-only parameters are no inputs.
A function that takes fields of classes has ``**fields`` with the note `FieldsOf`; what they mean is in the
``Attributes:`` of the classes.
"""

import dataclasses
import functools
import inspect
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

from plesio.core.arguments import shown
from plesio.core.errors import ArgumentError, ConfigError, nearest
from plesio.core.only_with import OnlyWith
from plesio.core.units import (
    counted,
    format_bandwidth,
    format_bytes,
    format_count,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_seconds,
)
from plesio.core.within import ANY, AT_LEAST_0, Within

Kind = Literal["bandwidth", "size", "duration", "count", "number", "whole number", "text", "switch"]

_SUFFIXES: tuple[tuple[str, str, Kind], ...] = (
    ("bytes_per_s", "bandwidth", "bandwidth"),
    ("_bytes", "", "size"),
    ("_s", "", "duration"),
    ("parameters", "parameters", "count"),
    ("tokens", "tokens", "count"),
    ("_dollars", "", "count"),
)
_PARSE: dict[Kind, Callable[[str], Any]] = {
    "bandwidth": parse_bandwidth,
    "size": parse_bytes,
    "duration": parse_seconds,
    "count": parse_count,
}
_FORMAT: dict[Kind, Callable[[float], str]] = {
    "bandwidth": format_bandwidth,
    "size": format_bytes,
    "duration": format_seconds,
    "count": format_count,
}

_SMALLEST = 1e-30
"""The smallest number whose squares and cubes are sure to be no zero."""

Asked = ParamSpec("Asked")
Result = TypeVar("Result")
_METAVARS: dict[Kind, str] = {
    "bandwidth": "BANDWIDTH",
    "size": "SIZE",
    "duration": "TIME",
    "count": "COUNT",
    "number": "X",
    "whole number": "N",
    "text": "TEXT",
    "switch": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How an input is written on the command line, where its name and its type do not say it.

    Attributes:
        option: The words of its option, without dashes: ``mtbf``.
        short: A single letter for it.
        metavar: Placeholder for its value in the help.
        instead: Text for the default, if that is no value: ``the recipe's``.
    """

    option: str = ""
    short: str = ""
    metavar: str = ""
    instead: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One parameter of a function.

    Attributes:
        many: Whether it is a tuple, written with commas.
        choices: The texts that it may be; any without.
        within: The numbers that it may be.
        optional: Whether it may be None.
        default: The value that reproduces the reference.
        only_with: Condition of its effect; None is everything.
    """

    name: str
    kind: Kind
    many: bool
    choices: tuple[str, ...]
    within: Within
    optional: bool
    default: Any
    help: str
    written: Written = Written()
    only_with: OnlyWith | None = None

    @property
    def required(self) -> bool:
        """True if there is no default."""
        return self.default is inspect.Parameter.empty

    @property
    def option(self) -> str:
        """Its option on the command line.

        >>> [one.option for one in inputs_of(_example)]
        ['--workers', '--gradient', '--nic-bandwidth']
        """
        if self.written.option:
            return f"--{self.written.option}"
        words = self.name.removeprefix("num_")
        for suffix, instead, kind in _SUFFIXES:
            if kind == self.kind and words.endswith(suffix):
                words = words.removesuffix(suffix) + instead
        return "--" + words.replace("_", "-")

    @property
    def metavar(self) -> str:
        """The placeholder of its value in the help."""
        if self.written.metavar:
            return self.written.metavar
        one = "|".join(self.choices) or _METAVARS[self.kind]
        return f"{one},..." if self.many else one

    def parse(self, text: str) -> Any:
        """Parse a value, or raise `ConfigError`; `check` tests if the function has an answer for it."""
        if not self.many:
            return self._parse_one(text)
        return tuple(self._parse_one(part.strip()) for part in text.split(",") if part.strip())

    def check(self, value: Any) -> None:
        """Raise `ConfigError` unless a value is of its kind, and a number within what it may be.

        Infinity is a number where the default has it.

        >>> inputs_of(_example)[0].check(0)
        Traceback (most recent call last):
        plesio.core.errors.ArgumentError: num_workers is 0; write 1 to 4096
        """
        if value is None and self.optional:
            return
        if not self.many:
            self._check_one(value)
            return
        if not isinstance(value, (tuple, list)):
            raise ArgumentError(f"`{self.name}` is {shown(value)}; write several, as in {self.default!r}")
        refusal = self.within.refusal_of_length(len(value))
        if refusal:
            raise ArgumentError(f"`{self.name}` has {counted(len(value), 'value')}; {refusal}")
        for each in value:
            self._check_one(each)

    def _check_one(self, value: Any) -> None:
        if self.kind == "switch":
            return
        if self.choices or self.kind == "text":
            if not isinstance(value, str):
                raise ArgumentError(f"`{self.name}` is {shown(value)}; write a text")
            if self.choices and value not in self.choices:
                raise ArgumentError(f'`{self.name}` is "{value}"; {nearest(value, self.choices)}')
            return
        kind, noun = (numbers.Integral, "whole number") if self.kind == "whole number" else (numbers.Real, "number")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ArgumentError(f"`{self.name}` is {shown(value)}; write a {noun}")
        if not (isinstance(value, float) and math.isinf(value) and self._may_be_infinite()):
            refusal = self.within.refusal(value)  # type: ignore[arg-type]
            if isinstance(value, float) and 0 < abs(value) < _SMALLEST:
                refusal = f"write {_SMALLEST:g} or more"
            if refusal:
                raise ArgumentError(f"`{self.name}` is {shown(value)}; {refusal}")

    def _may_be_infinite(self) -> bool:
        defaults = (self.default or ()) if self.many else (self.default,)
        return any(isinstance(each, float) and math.isinf(each) for each in defaults)

    def _parse_one(self, text: str) -> Any:
        if self.choices:
            if text not in self.choices:
                raise ConfigError(f'"{text}" cannot be chosen; {nearest(text, self.choices)}')
            return text
        if self.kind in _PARSE:
            return _PARSE[self.kind](text)
        if self.kind == "text":
            return text
        try:
            return int(text) if self.kind == "whole number" else float(text)
        except ValueError:
            raise ConfigError(f'"{text}" is no {self.kind}') from None

    def format(self, value: Any) -> str:
        """Write ``value`` as `parse` would read it."""
        if value is None:
            return "none"
        if self.many:
            return ", ".join(map(self._format_one, value))
        return self._format_one(value)

    def _format_one(self, value: Any) -> str:
        if self.kind in _FORMAT:
            return _FORMAT[self.kind](value)
        return f"{value:g}" if self.kind == "number" else str(value)


@dataclass(frozen=True, slots=True)
class FieldsOf:
    """The note beside the type of a function's ``**fields``: which there are, from `fields_of`."""

    inputs: tuple[Input, ...]


def checked(function: Callable[Asked, Result]) -> Callable[Asked, Result]:
    """Wrap ``function`` so that it refuses, before it begins, values that its inputs do not take.

    >>> checked(_example)(num_workers=2.5)
    Traceback (most recent call last):
    plesio.core.errors.ArgumentError: num_workers is 2.5; write a whole number
    """
    known = {one.name: one for one in inputs_of(function)}

    @functools.wraps(function)
    def ask(*others: Asked.args, **given: Asked.kwargs) -> Result:
        for name, value in given.items():
            if name not in known:
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
            known[name].check(value)
        for name in given:
            _check_effect(known[name], given=given, known=known)
        as_tuples: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        return function(*others, **as_tuples)

    return ask


def _check_effect(one: Input, *, given: Mapping[str, Any], known: Mapping[str, Input]) -> None:
    if one.only_with is not None:
        other = one.only_with.other
        refusal = one.only_with.refusal(one.name, given.get(other, known[other].default))
        if refusal:
            raise ArgumentError(refusal)


@functools.cache
def inputs_of(function: Callable[..., Any], *, as_in: Callable[..., Any] | None = None) -> tuple[Input, ...]:
    """Return the inputs of a function, in the order of its parameters, as the docstring of ``as_in`` explains them.

    >>> [(one.name, one.kind, one.default) for one in inputs_of(_example)][1]
    ('gradient_bytes', 'size', 700000000.0)
    """
    hints = typing.get_type_hints(function, include_extras=True)
    explained = explanations(as_in or function, "Args")
    found: list[Input] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found += next(note for note in typing.get_args(hints[parameter.name]) if isinstance(note, FieldsOf)).inputs
            continue
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{parameter.name} is not keyword-only"
        found.append(
            _input(parameter.name, hints[parameter.name], default=parameter.default, help=explained[parameter.name])
        )
    return tuple(found)


def input_of(owner: type, name: str, *, default: Any = None, written: Written = Written()) -> Input:
    """Make an input from a field of a class, such as a key of a recipe's table; the class checks the value.

    Its explanation is in the ``Attributes:`` of the class. A field that is neither a number nor a switch is a text.

    >>> input_of(Written, "metavar").help
    'Placeholder for its value in the help.'
    """
    hint = _plain(typing.get_type_hints(owner)[name])
    explained = explanations(owner, "Attributes")[name]
    found = _input(name, hint if hint in (int, float, bool) else str, default=default, help=explained)
    return replace(found, written=written, optional=True)


def fields_of(owner: type, written: Mapping[str, Written], *, instead: str = "") -> tuple[Input, ...]:
    """Make inputs from the fields of a dataclass, in the order of ``written``; each may be left out.

    ``instead`` is the text for the default, if that is not the field's own: ``the model's``.

    >>> [(one.option, one.help) for one in fields_of(Written, {"metavar": Written(option="placeholder")})]
    [('--placeholder', 'Placeholder for its value in the help.')]
    """
    hints, explained = typing.get_type_hints(owner, include_extras=True), explanations(owner, "Attributes")
    defaults = {field.name: field.default for field in dataclasses.fields(owner)}
    found = []
    for name, how in written.items():
        own = defaults[name] if defaults[name] is not dataclasses.MISSING and not instead else None
        one = _input(name, hints[name], default=own, help=explained[name])
        how = how if how.instead or not instead else replace(how, instead=instead)
        found.append(replace(one, written=how, optional=True, default=None if how.instead else own))
    return tuple(found)


def _plain(hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    return hint


def _input(name: str, hint: Any, *, default: Any, help: str) -> Input:
    within, written, only_with = ANY, Written(), None
    if typing.get_origin(hint) is Annotated:
        hint, *notes = typing.get_args(hint)
        within = next((note for note in notes if isinstance(note, Within)), within)
        written = next((note for note in notes if isinstance(note, Written)), written)
        only_with = next((note for note in notes if isinstance(note, OnlyWith)), None)
    optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
    hint = _plain(hint)
    many = typing.get_origin(hint) is tuple
    if many:
        hint = typing.get_args(hint)[0]
    choices: tuple[str, ...] = ()
    if typing.get_origin(hint) is Literal:
        choices, hint = typing.get_args(hint), str
    # the type says the kind, and a unit at the end of the name refines it
    by_type: dict[Any, Kind] = {int: "whole number", float: "number", str: "text", bool: "switch"}
    kind = by_type[hint]
    if name == "seed":
        within = AT_LEAST_0
    if kind in ("number", "whole number"):
        suffixed = (each for suffix, _, each in _SUFFIXES if name.endswith(suffix))
        kind = next((each for each in suffixed if each != "count" or kind == "number"), kind)
    return Input(
        name=name,
        kind=kind,
        many=many,
        choices=choices,
        within=within,
        optional=optional,
        default=default,
        help=help,
        written=written,
        only_with=only_with,
    )


def explanations(thing: Any, heading: str) -> dict[str, str]:
    """Return a docstring's explanation of each name under a heading, on one line.

    Args:
        thing: A function or class; its base classes are not looked at.
        heading: ``Args`` or ``Attributes``.
    """
    text = inspect.cleandoc(thing.__doc__ or "").partition(f"\n{heading}:\n")[2]
    block = re.split(r"\n(?=\S)", text, maxsplit=1)[0]
    items = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", block, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", explanation).strip() for name, explanation in items}


def _example(
    *,
    num_workers: Annotated[int, Within(1, 4096)] = 4,
    gradient_bytes: float = 700e6,
    nic_bytes_per_s: float | None = None,
) -> None:
    """Do nothing.

    Args:
        num_workers: Workers.
        gradient_bytes: What each
            has.
        nic_bytes_per_s: Bandwidth of each.
    """
