"""What a phase of training is (`plesio.policies.adaptive.training.phase`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from plesio.policies.adaptive.config.phase import Direction

__all__ = ["LARGEST", "STRICT", "USUAL_READINGS", "Phase", "Verdict"]

Phase = Literal["critical", "stable", "final"]

STRICT: Mapping[Direction, frozenset[Phase]] = {
    "first": frozenset({"critical"}),
    "last": frozenset({"final"}),
    "both": frozenset({"critical", "final"}),
}
USUAL_READINGS = 4
"""That tell what is usual."""
LARGEST = 1e100
"""Beyond, a figure says nothing but that training diverges, which is for the guard to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The phase of the steps to come, and what it follows from."""

    phase: Phase
    reason: str
    inputs: Mapping[str, float]
