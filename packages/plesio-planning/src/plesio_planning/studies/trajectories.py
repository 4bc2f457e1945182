"""Two recorded runs side by side: the first step and tensor at which they differ, by tiers.

A *trajectory* is, for each step, some tensors by name. Two are compared step by step and tensor by tensor, in two
tiers: *strict*, in which all bits are the same, and *relaxed*, in which the difference is no longer than a tolerance
times the tensor (``‖a - b‖ <= tolerance max(‖a‖, ‖b‖)``).

=====================  ================================================================================================
file                   what is compared
=====================  ================================================================================================
``NAME.npz``           every array, whose first axis is the step; an array ``step`` numbers the steps
``results.json``       losses by clock, evaluations by samples, and in the end the parameters' hash (docs/results.md)
``trace-W.jsonl``      by clock what a worker did and with which fields, without times (docs/traces.md)
=====================  ================================================================================================
"""

import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from plesio.core.errors import ConfigError
from plesio.core.files import reason_of
from plesio.core.results import read_results
from plesio.core.trace import read_trace

Tier = Literal["strict", "relaxed"]
Tensor = NDArray[Any]
Trajectory = Mapping[int, Mapping[str, Tensor]]
"""Steps in rising order; names in the order in which they come about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far two trajectories are apart in one tensor at one step.

    Attributes:
        relative: ``‖a - b‖ / max(‖a‖, ‖b‖)``; infinite where there is nothing to subtract: a text that differs, another
            shape, or a tensor that only one of them has.
        differing: Share of the elements that differ in any bit.
        last_place: Share that differs by one unit in the last place.
    """

    step: int
    tensor: str
    relative: float
    differing: float
    last_place: float

    def within(self, tier: Tier, *, tolerance: float) -> bool:
        """Return True if the tier counts them as equal."""
        return self.differing == 0 if tier == "strict" else self.relative <= tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first one of a tier.

    Attributes:
        place: Place of the element that differs most, by axis.
        first: Its value in the first trajectory, as text.
    """

    tier: Tier
    distance: Distance
    place: tuple[int, ...]
    first: str
    second: str


def distances(first: Trajectory, second: Trajectory) -> Iterator[Distance]:
    """Yield the distances of every tensor of every step that either has, in their order."""
    for step in sorted({*first, *second}):
        one, other = first.get(step, {}), second.get(step, {})
        for name in dict.fromkeys([*one, *other]):
            yield _distance(step, name, one.get(name), other.get(name))


def first_difference(first: Trajectory, second: Trajectory, *, tier: Tier, tolerance: float) -> FirstDifference | None:
    """Find the first step and tensor that the tier does not count as equal.

    >>> same = {0: {"w": np.array([1.0, 2.0])}}
    >>> other = {0: {"w": np.array([1.0, 2.0 + 1e-9])}}
    >>> found = first_difference(same, other, tier="strict", tolerance=1e-5)
    >>> found.distance.step, found.distance.tensor, found.place, found.distance.differing
    (0, 'w', (1,), 0.5)
    >>> first_difference(same, other, tier="relaxed", tolerance=1e-5) is None
    True
    """
    found = (one for one in distances(first, second) if not one.within(tier, tolerance=tolerance))
    distance = next(found, None)
    return None if distance is None else difference_at(distance, first, second, tier=tier)


def difference_at(distance: Distance, first: Trajectory, second: Trajectory, *, tier: Tier) -> FirstDifference:
    """Describe two trajectories where they are that far apart; the element that differs most is named."""
    one = first.get(distance.step, {}).get(distance.tensor)
    other = second.get(distance.step, {}).get(distance.tensor)
    if one is None or other is None or not _alike(one, other):
        return FirstDifference(tier=tier, distance=distance, place=(), first=_described(one), second=_described(other))
    place = np.unravel_index(int(np.argmax(_apart(one, other))), one.shape)
    where = tuple(int(axis) for axis in place)
    return FirstDifference(tier=tier, distance=distance, place=where, first=str(one[place]), second=str(other[place]))


def _distance(step: int, name: str, one: Tensor | None, other: Tensor | None) -> Distance:
    if one is None or other is None or not _alike(one, other):
        return Distance(step=step, tensor=name, relative=math.inf, differing=1.0, last_place=0.0)
    if one.tobytes() == other.tobytes():
        return Distance(step=step, tensor=name, relative=0.0, differing=0.0, last_place=0.0)
    differing = _bits_differ(one, other)
    share = float(np.count_nonzero(differing)) / differing.size
    if one.dtype.kind not in "fiu":
        return Distance(step=step, tensor=name, relative=math.inf, differing=share, last_place=0.0)
    apart = _apart(one, other)
    last_place = 0.0
    if one.dtype.kind == "f":
        unit = np.spacing(np.maximum(np.abs(one), np.abs(other)))
        last_place = float(np.count_nonzero(differing & (apart <= unit))) / differing.size
    size, length = max(_length(one), _length(other)), _length(apart)
    relative = length / size if 0 < size < math.inf else (0.0 if length == 0 else math.inf)
    return Distance(step=step, tensor=name, relative=relative, differing=share, last_place=last_place)


def _length(tensor: Tensor) -> float:
    """Return the norm, NaN counting as nothing: where only one has it the difference is infinite."""
    values = tensor.astype(float).ravel()
    square = float(values @ values)
    return math.sqrt(float(np.nansum(values * values)) if math.isnan(square) else square)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Return True if elements can be compared with one another; texts can, whatever their lengths."""
    return one.shape == other.shape and (one.dtype == other.dtype or one.dtype.kind == other.dtype.kind == "U")


