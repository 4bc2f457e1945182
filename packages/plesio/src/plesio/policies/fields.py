"""The fields of a policy: checked when it is made, written out as its spec."""

from collections.abc import Mapping
from typing import Any

from plesio.core.arguments import check_fields
from plesio.core.errors import PolicySpecError

__all__ = ["check_policy", "require_sent_in_full", "write_spec"]


def check_policy(policy: Any, owner: str) -> None:
    """Return when every field is what its type takes.

    Raises:
        PolicySpecError: One is not.
    """
    check_fields(policy, owner, error=PolicySpecError)


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
    """Write ``NAME[:ARGUMENT][,KEY=VALUE]...``; an option that is None has its default and is left out.

    >>> write_spec("ssp", argument="4", options={"period": None, "weight": "inverse"})
    'ssp:4,weight=inverse'
    """
    head = name if argument is None else f"{name}:{argument}"
    return ",".join([head, *(f"{key}={value}" for key, value in options.items() if value is not None)])
