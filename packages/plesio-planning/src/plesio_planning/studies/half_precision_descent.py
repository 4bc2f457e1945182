"""Gradient descent whose gradients pass through 16 bits, on ranks that each own a part of the parameters.

The loss is ``c/2 Σ λᵢxᵢ²`` with eigenvalues on a logarithmic scale from 0.01 to 1, begun at ones, and c so small that
part of the gradient is beneath what FP16 can hold. In a step

1. every rank multiplies its gradient by its scale S and rounds it to 16 bits: above 65504 it is infinite, below 2^-25
   zero;
2. the ranks' mean is taken in 32 bits, of which every rank gets the part that it owns (as ZeRO and FSDP do);
3. a rank whose part is not finite has *found an infinity*. Found by one is found by all: the flag is all-reduced;
4. if it was found, the step is skipped and S halved; else the gradient is divided by S, then clipped to a norm, then
   applied. After ``growth_interval`` steps in a row S is doubled (Micikevicius et al. 2018, section 3.2).

Two other rules for 4 are tried: the update of the step before is applied once more, or what is infinite is replaced by
the largest number of the format, so that the step is taken with a gradient that is wrong in those places.

At some steps one number of one rank's gradient is far too large, a *spike*. `Handling` can leave out 3 or do 4 in
another order, to show what goes wrong.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plesio_planning.studies.compressed_descent import rounded_to_bf16

LARGEST = 65520.0
"""The least number that is infinite in FP16: half a step beyond 65504."""
_LARGEST_FINITE = 65504.0
SMALLEST = 2.0**-25
"""The largest number that is zero in FP16: half of the smallest subnormal, 5.96e-8."""
_SMALLEST_EIGENVALUE = 1e-2
_LOOK_EVERY = 10

Vector = NDArray[np.floating]


class LossScale:
    """A scale that is halved when a step overflows and doubled after ``growth_interval`` steps that did not.

    >>> scale = LossScale(65536.0, growth_interval=2)
    >>> [(scale.update(found_inf=found), scale.value)[1] for found in (True, False, False)]
    [32768.0, 32768.0, 65536.0]

    Args:
        value: Value at first.
        growth_interval: Steps; None keeps the scale as it is.
    """

    def __init__(self, value: float, *, growth_interval: int | None) -> None:
        self.value = value
        self._growth_interval = growth_interval
        self._num_good = 0

    def update(self, *, found_inf: bool) -> None:
        """Take note of a step."""
        if self._growth_interval is None:
            return
        self._num_good = 0 if found_inf else self._num_good + 1
        if found_inf:
            self.value /= 2
        elif self._num_good == self._growth_interval:
            self.value *= 2
            self._num_good = 0


class FrequencyScale:
    """A scale that goes by how often steps overflow: it is halved as soon as more than a share of an interval does.

    It is doubled after an interval in which no more did. A single spike costs its own step and leaves the scale alone,
    and a scale that is too large costs more steps until it is halved.

    >>> scale = FrequencyScale(65536.0, interval=4, largest_share=0.25)
    >>> [(scale.update(found_inf=found), scale.value)[1] for found in (True, False, True, True, False, False, False)]
    [65536.0, 65536.0, 32768.0, 32768.0, 32768.0, 32768.0, 65536.0]

    Args:
        value: Value at first.
        interval: Steps of an interval.
        largest_share: Share of them that may overflow.
    """

    def __init__(self, value: float, *, interval: int, largest_share: float) -> None:
        self.value = value
        self._interval = interval
        self._most = largest_share * interval
        self._num_steps = self._num_overflows = 0

    def update(self, *, found_inf: bool) -> None:
        """Take note of a step."""
        self._num_steps += 1
        self._num_overflows += found_inf
        if self._num_overflows > self._most:
            self.value /= 2
        elif self._num_steps == self._interval:
            self.value *= 2
        else:
            return
        self._num_steps = self._num_overflows = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """How a run handles its gradients.

    Attributes:
        form: Form that they are rounded to.
        scale: Scale at first.
        clip_scaled: Whether they are clipped before they are divided by the scale.
        share_found_inf: Whether a rank tells the others.
        on_overflow: Update where an infinity was found: nothing, the update before, or the largest number.
    """

    name: str
    form: Literal["fp32", "fp16", "bf16"] = "fp16"
    scale: float = 1.0
    dynamic: bool = False
    clip_scaled: bool = False
    share_found_inf: bool = True
    on_overflow: Literal["skip", "repeat", "saturate"] = "skip"


OVERFLOW_RULES = (
    Handling(name="skip the step", scale=2.0**16),
    Handling(name="repeat the update before", scale=2.0**16, on_overflow="repeat"),
    Handling(name="cut infinities to 65504", scale=2.0**16, on_overflow="saturate"),
)
"""With a scale that stays, so that what is done about an overflow is all in which they differ."""
HANDLINGS = (
    Handling(name="FP32", form="fp32"),
    Handling(name="BF16", form="bf16"),
    Handling(name="FP16, unscaled"),
    Handling(name="FP16, static 2^15", scale=2.0**15),
    Handling(name="FP16, static 2^24", scale=2.0**24),
    Handling(name="FP16, static 2^36", scale=2.0**36),
    Handling(name="FP16, dynamic", scale=2.0**16, dynamic=True),
    Handling(name="clipped before unscaling", scale=2.0**16, dynamic=True, clip_scaled=True),
    Handling(name="found_inf not shared", scale=2.0**16, dynamic=True, share_found_inf=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """How a descent went.

    Attributes:
        final_loss: Last loss over the first; NaN if parameters became so.
        overflowed: Share of the steps in which an infinity was found, mean of the ranks.
        scales_apart: The largest scale of a rank over the smallest, at the end.
        steps: Steps at which the loss was looked at.
        losses: Losses over the first, as many.
    """

    name: str
    final_loss: float
    overflowed: float
    scales_apart: float
    steps: tuple[int, ...]
    losses: tuple[float, ...]


def clipped(vector: Vector, norm: float) -> Vector:
    """Return ``vector``, shortened to the length ``norm`` if it is longer; one NaN makes all of it NaN.

    >>> clipped(np.array([3.0, 4.0]), 1.0), clipped(np.array([3.0, np.nan]), 1.0)
    (array([0.6, 0.8]), array([nan, nan]))
    """
    length = math.sqrt(float(vector @ vector))
    return vector if length <= norm else vector * (norm / length)


def converge(
    handling: Handling,
    *,
    num_ranks: int,
    dimension: int,
    gradient: float,
    num_steps: int,
    growth_interval: int,
    spikes: Mapping[int, int],
    spike: float,
) -> Convergence:
    """Do ``num_steps`` steps of the length 1/L, clipped to the norm c.

    Args:
        handling: Handling of the gradients.
        num_ranks: Ranks, each of which owns as large a part of the parameters.
        dimension: Parameters.
        gradient: c, the largest gradient at first.
        num_steps: Steps.
        growth_interval: Growth interval of a dynamic scale.
        spikes: Numbers of rank 0's gradient that have one, by step.
        spike: How large it is then.
    """
    eigenvalues = np.logspace(math.log10(_SMALLEST_EIGENVALUE), 0, dimension)
    x: Vector = np.ones(dimension)
    owner = np.arange(dimension) * num_ranks // dimension
    growth = growth_interval if handling.dynamic else None
    scales = [LossScale(handling.scale, growth_interval=growth) for _ in range(num_ranks)]
    to_form = _FORMS[handling.form]
    steps, losses = [0], [1.0]
    num_overflowed = 0.0
    first = float(eigenvalues.sum())
    before: Vector = np.zeros(dimension)
    for step in range(num_steps):
        own = np.tile(gradient * eigenvalues * x, (num_ranks, 1))
        if step in spikes:
            own[0, spikes[step]] = spike
        values = np.array([scale.value for scale in scales])
        with np.errstate(over="ignore", invalid="ignore"):
            sent = to_form(own * values[:, None])
            update, infinite = _handled(sent, handling, values=values, owner=owner, norm=gradient, before=before)
            x, before = x - update / gradient, update
        num_overflowed += infinite.mean()
        for scale, found in zip(scales, infinite, strict=True):
            scale.update(found_inf=bool(found))
        if (step + 1) % _LOOK_EVERY == 0:
            steps.append(step + 1)
            losses.append(float(eigenvalues @ (x * x)) / first)
    last = [scale.value for scale in scales]
    return Convergence(
        name=handling.name,
        final_loss=losses[-1],
        overflowed=num_overflowed / num_steps,
        scales_apart=max(last) / min(last),
        steps=tuple(steps),
        losses=tuple(losses),
    )


def _handled(
    sent: Vector, handling: Handling, *, values: Vector, owner: NDArray[np.intp], norm: float, before: Vector
) -> tuple[Vector, NDArray[np.bool_]]:
    """Return the update from the ranks' gradients, and the ranks that have found an infinity, or were told of one."""
    mean = sent.mean(axis=0)
    infinite = np.bincount(owner, weights=~np.isfinite(mean), minlength=len(values)) > 0
    if handling.share_found_inf:
        infinite[:] = infinite.any()
    if handling.on_overflow == "saturate":
        mean = np.clip(sent, -_LARGEST_FINITE, _LARGEST_FINITE).mean(axis=0)
    found = clipped(mean, norm) if handling.clip_scaled else mean
    update = found / values[owner]
    if handling.on_overflow != "saturate":
        update = np.where(infinite[owner], before if handling.on_overflow == "repeat" else 0.0, update)
    return (update if handling.clip_scaled else clipped(update, norm)), infinite


def _to_fp16(values: Vector) -> Vector:
    return values.astype(np.float16).astype(float)


_FORMS: dict[str, Callable[[Vector], Vector]] = {
    "fp32": lambda values: values.astype(np.float32).astype(float),
    "fp16": _to_fp16,
    "bf16": rounded_to_bf16,
}
