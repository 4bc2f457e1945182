"""The effect of the order of addition on floating-point numbers, and on a training whose gradients are added up.

Floating-point addition is commutative and not associative: ``(a + b) + c`` and ``a + (b + c)`` round at different
places. So two ranks agree whatever the order, and from three on it matters.

The training is a network of two layers in 32 bits, whose global batch is dealt to ranks; each rank's gradient is of its
own part, and they are added up in some order. `SOURCES` are what may differ between two runs of it.
"""

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plesio_planning.studies.trajectories import Trajectory

Floats = NDArray[np.float32]
Order = Literal["forward", "reverse", "random", "random, in 64 bits"]

_FEATURES, _HIDDEN, _CLASSES = 16, 32, 4
_SAMPLES = 1024
_APART = 0.3
"""Distance of the classes, in standard deviations: they overlap."""
_MOMENTUM = np.float32(0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEffect:
    """Sums over so many ranks, forward against backward.

    Attributes:
        num_ranks: N.
        differing: Share of the elements that differ.
        last_place: Share that differs by one unit in the last place.
        largest: Difference.
        differing_in_64: Share that differs when sums are made in 64 bits and rounded to 32 in the end.
    """

    num_ranks: int
    differing: float
    last_place: float
    largest: float
    differing_in_64: float


def sums_by_order(numbers: tuple[float, ...]) -> dict[tuple[float, ...], float]:
    """Return the sum of the numbers in each order, in 32 bits from left to right.

    >>> sorted(set(sums_by_order((1e30, -1e30, 1.0)).values()))
    [0.0, 1.0]
    """
    return {order: float(_added(np.array(order, np.float32))) for order in permutations(numbers)}


def order_effect(tensors: Floats) -> OrderEffect:
    """Add up the rows of ``tensors`` (ranks, elements) from the first to the last, and from the last to the first."""
    forward, backward = _added(tensors), _added(tensors[::-1])
    apart = np.abs(forward - backward)
    wide = [_added(rows, np.float64).astype(np.float32) for rows in (tensors, tensors[::-1])]
    differing = forward != backward
    unit = np.spacing(np.maximum(np.abs(forward), np.abs(backward)))
    return OrderEffect(
        num_ranks=len(tensors),
        differing=float(differing.mean()),
        last_place=float((differing & (apart <= unit)).mean()),
        largest=float(apart.max()),
        differing_in_64=float((wide[0] != wide[1]).mean()),
    )


def _added(rows: Floats, dtype: type[np.floating] = np.float32) -> NDArray[np.floating]:
    """Add one after the other, in numbers of ``dtype``; numpy's own sum would take pairs."""
    total = np.array(rows[0], dtype)
    for row in rows[1:]:
        total += row
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class VariationSource:
    """How a run is made, where it may differ from another.

    Attributes:
        name: Difference to the run that it is compared with, `reference`.
        order: Order in which ranks are added up.
        data_seed: Seed of the order of the samples.
        deal: Which ranks get which samples of a batch: in blocks or in turn.
        rank_factor: Ranks, as a multiple of what was asked for; they share the same batch.
    """

    name: str
    order: Order = "forward"
    order_seed: int = 0
    init_seed: int = 0
    data_seed: int = 0
    deal: Literal["blocks", "in turn"] = "blocks"
    rank_factor: float = 1.0
    remedy: str = ""

    @property
    def reference(self) -> "VariationSource":
        """The source to compare with: ranks added up in their order, or another random order for random ones."""
        return replace(self, order_seed=self.order_seed + 1) if self.order.startswith("random") else SOURCES[0]


SOURCES: tuple[VariationSource, ...] = (
    VariationSource(name="the same again", remedy="nothing is needed"),
    VariationSource(name="reverse order", order="reverse", remedy="one algorithm and one topology for all-reduces"),
    VariationSource(name="random order", order="random", remedy="gather, then add up by rank; no atomic additions"),
    VariationSource(
        name="random, in 64 bits", order="random, in 64 bits", remedy="itself a remedy: 64-bit sums, rounded once"
    ),
    VariationSource(
        name="samples in turn", deal="in turn", remedy="deal samples by rank and step, not by who comes first"
    ),
    VariationSource(name="half the ranks", rank_factor=0.5, remedy="the same number of ranks, or sums by fixed blocks"),
    VariationSource(name="another data seed", data_seed=1, remedy="a seed a run, from which all others follow"),
    VariationSource(name="another initial seed", init_seed=1, remedy="the same"),
)


def train(
    source: VariationSource, *, num_ranks: int, batch: int, learning_rate: float, num_steps: int, seed: int
) -> Trajectory:
    """Train, and return the gradient's sum and the parameters after each step; ``source`` offsets ``seed``."""
    ranks = max(1, round(num_ranks * source.rank_factor))
    features, labels = _data(seed)
    parameters = _parameters(seed + 100 + source.init_seed)
    velocity = {name: np.zeros_like(value) for name, value in parameters.items()}
    samples = np.random.default_rng(seed + 200 + source.data_seed)
    orders = np.random.default_rng(seed + 300 + source.order_seed)
    trajectory: dict[int, dict[str, NDArray[np.floating]]] = {}
    for step in range(num_steps):
        chosen = samples.choice(_SAMPLES, batch, replace=False)
        dealt = chosen.reshape(ranks, -1) if source.deal == "blocks" else chosen.reshape(-1, ranks).T
        gradients = _gradients(parameters, features[dealt], labels[dealt])
        order = _order(source.order, ranks, orders)
        recorded: dict[str, NDArray[np.floating]] = {}
        for name, rows in gradients.items():
            wide = np.float64 if source.order == "random, in 64 bits" else np.float32
            mean = _added(rows[order], wide).astype(np.float32) / np.float32(batch)
            velocity[name] = _MOMENTUM * velocity[name] + mean
            parameters[name] = parameters[name] - np.float32(learning_rate) * velocity[name]
            recorded[f"gradient of {name}"] = mean
        trajectory[step] = recorded | {name: value.copy() for name, value in parameters.items()}
    return trajectory


def _order(order: Order, ranks: int, rng: np.random.Generator) -> NDArray[np.intp]:
    if order == "forward":
        return np.arange(ranks)
    return np.arange(ranks)[::-1] if order == "reverse" else rng.permutation(ranks)


def _data(seed: int) -> tuple[Floats, NDArray[np.intp]]:
    rng = np.random.default_rng(seed)
    centres = _APART * rng.standard_normal((_CLASSES, _FEATURES))
    labels = rng.integers(_CLASSES, size=_SAMPLES)
    features = (centres[labels] + rng.standard_normal((_SAMPLES, _FEATURES))).astype(np.float32)
    return features, labels


def _parameters(seed: int) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    return {
        "hidden": (rng.standard_normal((_FEATURES, _HIDDEN)) / np.sqrt(_FEATURES)).astype(np.float32),
        "output": (rng.standard_normal((_HIDDEN, _CLASSES)) / np.sqrt(_HIDDEN)).astype(np.float32),
    }


def _gradients(parameters: dict[str, Floats], features: Floats, labels: NDArray[np.intp]) -> dict[str, Floats]:
    """Return the gradients of the summed cross entropy of each rank's samples: (ranks, ...) each."""
    hidden = np.tanh(features @ parameters["hidden"])
    logits = hidden @ parameters["output"]
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    errors = exponentials / exponentials.sum(axis=-1, keepdims=True)
    errors -= np.eye(_CLASSES, dtype=np.float32)[labels]
    behind = (errors @ parameters["output"].T) * (1 - hidden * hidden)
    return {"output": hidden.swapaxes(1, 2) @ errors, "hidden": features.swapaxes(1, 2) @ behind}
