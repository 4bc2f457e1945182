"""The common rules of a recipe's tables: how values are written, and which are refused."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from plesio.core.errors import ConfigError, DataError, nearest
from plesio.core.units import parse_seconds


class RecipeSection(BaseModel):
    """A table of the recipe: immutable, no conversions (``"4"`` is no number), no unknown keys.

    In JSON, which one process writes for another, seconds are numbers and paths are whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: object) -> object:
        for key in data if isinstance(data, Mapping) else ():
            if key not in cls.model_fields:
                raise ValueError(f'unknown key "{key}"; {nearest(str(key), cls.model_fields)}')
        return data


@contextmanager
def as_finding() -> Iterator[None]:
    """Turn a value object's refusal into a finding about the table that describes it."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise ValueError(str(error)) from None


def recipe_folder(info: ValidationInfo) -> Path:
    """Return the recipe's folder: paths in a recipe are relative to it."""
    assert info.context is not None, "load_recipe gives the folder"
    folder: Path = info.context["folder"]
    return folder


def _seconds(value: object, info: ValidationInfo) -> object:
    if info.mode == "json":
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'{value} has no unit; write it as in "20 ms"')
    if not isinstance(value, str):
        return value
    with as_finding():
        return parse_seconds(value)


def _resolve(value: object, info: ValidationInfo) -> object:
    return recipe_folder(info) / value if isinstance(value, str) and info.mode != "json" else value


Seconds = Annotated[float, BeforeValidator(_seconds)]
RecipePath = Annotated[Path, BeforeValidator(_resolve)]
"""A path relative to the recipe's folder."""
Rank = Annotated[int, Field(ge=0)]
