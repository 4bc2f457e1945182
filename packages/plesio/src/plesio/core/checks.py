"""Checks of theorems' arguments."""

import math

from plesio.core.errors import ArgumentError

__all__ = ["check_count", "check_not_negative", "check_positive"]


def check_positive(**values: float) -> None:
    """Make sure that each is a number above 0.

    Raises:
        ConfigError: One is not.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ArgumentError(f"`{name}` is {value:g}; write more than 0")


def check_not_negative(**values: float) -> None:
    """Make sure that each is a number, 0 or more.

    Raises:
        ConfigError: One is not.
    """
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ArgumentError(f"`{name}` is {value:g}; write 0 or more")


def check_count(**values: int) -> None:
    """Make sure that there is at least one of each.

    Raises:
        ConfigError: There is none.
    """
    for name, value in values.items():
        if value < 1:
            raise ArgumentError(f"`{name}` is {value}; write 1 or more")
