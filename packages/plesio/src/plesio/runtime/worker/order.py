"""The order in which a loop visits its data: the sampler's own, drawn once an epoch and the same on every worker.

Positions of the order are what is dealt out (`plesio.protocol.plans`), so samplers need no notion of other workers. An
order is a function of the run's seed and the epoch: a sampler draws with torch's, NumPy's and Python's random numbers
begun anew from these two, and so do the generators that it has of its own; all go on afterwards as if nothing had been
drawn. A sampler that shuffles and nothing else is not asked: `epoch_order` is its order.

A position is a sample, or what the loader hands out in one go: a batch of the user's own batch sampler, or whatever
one element of the sampler stands for where the loader does not batch (``batch_size=None``).
"""

import contextlib
import copy
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from plesio.core.errors import DataError
from plesio.protocol.plans import PlanFigures, Span
from plesio.runtime.coordinator.leases import epoch_order

Positions: TypeAlias = "NDArray[np.int64] | list[Any]"

_KEPT_EPOCHS = 4
"""Orders that are kept: what a lost worker held may be of an epoch that is over."""


def subset_digest(dataset: Subset[Any]) -> float:
    """Return a number that another choice of samples has otherwise.

    >>> subset_digest(Subset(range(4), [1, 2])) == subset_digest(Subset(range(4), [1, 3]))
    False
    """
    chosen: list[list[str]] = []
    inner: Any = dataset
    while isinstance(inner, Subset):
        chosen.append([str(int(one)) if _is_index(one) else str(one) for one in inner.indices])
        inner = inner.dataset
    return float(zlib.crc32(repr(chosen).encode()))


class Order:
    """The order of samples of one loop over a loader; DataError if its sampler cannot be dealt out.

    Attributes:
        in_units: Whether a position is what the loader hands out in one go.

    >>> order = Order(DataLoader(range(5), batch_size=2), seed=0)
    >>> order.indices([Span(0, 1, 3), Span(1, 0, 1)], first_epoch=0)
    [1, 2, 0]
    """

    def __init__(self, loader: DataLoader[Any], *, seed: int) -> None:
        if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__getitem__"):
            raise DataError(
                "session.shard deals out the samples of a map-style data set (with __len__ and __getitem__); "
                "split an iterable one yourself and iterate over its loader"
            )
        self.loader = loader
        batches = loader.batch_sampler
        stock = isinstance(batches, BatchSampler) and _is_stock(batches)
        self.in_units = not stock
        self._batch_size = cast("BatchSampler", batches).batch_size if stock else 1
        self._drop_last = stock and cast("BatchSampler", batches).drop_last
        sampler = cast("BatchSampler", batches).sampler if stock else loader.sampler if batches is None else batches
        self._sampler = _of_all(sampler)
        self._seed = seed
        self._drawn: dict[int, Positions] = {}
        _check(self._sampler)

    def figures(self, *, samples: int | None, epoch: int | None, num_workers: int) -> PlanFigures:
        """Return the numbers of the plan: one epoch, or ``samples`` samples of as many epochs as that takes.

        Raises:
            DataError: There is less to deal out than there are workers.
        """
        num_positions = len(cast("Any", self._sampler)) if epoch is None else len(self.positions(epoch))
        budget = num_positions if samples is None else samples
        if samples is not None and self.in_units:
            raise DataError(
                "session.shard(samples=...) needs a loader with a batch_size: a batch sampler's batches are dealt whole"
            )
        if self._drop_last:
            budget -= budget % self._batch_size
        if budget < 1 or num_positions < 1:
            raise DataError(f"nothing to train on: {num_positions} samples, batches of {self._batch_size}")
        if budget < num_workers:
            what = "batches" if self.in_units else "samples"
            raise DataError(f"{budget} {what} are too few for {num_workers} workers: use fewer workers or more data")
        return PlanFigures(num_samples=num_positions, batch_size=self._batch_size, budget_samples=budget)

    def indices(self, spans: Sequence[Span], *, first_epoch: int) -> list[Any]:
        """Return the data set's indices at these positions; epochs of spans count from ``first_epoch``."""
        found: list[Any] = []
        for span in spans:
            part = self.positions(first_epoch + span.epoch)[span.start : span.stop]
            found += part if isinstance(part, list) else part.tolist()
        return found

    def positions(self, epoch: int) -> Positions:
        """Return the order of an epoch; DataError if its length differs from that of this loop's other epochs."""
        if epoch not in self._drawn:
            drawn = self._draw(epoch)
            lengths = {len(drawn), *map(len, self._drawn.values())}
            if len(lengths) > 1:
                raise DataError(
                    f"{_name(self._sampler)} gives epochs of unequal length ({min(lengths)} and {max(lengths)}), so "
                    "session.shard(samples=...) cannot cross them; loop over session.shard(loader) once an epoch"
                )
            self._drawn[epoch] = drawn
            if len(self._drawn) > _KEPT_EPOCHS:
                del self._drawn[min(self._drawn)]
        return self._drawn[epoch]

    def digest(self, epoch: int) -> float | None:
        """Return a number that another order of the epoch has otherwise; None where positions are not of numbers."""
        positions = self.positions(epoch)
        if isinstance(positions, np.ndarray):
            return float(zlib.crc32(positions.tobytes()))
        if not all(isinstance(batch, list | tuple) and all(map(_is_index, batch)) for batch in positions):
            return None
        return float(zlib.crc32(repr([list(map(int, batch)) for batch in positions]).encode()))

    @property
    def is_drawn(self) -> bool:
        """True if the order is drawn from the sampler; False if the sampler only decides whether to shuffle."""
        return not _is_stock(self._sampler) or not isinstance(self._sampler, SequentialSampler | RandomSampler)

    def _draw(self, epoch: int) -> Positions:
        sampler = self._sampler
        if _is_stock(sampler) and isinstance(sampler, SequentialSampler):
            return np.arange(len(sampler))
        if _is_stock(sampler) and isinstance(sampler, RandomSampler) and _permutes(sampler):
            return epoch_order(len(sampler), seed=self._seed, epoch=epoch)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with begun_anew(sampler, key=(self._seed, epoch)):
            drawn = list(cast("Any", sampler))
        if all(map(_is_index, drawn)):
            return np.asarray(drawn, np.int64)
        return drawn


