"""Numbers of a component's configuration: checked when it is made."""

import math

from plesio.core.errors import PolicySpecError

__all__ = ["RECENT", "require_number"]

RECENT = 4
"""Values whose median is the recent level of a figure."""


def require_number(owner: str, field: str, value: object, *, above: float, below: float = math.inf) -> None:
    """Return when ``value`` is a number with ``above < value < below``.

    >>> require_number("adaptive", "guard.norm_jump", 3.0, above=1.0)

    Raises:
        PolicySpecError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < below:
        limit = "" if below == math.inf else f" and below {below:g}"
        raise PolicySpecError(f"{owner}: {field} is {value!r}; write a number above {above:g}{limit}")
