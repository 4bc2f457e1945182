"""Fields of a policy: the checks when it is made, and their text in its spec."""

import dataclasses
import re
from collections.abc import Collection
from typing import Any

from plesio.core.arguments import check_fields
from plesio.core.errors import PolicySpecError

KEYS = {"compression": "compress", "weighting": "weight"}
"""Keys that are not the names of their fields."""


def check_policy(policy: Any, owner: str) -> None:
    """Raise `PolicySpecError` unless every field has a value of its type."""
    check_fields(policy, owner, error=PolicySpecError)


def require_sent_in_full(owner: str, *, compress: str) -> None:
    """Raise `PolicySpecError` if updates are compressed, which the store could not read."""
    if compress != "none":
        raise PolicySpecError(
            f"{owner}: the store takes updates in full; leave compress={compress} out, or use exchange=collective"
        )


def require_moments_met(owner: str, *, moments: str) -> None:
    """Raise `PolicySpecError` if moments are those of a mean gradient, which only workers that meet can know."""
    if moments != "own":
        raise PolicySpecError(
            f"{owner}: on the store workers do not meet; leave moments out, or use exchange=collective"
        )


def require_read_alone(owner: str, *, compress: str, on_store: bool) -> None:
    """Raise `PolicySpecError` if updates are compressed in a form that only the workers together can read."""
    if not on_store:
        raise PolicySpecError(
            f"{owner}: compress={compress} is added up among workers, and the store gets each update by itself; write "
            "qsgd, topk, fp16 or bf16, or use a policy on the collective"
        )


def whole(value: str) -> int:
    """Parse a whole number of plain digits; `int` takes underscores and spaces too."""
    if not re.fullmatch(r"-?[0-9]+", value):
        raise ValueError("not a whole number")
    return int(value)


def on_off(value: str) -> bool:
    """Parse a switch."""
    if value not in ("on", "off"):
        raise ValueError("no switch")
    return value == "on"


def write_spec(policy: Any, *, argument: str | None, without: Collection[str] = ()) -> str:
    """Write ``NAME[:ARGUMENT][,KEY=VALUE]...``, with the fields that have not their defaults, in their order."""
    parts = [policy.name if argument is None else f"{policy.name}:{as_text(getattr(policy, argument))}"]
    for field in dataclasses.fields(policy):
        value = getattr(policy, field.name)
        if field.name not in (argument, *without) and value != field.default:
            parts.append(f"{KEYS.get(field.name, field.name)}={as_text(value)}")
    return ",".join(parts)


def as_text(value: Any) -> str:
    """Write a field's value as it stands in a spec."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(value) if isinstance(value, tuple) else str(getattr(value, "spec", value))
