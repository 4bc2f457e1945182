"""Long runs with a loss scale, of whose steps only the largest gradient is drawn: which of them overflow, and when.

The scale stays (*static*), or is halved after every step that overflowed and doubled after an interval without one (*by
interval*; Micikevicius et al. 2018, and ``torch.amp.GradScaler``), or goes by the share of an interval's steps that
overflow (*by frequency*). A step that overflows is skipped under each of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plesio_planning.studies.half_precision_descent import LARGEST, FrequencyScale, LossScale

_MOST_POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRun:
    """A long run with a dynamic scale.

    Attributes:
        searching: Steps skipped before the first that was applied.
        skipped: Steps skipped later.
        applied: Steps that counted.
        steady: Share of the steps that is skipped, from the first skip after an applied step on; 0 if there is none.
        at: Steps at which the scale changes, before and after.
        powers: Powers of 2, of the scale, as many.
    """

    searching: int
    skipped: int
    applied: int
    steady: float
    at: tuple[int, ...]
    powers: tuple[float, ...]


def run_with(
    largest: Callable[[float], float], *, scale: LossScale | FrequencyScale, num_steps: int, rng: np.random.Generator
) -> ScalingRun:
    """Do ``num_steps`` steps, the largest gradient of which is ``largest`` of a uniform number; uses ``scale`` up."""
    corners = [(0, math.log2(scale.value))]
    skips = []
    for step, u in enumerate(rng.random(num_steps)):
        before = scale.value
        found_inf = largest(u) * before >= LARGEST
        if found_inf:
            skips.append(step)
        scale.update(found_inf=found_inf)
        if scale.value != before:
            corners += [(step, math.log2(before)), (step + 1, math.log2(scale.value))]
    corners.append((num_steps, math.log2(scale.value)))
    searching = next((place for place, step in enumerate(skips) if step != place), len(skips))
    later = skips[searching:]
    shown = corners[:: math.ceil(len(corners) / _MOST_POINTS)]
    return ScalingRun(
        searching=searching,
        skipped=len(later),
        applied=num_steps - len(skips),
        steady=(len(later) - 1) / (later[-1] - later[0]) if len(later) > 1 else 0.0,
        at=tuple(step for step, _ in shown),
        powers=tuple(power for _, power in shown),
    )
