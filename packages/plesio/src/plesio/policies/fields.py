"""Fields of a policy: the checks when it is made, and their text in its spec."""

from collections.abc import Mapping
from typing import Any

from plesio.core.arguments import check_fields
from plesio.core.errors import PolicySpecError

__all__ = ["check_policy", "require_sent_in_full", "write_spec"]


def check_policy(policy: Any, owner: str) -> None:
    """Check that every field has a value of its type.

    Raises:
        PolicySpecError: A field has not.
    """
    check_fields(policy, owner, error=PolicySpecError)


def require_sent_in_full(owner: str, *, compress: str) -> None:
    """Check that nothing is compressed, which the store could not read.

    Raises:
        PolicySpecError: Updates are compressed.
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