def _bits_differ(one: Tensor, other: Tensor) -> NDArray[np.bool_]:
    if one.dtype.kind != "f":
        return np.asarray(one != other)
    kind = f"u{one.dtype.itemsize}"
    same_nan = np.isnan(one) & np.isnan(other)
    return np.asarray((np.ascontiguousarray(one).view(kind) != np.ascontiguousarray(other).view(kind)) & ~same_nan)


def _apart(one: Tensor, other: Tensor) -> NDArray[np.float64]:
    """Return how far elements are apart; infinite where only one is a number, and 1 for texts that differ."""
    if one.dtype.kind not in "fiu":
        return np.asarray(one != other, float)
    with np.errstate(invalid="ignore"):
        apart = np.abs(one.astype(float) - other.astype(float))
    return np.where(_bits_differ(one, other), np.where(np.isnan(apart), np.inf, apart), 0.0)


def _described(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def read_trajectory(path: Path) -> Trajectory:
    """Read the trajectory that a file holds; the head of the module lists the kinds of files.

    Raises:
        ConfigError: The file is of another kind.
        DataError: It is no file of the kind that its name says.
    """
    if path.suffix == ".npz":
        return _read_arrays(path)
    if path.suffix == ".json":
        return _read_results(path)
    if path.suffix == ".jsonl":
        return _read_trace(path)
    raise ConfigError(f"{path}: trajectories are in files named *.npz, results.json or trace-*.jsonl")


def _read_arrays(path: Path) -> Trajectory:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"cannot read {path}: {reason_of(error)}; write it by numpy.savez, with arrays of numbers"
        ) from None
    steps = arrays.pop("step", None)
    if not arrays or any(array.ndim == 0 for array in arrays.values()):
        raise ConfigError(f"{path}: every array must have the step as its first axis")
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) != 1 or (steps is not None and lengths != {len(steps)}):
        raise ConfigError(f"{path}: its arrays have {sorted(lengths)} steps; write as many of each")
    (length,) = lengths
    numbers = range(length) if steps is None else [int(step) for step in steps]
    return {
        step: {name: np.asarray(array[place]) for name, array in arrays.items()} for place, step in enumerate(numbers)
    }


def _read_results(path: Path) -> Trajectory:
    runs = read_results(path)
    trajectory: dict[int, dict[str, Tensor]] = {}
    for run in runs:
        name = f"{run.policy}, seed {run.seed}"
        for point in run.losses:
            trajectory.setdefault(point.clock, {})[f"{name}: loss"] = np.asarray(point.loss)
        last = max((point.clock for point in run.losses), default=0)
        for number, evaluation in enumerate(run.evaluations):
            key = f"{name}: {run.metric_name} {number} after {evaluation.samples} samples"
            trajectory.setdefault(last + 1, {})[key] = np.asarray(evaluation.metric)
        trajectory.setdefault(last + 2, {})[f"{name}: parameters_sha256"] = np.asarray(str(run.parameters_sha256))
    return dict(sorted(trajectory.items()))


def _read_trace(path: Path) -> Trajectory:
    trajectory: dict[int, dict[str, Tensor]] = {}
    for record in read_trace(path).records:
        of_clock = trajectory.setdefault(record.clock, {})
        number = sum(name.split(" ")[0] == record.kind for name in of_clock)
        fields = ", ".join(f"{key} {value}" for key, value in record.fields.items())
        of_clock[record.kind if number == 0 else f"{record.kind} {number + 1}"] = np.asarray(fields or "–")
    return dict(sorted(trajectory.items()))