def _is_index(one: object) -> bool:
    return isinstance(one, int | np.integer)


def _is_stock(sampler: object) -> bool:
    """Tell whether the sampler's class is PyTorch's own, and not derived by a user."""
    return type(sampler).__module__.partition(".")[0] in ("torch", "torchdata")


def _permutes(sampler: RandomSampler) -> bool:
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)


def _name(sampler: object) -> str:
    return type(sampler).__name__


def _of_all(sampler: object) -> object:
    """Return the sampler, or for one that divides the data set among ranks, a copy that gives all to a single rank."""
    if not isinstance(sampler, DistributedSampler):
        return sampler
    whole = copy.copy(sampler)
    whole.num_replicas, whole.rank = 1, 0
    whole.num_samples = whole.total_size = len(cast("Any", sampler.dataset))
    return whole


def _check(sampler: object) -> None:
    for name in ("num_replicas", "num_processes", "world_size"):
        if isinstance(number := getattr(sampler, name, 1), int) and number > 1:
            raise DataError(
                f"{_name(sampler)} deals to {number} ranks itself, and session.shard would divide each part again; "
                "give the loader the sampler that it was made from, or iterate over the loader without session.shard"
            )
    if not hasattr(sampler, "__len__"):
        raise DataError(
            f"session.shard deals out an epoch of {_name(sampler)}, which has no length; give it a __len__, "
            "or iterate over the loader without session.shard"
        )


@contextlib.contextmanager
def begun_anew(sampler: object, *, key: tuple[int, int]) -> Iterator[None]:
    """Draw random numbers in this context from ``key`` alone; afterwards all generators are as they were."""
    [seed] = np.random.SeedSequence(key).generate_state(1, np.uint32).tolist()
    with contextlib.ExitStack() as put_back:
        for generator in _generators(sampler):
            put_back.callback(_seed(generator, seed))
        yield


def _generators(sampler: object) -> Iterator[object]:
    """Yield the process's own generators, and everything in the sampler, and in a sampler within it."""
    yield from (torch.default_generator, np.random.mtrand._rand, random._inst)
    while sampler is not None:
        yield from getattr(sampler, "__dict__", {}).values()
        sampler = getattr(sampler, "sampler", None)


def _seed(generator: object, seed: int) -> Callable[[], None]:
    """Begin a generator anew; returns what puts its state back. An object that is no generator is left alone."""
    match generator:
        case torch.Generator():
            state = generator.get_state()
            generator.manual_seed(seed)
            return lambda: cast("None", generator.set_state(state))
        case np.random.RandomState():
            numbers = generator.get_state(legacy=False)
            generator.seed(seed)
            return lambda: generator.set_state(numbers)
        case np.random.Generator():
            bits = generator.bit_generator
            before, bits.state = bits.state, type(bits)(seed).state
            return lambda: setattr(bits, "state", before)
        case random.Random() if not isinstance(generator, random.SystemRandom):
            inner = generator.getstate()
            generator.seed(seed)
            return lambda: generator.setstate(inner)
    return lambda: None
