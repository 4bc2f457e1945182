"""The fields of a policy: checked when it is made, written out as its spec."""

from collections.abc import Collection, Mapping

from plesio.core.errors import PolicySpecError, nearest

__all__ = ["MAX_STEPS", "require_one_of", "require_sent_in_full", "require_whole", "write_spec"]


MAX_STEPS = 2**40
"""More than any run has, and far from what a message can carry."""


def require_whole(owner: str, field: str, value: object, *, minimum: int) -> None:
    """Return when ``value`` is a whole number of at least ``minimum`` and at most `MAX_STEPS`.

    Raises:
        PolicySpecError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise PolicySpecError(f"{owner}: {field} is {value!r}; write a whole number of {minimum} or more")
    if value > MAX_STEPS:
        raise PolicySpecError(f"{owner}: {field} is {value}, more steps than any run has; write less")


def require_one_of(owner: str, field: str, value: str, *, known: Collection[str]) -> None:
    """Return when ``value`` is one of the ``known`` words.

    Raises:
        PolicySpecError: It is not.
    """
    if value not in known:
        raise PolicySpecError(f'{owner}: unknown {field} "{value}"; {nearest(str(value), known)}')


def require_sent_in_full(owner: str, *, compress: str) -> None:
    """Return when nothing is compressed, which the store could not read.

    Raises:
        PolicySpecError: Something is.
    """
    if compress != "none":
        raise PolicySpecError(
            f"{owner}: the store takes updates in full; leave compress={compress} out, or use exchange=collective"
        )


def write_spec(name: str, *, argument: str | None = None, options: Mapping[str, str | None]) -> str:
    """``NAME[:ARGUMENT][,KEY=VALUE]...``; an option that is None has its default and is left out.

    >>> write_spec("ssp", argument="4", options={"period": None, "weight": "inverse"})
    'ssp:4,weight=inverse'
    """
    head = name if argument is None else f"{name}:{argument}"
    return ",".join([head, *(f"{key}={value}" for key, value in options.items() if value is not None)])
