"""The generated reference: doctests as blocks of code, and signatures without what is private.

A default that is a private constant becomes its value, a private alias of a type what it stands for, and ``Annotated``
its type. Private bases are left out.
"""

import dataclasses
import re
from typing import Any

import griffe

__all__ = ["Readable"]

_BLOCK = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
Expression = str | griffe.Expr | None


class Readable(griffe.Extension):
    """Changes docstrings and signatures for readers."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change an object as soon as it has been read; constants and aliases of its module come before it."""
        if obj.docstring is not None:
            obj.docstring.value = _BLOCK.sub(lambda block: f"```pycon\n{block[0]}\n```", obj.docstring.value)
        if isinstance(obj, griffe.Attribute):
            obj.annotation = _plain(obj.annotation, obj.module)
            obj.value = None if str(obj.value).startswith("_") else obj.value
        if isinstance(obj, griffe.Class):
            obj.bases = [base for base in obj.bases if not str(base).startswith("_")]
        if isinstance(obj, griffe.Function):
            obj.returns = _plain(obj.returns, obj.module)
            for parameter in obj.parameters:
                parameter.annotation = _plain(parameter.annotation, obj.module)
                parameter.default = _known(parameter.default, obj.module)


def _known(expression: Expression, module: griffe.Module) -> Expression:
    """Return the value of a private constant of the module; anything else as it is."""
    constant = module.members.get(str(expression))
    private = isinstance(constant, griffe.Attribute) and constant.is_private and constant.value is not None
    return constant.value if private else expression  # type: ignore[union-attr]


def _plain(expression: Expression, module: griffe.Module) -> Expression:
    """Return an annotation without ``Annotated`` and private aliases."""
    match expression:
        case griffe.ExprSubscript(left=left, slice=griffe.ExprTuple(elements=[first, *_])) if str(left) == "Annotated":
            return _plain(first, module)
        case griffe.ExprSubscript(slice=inner):
            return dataclasses.replace(expression, slice=_plain(inner, module))
        case griffe.ExprTuple(elements=parts) | griffe.ExprList(elements=parts):
            return dataclasses.replace(expression, elements=[_plain(part, module) for part in parts])
        case griffe.ExprBinOp(left=left, right=right):
            return dataclasses.replace(expression, left=_plain(left, module), right=_plain(right, module))
    known = _known(expression, module)
    return expression if known is expression else _plain(known, module)
