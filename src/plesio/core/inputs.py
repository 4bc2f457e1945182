"""What a function can be asked with, read off it: names, units, defaults, explanations.

A parameter's name ends in its unit, and that is how its text is read: ``gradient_bytes`` is ``--gradient "700 MB"``,
``latency_s`` is ``--latency "10 us"``, ``bytes_per_s`` is ``--bandwidth "25 GB/s"``, and ``num_workers`` is ``--workers
256``. Its type says the rest: int, float, bool, str, a Literal of texts, or a tuple of one of them, written with
commas. What a parameter means is in the ``Args:`` of the docstring.
"""

import inspect
import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from plesio.core.errors import ConfigError, nearest
from plesio.core.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_seconds,
)

__all__ = ["Input", "inputs_of"]

Kind = Literal["bandwidth", "size", "duration", "count", "number", "whole number", "text", "switch"]

_SUFFIXES: tuple[tuple[str, str, Kind], ...] = (
    ("bytes_per_s", "bandwidth", "bandwidth"),
    ("_bytes", "", "size"),
    ("_s", "", "duration"),
    ("parameters", "parameters", "count"),
    ("tokens", "tokens", "count"),
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
class Input:
    """One parameter of a function.

    Attributes:
        name: The function's.
        kind: How its text is read.
        many: Whether it is a tuple, written with commas.
        choices: The texts that it may be; any without.
        optional: Whether it may be left out, which is None.
        default: The value that reproduces the reference.
        help: What it means.
    """

    name: str
    kind: Kind
    many: bool
    choices: tuple[str, ...]
    optional: bool
    default: Any
    help: str

    @property
    def option(self) -> str:
        """Its option on the command line.

        >>> [one.option for one in inputs_of(_example)]
        ['--workers', '--gradient', '--nic-bandwidth']
        """
        words = self.name.removeprefix("num_")
        for suffix, instead, kind in _SUFFIXES:
            if kind == self.kind and words.endswith(suffix):
                words = words.removesuffix(suffix) + instead
        return "--" + words.replace("_", "-")

    @property
    def metavar(self) -> str:
        """What stands for its value in the help."""
        one = "|".join(self.choices) or _METAVARS[self.kind]
        return f"{one},..." if self.many else one

    def parse(self, text: str) -> Any:
        """The value that ``text`` stands for.

        Raises:
            ConfigError: It stands for none.
        """
        if not self.many:
            value = self._parse_one(text)
        else:
            value = tuple(self._parse_one(part.strip()) for part in text.split(",") if part.strip())
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Make sure that numbers are finite, and a seed is one; infinity is a number where the default has it.

        >>> inputs_of(_example)[1].check(float("nan"))
        Traceback (most recent call last):
        plesio.core.errors.ConfigError: --gradient is nan; write a finite number

        Raises:
            ConfigError: It is not.
        """
        if value is None:
            return
        defaults = self.default if self.many else (self.default,)
        may_be_infinite = any(isinstance(each, float) and math.isinf(each) for each in defaults or ())
        for each in value if self.many else (value,):
            if isinstance(each, float) and not (math.isfinite(each) or (may_be_infinite and math.isinf(each))):
                raise ConfigError(f"{self.option} is {each}; write a finite number")
            if self.name == "seed" and each < 0:
                raise ConfigError(f"{self.option} is {each}; write 0 or more")

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
        """``value`` for people, as `parse` would read it."""
        if value is None:
            return "none"
        if self.many:
            return ", ".join(map(self._format_one, value))
        return self._format_one(value)

    def _format_one(self, value: Any) -> str:
        if self.kind in _FORMAT:
            return _FORMAT[self.kind](value)
        return f"{value:g}" if self.kind == "number" else str(value)


def inputs_of(function: Callable[..., Any]) -> tuple[Input, ...]:
    """The inputs of a function, in the order of its parameters.

    >>> [(one.name, one.kind, one.default) for one in inputs_of(_example)][1]
    ('gradient_bytes', 'size', 700000000.0)
    """
    hints, explained = typing.get_type_hints(function), _explanations(function)
    found = []
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{parameter.name} is not keyword-only"
        found.append(
            _input(parameter.name, hints[parameter.name], default=parameter.default, help=explained[parameter.name])
        )
    return tuple(found)


def _input(name: str, hint: Any, *, default: Any, help: str) -> Input:
    optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
    if optional:
        (hint,) = (each for each in typing.get_args(hint) if each is not type(None))
    many = typing.get_origin(hint) is tuple
    if many:
        hint = typing.get_args(hint)[0]
    choices: tuple[str, ...] = ()
    if typing.get_origin(hint) is Literal:
        choices, hint = typing.get_args(hint), str
    by_type: dict[Any, Kind] = {int: "whole number", float: "number", str: "text", bool: "switch"}
    kind = by_type[hint]
    if kind in ("number", "whole number"):
        suffixed = (each for suffix, _, each in _SUFFIXES if name.endswith(suffix))
        kind = next((each for each in suffixed if each != "count" or kind == "number"), kind)
    return Input(name=name, kind=kind, many=many, choices=choices, optional=optional, default=default, help=help)


def _explanations(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring says of each parameter, on one line."""
    text = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")[2]
    block = re.split(r"\n(?=\S)", text, maxsplit=1)[0]
    items = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", block, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", explanation).strip() for name, explanation in items}


def _example(*, num_workers: int = 4, gradient_bytes: float = 700e6, nic_bytes_per_s: float | None = None) -> None:
    """Do nothing.

    Args:
        num_workers: Workers.
        gradient_bytes: What each
            has.
        nic_bytes_per_s: Of each.
    """
