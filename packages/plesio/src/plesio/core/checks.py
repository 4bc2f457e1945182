"""Checks of theorems' arguments."""

import math

from plesio.core.errors import ArgumentError


def check_positive(**values: float) -> None:
    """Raise `ArgumentError` unless each is a number above 0."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ArgumentError(f"`{name}` is {value:g}; write more than 0")


def check_not_negative(**values: float) -> None:
    """Raise `ArgumentError` unless each is a number, 0 or more."""
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ArgumentError(f"`{name}` is {value:g}; write 0 or more")


def check_count(**values: int) -> None:
    """Raise `ArgumentError` unless there is at least one of each."""
    for name, value in values.items():
        if value < 1:
            raise ArgumentError(f"`{name}` is {value}; write 1 or more")
