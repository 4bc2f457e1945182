"""A loop over an iterable data set: every worker reads the whole stream, and trains on every n-th batch of it.

The stream must be the same everywhere, so it is read with random numbers of its own, begun from the run's seed and the
epoch. Batches are taken in rounds of one for each worker, and a round that is not whole is left out: so all workers end
after equally many steps, and no one has to ask the others. Where the group changes, the next round is the new group's.
A run that is resumed, and a worker that joins, read what has been trained on again and leave it out, unless the loader
has a state to go on from.
"""

import contextlib
import random
import zlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from plesio.core.errors import DataError
from plesio.runtime.worker.order import begun_anew
from plesio.runtime.worker.rounds import RoundRecords

_END = object()


def is_stream(loader: DataLoader[Any]) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def check_stream(loader: DataLoader[Any], *, samples: int | None, rounds: RoundRecords) -> None:
    """Refuse what cannot be divided: DataError."""
    if samples is not None:
        raise DataError(
            "session.shard(samples=...) needs a map-style data set (with __len__ and __getitem__): "
            "leave the loop over an iterable one when it has been long enough"
        )
    if getattr(loader.dataset, "_distributed", None) is not None:  # what datasets.distributed leaves behind
        raise DataError(
            "this data set has been split by rank (split_dataset_by_node), and session.shard would divide each part "
            "again; give it the whole data set, or iterate over the loader without session.shard"
        )
    if rounds.rank >= rounds.num_workers:
        raise DataError(
            "an iterable data set is divided among the workers of the start, so one that joins late on the store has "
            "no part in it; use a map-style data set, or a policy on collectives"
        )


def batch_digest(batch: Any, before: int = 0) -> int:
    """Return a number that a batch of other values, or after other batches, has otherwise.

    Tensors, arrays, numbers and texts count, wherever they are in it.

    >>> batch_digest([torch.tensor([1.0, 2.0])]) == batch_digest([torch.tensor([1.0, 3.0])])
    False
    """
    digest = before
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
            leaf = leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        if isinstance(leaf, np.ndarray) and leaf.dtype != object:
            digest = zlib.crc32(np.ascontiguousarray(leaf).data, digest)
        elif isinstance(leaf, int | float | str | bytes):
            digest = zlib.crc32(repr(leaf).encode(), digest)
    return digest


class Stream:
    """This worker's part of one loop.

    Args:
        past: The result of `position` where the run that is resumed or joined was in this loop.
        warn: Takes a line on samples that are left out, or read again.
        on_digest: Takes k and a digest of the loop's first 2^k batches, which are to be equal on all workers.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        seed: int,
        epoch: int,
        rounds: RoundRecords,
        past: dict[str, Any] | None,
        warn: Callable[[str], None],
        on_digest: Callable[[int, float], None],
    ) -> None:
        self._loader, self._on_digest = loader, on_digest
        self._digest = 0
        self._num_digested = 0
        self._rounds, self._past, self._warn = rounds, past, warn
        self._own_numbers = _Numbers((seed, epoch))
        self._read = self._trained = 0

    def batches(self) -> Generator[Any]:
        iterator = self._begin()
        while True:
            own, num_workers = None, self._rounds.num_workers
            for place in range(num_workers):
                batch = self._next(iterator)
                if batch is _END:
                    if not (place or self._read):
                        self._warn("a loop over an iterable data set had no batch, and trained nothing")
                    if place:
                        self._warn(
                            f"the last {place} of a stream's batches were left out: fewer than {num_workers} workers"
                        )
                    return
                self._look_at(batch)
                own = batch if place == self._rounds.rank else own
            self._read += num_workers
            yield own

    def _look_at(self, batch: Any) -> None:
        """Report what the batches so far were like, after the first one, two, four and so on."""
        if self._rounds.num_workers == 1:
            return
        self._digest = batch_digest(batch, self._digest)
        self._num_digested += 1
        if self._num_digested & (self._num_digested - 1) == 0:
            self._on_digest(self._num_digested.bit_length() - 1, float(self._digest))

    def trained(self) -> int:
        self._trained = self._read
        return self._rounds.num_workers

    def position(self) -> dict[str, Any]:
        """Return the number of batches trained on, and the loader's state, where it has one and is no further."""
        take = getattr(self._loader, "state_dict", None) if self._read == self._trained else None
        return {"batches": self._trained, "state": None if take is None else take()}

    def _begin(self) -> Iterator[Any]:
        past = self._past or {"batches": 0, "state": None}
        again = past["batches"] if past["state"] is None else 0
        if past["state"] is not None:
            self._loader.load_state_dict(past["state"])  # type: ignore[attr-defined]
        with self._own_numbers.used():
            iterator = iter(self._loader)
        if again:
            self._warn(f"{again} batches of the stream were read again and left out: it has no state to go on from")
        for _ in range(again):
            self._next(iterator)
        self._read = self._trained = past["batches"]
        return iterator

    def _next(self, iterator: Iterator[Any]) -> Any:
        with self._own_numbers.used():
            return next(iterator, _END)


class _Numbers:
    """The process's random numbers, as they would be if only the stream drew any."""

    def __init__(self, key: tuple[int, int]) -> None:
        with begun_anew(None, key=key):
            self._states = self._take()

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        others = self._take()
        self._put(self._states)
        try:
            yield
        finally:
            self._states = self._take()
            self._put(others)

    @staticmethod
    def _take() -> tuple[Any, Any, Any]:
        return torch.get_rng_state(), np.random.get_state(), random.getstate()

    @staticmethod
    def _put(states: tuple[Any, Any, Any]) -> None:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
