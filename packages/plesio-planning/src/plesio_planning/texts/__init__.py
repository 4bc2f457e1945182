"""The words of statements, exercises and the text's index: data files, and the function that reads all data files."""

import tomllib
from importlib import resources
from typing import Any

__all__ = ["read_texts"]


def read_texts(name: str, *, package: str = __name__) -> dict[str, Any]:
    """Read the data file ``name.toml`` of this folder, or of another package.

    >>> read_texts("exercises")["pipeline"]["unit"]
    '%'
    """
    return tomllib.loads(resources.files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
