"""The words of statements, exercises and the text's index: data files, and the function that reads them."""

import tomllib
from importlib import resources
from typing import Any

__all__ = ["read_texts"]


def read_texts(name: str) -> dict[str, Any]:
    """Read the data file ``name.toml`` of this folder.

    >>> read_texts("exercises")["pipeline"]["unit"]
    '%'
    """
    return tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
