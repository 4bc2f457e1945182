"""Options that stand for keys of a recipe: what they mean and what they may be is read off the recipe's tables."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plesio.core.inputs import Input, Written, input_of

if TYPE_CHECKING:
    from plesio.bench.recipe_section import RecipeSection

RECIPES = "the recipe's"
"""The default of an option that replaces a key of a recipe file."""


def key_option(section: "type[RecipeSection]", key: str, *, default: Any = None, **written: str) -> Input:
    """Make the option for a key of a table, whose explanation is the table's.

    ``written`` is how it is written, where the key does not say it (`plesio.core.inputs.Written`).
    """
    return input_of(section, key, default=default, written=Written(**written))


def table_option(section: "type[RecipeSection]", key: str, *, table: "type[RecipeSection]") -> Input:
    """Make the option for a key that is a table, ``--stalls probability=0.01,factor=10``; its help lists the keys."""
    found = key_option(section, key, metavar="KEY=VALUE,...", instead="none")
    return replace(found, help=f"{found.help.rstrip('.')}. Keys: {', '.join(table.model_fields)}.")


def checkpoint_options(section: "type[RecipeSection]", *keys: str, instead: str = "") -> tuple[Input, ...]:
    """Make the options of ``[checkpoint]``.

    They are ``--checkpoint`` for its folder, ``--every``, ``--keep``, and more ``keys``.
    """
    return (
        key_option(section, "folder", option="checkpoint", metavar="DIR", instead="none"),
        key_option(section, "every", metavar="TIME|STEPS", instead=instead or "10 min"),
        key_option(section, "keep", metavar="N", instead=instead or "3"),
        *(key_option(section, key) for key in keys),
    )


def checkpoint_table(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``[checkpoint]`` of the options; a folder is relative to the working directory."""
    table = {key: given[key] for key in ("every", "keep", "resume") if key in given}
    return table | ({"folder": str(Path(given["folder"]).absolute())} if "folder" in given else {})
