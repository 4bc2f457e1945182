"""Examples in docstrings, which are doctests without a heading, as blocks of code in the generated reference."""

import re
from typing import Any

import griffe

__all__ = ["DoctestBlocks"]

_BLOCK = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class DoctestBlocks(griffe.Extension):
    """Fences every doctest of a docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Fence the doctests of an object's docstring, as soon as it has been read."""
        if obj.docstring is not None:
            obj.docstring.value = _BLOCK.sub(lambda block: f"```pycon\n{block[0]}\n```", obj.docstring.value)
