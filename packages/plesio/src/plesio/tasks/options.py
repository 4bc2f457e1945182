"""Checks of a task's options: what a recipe or a user wrote, before anything is built from it."""

import math

from plesio.core.errors import TaskError


def check_integer(value: object, *, task: str, option: str, minimum: int = 1) -> None:
    """Raise `TaskError` unless ``value`` is a whole number of at least ``minimum``; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise TaskError(f'task "{task}": {option} = {value!r}; write a whole number of {minimum} or more')


def check_number(
    value: object, *, task: str, option: str, minimum: float = -math.inf, above: float = -math.inf
) -> None:
    """Raise `TaskError` unless ``value`` is a finite number with ``value >= minimum`` and ``value > above``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TaskError(f'task "{task}": {option} = {value!r}; write a finite number')
    if value < minimum or value <= above:
        wanted = f"of {minimum:g} or more" if value < minimum else f"above {above:g}"
        raise TaskError(f'task "{task}": {option} = {value!r}; write a number {wanted}')
