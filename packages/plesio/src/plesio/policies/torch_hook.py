"""Baselines that are torch's own: communication hooks of DistributedDataParallel, as torch ships them.

``fp16`` · ``bf16`` · ``powersgd`` · ``powersgd:4`` · ``powersgd:4+start:100``. They are there to be compared with; what
Plesio makes of the same ideas (with residuals that are guarded and recorded, in every world, with a delay) are
compressions (`plesio.policies.compression`).
"""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from plesio.core.errors import PolicySpecError, nearest
from plesio.core.within import AT_LEAST_0, AT_LEAST_1
from plesio.policies.fields import check_policy

HookForm = Literal["fp16", "bf16", "powersgd", "post_local_sgd"]
_FORMS: tuple[HookForm, ...] = ("fp16", "bf16", "powersgd")

POWER_SGD_START = 10
"""Steps that are sent in full before PowerSGD begins. torch's default is 1000, more than many comparisons have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchHook:
    """One of torch's hooks and its options.

    Args:
        form: ``fp16`` and ``bf16`` cast gradients; ``powersgd`` sends them as products of two thin matrices;
            ``post_local_sgd`` sends them for some steps, and later none.
        rank: Columns of PowerSGD's matrices.
        start: Steps whose gradients are sent in full before PowerSGD, or local SGD, begins.

    >>> TorchHook(form="powersgd", rank=4).spec
    'powersgd:4'
    """

    form: HookForm
    rank: Annotated[int, AT_LEAST_1] = 1
    start: Annotated[int, AT_LEAST_0] = POWER_SGD_START

    def __post_init__(self) -> None:
        check_policy(self, "hook: ")
        # DDP arranges its buckets anew after the first step, and PowerSGD's state is by bucket
        if self.form == "powersgd" and self.start < 2:
            raise PolicySpecError(f"hook: start is {self.start}; write a whole number of 2 or more")
        if self.form in ("fp16", "bf16") and (self.rank, self.start) != (1, POWER_SGD_START):
            raise PolicySpecError(f"hook: torch's {self.form} has no options; leave rank and start out")

    @property
    def spec(self) -> str:
        """The shortest text of the hook."""
        if self.form != "powersgd":
            return self.form
        rank = "" if self.rank == 1 else f":{self.rank}"
        return f"powersgd{rank}" + ("" if self.start == POWER_SGD_START else f"+start:{self.start}")


def parse_torch_hook(text: str) -> TorchHook:
    """Parse a hook, or raise `PolicySpecError`.

    >>> parse_torch_hook("powersgd:2+start:20")
    TorchHook(form='powersgd', rank=2, start=20)
    """
    head, plus, option = (part.strip() for part in text.strip().lower().partition("+"))
    name, colon, rank = (part.strip() for part in head.partition(":"))
    match name:
        case "fp16" | "bf16" if not (colon or plus):
            return TorchHook(form=name)
        case "fp16" | "bf16":
            raise PolicySpecError(f'hook "{text}": torch\'s {name} has no options; write hook={name}')
        case "powersgd":
            key, _, start = option.partition(":")
            if plus and key != "start":
                raise PolicySpecError(f'hook "{text}": unknown option "{option}"; write "+start:STEPS"')
            return TorchHook(
                form="powersgd",
                rank=_whole(rank, text=text) if colon else 1,
                start=_whole(start, text=text) if plus else POWER_SGD_START,
            )
    raise PolicySpecError(f'unknown hook "{name}"; {nearest(name, _FORMS)}')


def _whole(value: str, *, text: str) -> int:
    if not re.fullmatch(r"[0-9]+", value):
        raise PolicySpecError(f'hook "{text}": "{value}" is no whole number; write it as in powersgd:2+start:20')
    return int(value)
