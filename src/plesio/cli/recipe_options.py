"""Options that stand for keys of a recipe: what they mean and what they may be is read off the recipe's tables."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plesio.core.inputs import Input, Written, input_of

if TYPE_CHECKING:
    from plesio.bench.recipe_section import Section

__all__ = ["RECIPES", "key_option", "table_option"]

RECIPES = "the recipe's"
"""What holds where an option that replaces a key of a recipe file is not given."""


def key_option(section: "type[Section]", key: str, *, default: Any = None, **written: str) -> Input:
    """The option for a key, whose explanation is the table's.

    Args:
        section: The table.
        key: Its name there.
        default: What holds where the option is not given.
        written: How the option is written, where the key does not say it (`plesio.core.inputs.Written`).
    """
    return input_of(section, key, default=default, written=Written(**written))


def table_option(section: "type[Section]", key: str, *, table: "type[Section]") -> Input:
    """The option for a key that is a table itself, ``--stalls probability=0.01,factor=10``; its help lists the keys."""
    found = key_option(section, key, metavar="KEY=VALUE,...", instead="none")
    return replace(found, help=f"{found.help.rstrip('.')}. Keys: {', '.join(table.model_fields)}.")
