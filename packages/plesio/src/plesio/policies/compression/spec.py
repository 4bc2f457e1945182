"""Compressions as text: ``NAME[:VALUE][+OPTION]...``.

``topk:0.01`` · ``topk:0.016+chunks:4096+bits:2`` · ``randk:0.05+guard:20`` · ``qsgd:4+feedback`` ·
``powersgd:2+no_feedback`` · ``bf16`` · ``none``. It has no comma, so it can be the value of a policy's option. Case and
spaces around the parts do not matter.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from plesio.core.errors import PolicySpecError, nearest
from plesio.policies.compression.half_precision import HalfPrecision
from plesio.policies.compression.power_sgd import PowerSgd
from plesio.policies.compression.qsgd import Qsgd
from plesio.policies.compression.sparse import CHUNK, RandomK, TopK
from plesio.policies.compression.stage import Compression, NoCompression
from plesio.policies.compression.two_bits import TwoBits
from plesio.policies.fields import whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How one compression is written."""

    make: Callable[..., Compression]
    example: str
    argument: tuple[str, Callable[[str], Any], str] | None = None
    """The field behind the colon, its reader, and what to write."""
    options: tuple[str, ...] = ()
    """Its own options, beside those of all."""


def _qsgd(bits: int, **options: Any) -> Compression:
    return TwoBits(**options) if bits == 2 else Qsgd(bits=bits, **options)  # type: ignore[arg-type]  # checked there


_FORMS = {
    "none": _Form(make=NoCompression, example="none"),
    "fp16": _Form(make=lambda **options: HalfPrecision(form="fp16", **options), example="fp16"),
    "bf16": _Form(make=lambda **options: HalfPrecision(form="bf16", **options), example="bf16"),
    "topk": _Form(
        make=TopK,
        example="topk:0.01",
        argument=("density", float, "the share of the numbers that is sent"),
        options=("chunks:NUMBERS", "bits:2"),
    ),
    "randk": _Form(
        make=RandomK, example="randk:0.05", argument=("density", float, "the share of the numbers that is sent")
    ),
    "qsgd": _Form(make=_qsgd, example="qsgd:8", argument=("bits", whole, "2, 4 or 8 bits")),
    "powersgd": _Form(make=PowerSgd, example="powersgd:2", argument=("rank", whole, "a whole number as its rank")),
}
_OPTIONS = ("feedback", "no_feedback", "guard:MULTIPLE")
_OWN_OPTIONS = {"chunks": ("chunk", CHUNK), "bits": ("bits", 2)}
"""Fields of options that only some have, and their values where none is written."""


def parse_compression(text: str) -> Compression:
    """Parse a compression, or raise `PolicySpecError`.

    >>> parse_compression("QSGD:4 + feedback").spec
    'qsgd:4+feedback'
    """
    head, *options = (part.strip() for part in text.strip().lower().split("+"))
    name, colon, value = (part.strip() for part in head.partition(":"))
    form = _FORMS.get(name)
    if form is None:
        raise PolicySpecError(f'unknown compression "{name}"; {nearest(name, _FORMS)}')
    if name == "none" and options:
        raise PolicySpecError(f'compression "{text}": none loses nothing and has no options; write "none"')
    try:
        return form.make(**_argument(form, name=name, colon=colon, value=value), **_options(options, own=form.options))
    except PolicySpecError as error:
        raise PolicySpecError(f'compression "{text}": {re.sub("^[A-Z][A-Za-z]*: ", "", str(error))}') from None


def _argument(form: _Form, *, name: str, colon: str, value: str) -> dict[str, Any]:
    if form.argument is None:
        if colon:
            raise PolicySpecError(f'{name} takes no ":{value}"; write "{form.example}"')
        return {}
    field, read, wanted = form.argument
    try:
        return {field: read(value)}
    except ValueError:
        raise PolicySpecError(f'{name} needs {wanted}, as in "{form.example}"') from None


def _options(options: Sequence[str], *, own: Sequence[str]) -> dict[str, Any]:
    of_its_own = {one.partition(":")[0] for one in own}
    values: dict[str, Any] = {}
    for option in options:
        key, colon, value = (part.strip() for part in option.partition(":"))
        name = key.removeprefix("no_")
        field, usual = _OWN_OPTIONS.get(name, (name, None))
        if field in values:
            raise PolicySpecError(f'"{name}" is given twice; write it once')
        if key in ("feedback", "no_feedback") and not colon:
            values[field] = key == "feedback"
        elif key == "guard":
            values[field] = _guard(value)
        elif key in of_its_own:
            values[field] = _number(key, value) if colon else usual
        else:
            raise PolicySpecError(f'unknown option "{option}"; {nearest(key, sorted((*own, *_OPTIONS)))}')
    return values


def _number(key: str, value: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]*", value):
        raise PolicySpecError(f'{key} is "{value}"; write a whole number above 0, as in "chunks:4096" or "bits:2"')
    return whole(value)


def _guard(value: str) -> float:
    try:
        multiple = float(value)
    except ValueError:
        multiple = math.nan
    if not 0 < multiple < math.inf:
        raise PolicySpecError(f'guard is "{value}"; write a multiple above 0, as in "guard:20"')
    return multiple
