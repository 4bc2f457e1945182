"""Phases of training, and verdicts on them (`plesio.policies.adaptive.training.phase`)."""

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
"""Number of readings that give the usual level."""
LARGEST = 1e100
"""Largest size of a figure of use; beyond it training diverges, and the guard decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Phase of the steps to come, with the reason and the figures behind it."""

    phase: Phase
    reason: str
    inputs: Mapping[str, float]
