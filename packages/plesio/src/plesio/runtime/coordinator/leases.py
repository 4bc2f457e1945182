"""The dealing of an epoch's samples to workers: each sample once, whichever worker is slow, lost or new.

An epoch is a permutation that every process can compute by itself (`epoch_order`), so only two positions in it have to
travel. Three ways to deal it out:

*Synchronous* (`round_sizes`): for a collective exchange. No messages: a rank's batches are a function of the seed, the
epoch and the rank, and all ranks have equally many. Full rounds take a batch of each worker. Of the rest, at least one
sample per worker makes a last, shorter round; fewer than that are added to the last full round.

*Guided* (`LeaseRecords`): for relaxed policies. A worker that asks is leased the next block, so fast workers take more.
Towards the end blocks shrink, so that all finish at about the same time: each is half of what the worker's share of the
rest would be if every batch went to whoever finished it first (weighted factoring: Flynn Hummel et al. 1996; at most
`MAX_BLOCK_BATCHES` batches), and a worker whose share is nothing is refused. Paces are measured, in batches finished.

*Fixed* (`LeaseRecords`): for synchronous policies on the store. Rounds of one batch a live worker, in order of their
numbers, laid out in the same way. The order of requests changes nothing; only a loss or a join changes
the rounds that no worker has begun.

Where racks are what exchanges, one worker leases for its rack, and a batch is one of each of its workers together: it
has at least as many samples as there are workers, so no block or rest is smaller than that. Only when racks of unequal
size go can samples be left that are too few for those that stay; these are left out, as on a collective.

A lease ends in one of two ways: the worker *finishes* its samples, in order, or it is *released* (closed, lost) and
what it had not finished is leased again before anything else. So are samples of an update that was dropped, which their
worker *gives back*, in order too. The invariant (`LeaseRecords.validate`):

    budget = finished + outstanding + dealt, not yet leased + returned + never dealt
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from plesio.core.errors import ConfigError, DataError
from plesio.protocol.plans import Block, Remainder, Span
from plesio.runtime.coordinator.dealing import Dealer, Dealing, FixedDealer, GuidedDealer, Pool, next_round_sizes


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Draw the order in which epoch ``epoch`` visits the samples: the same permutation in every process.

    >>> epoch_order(5, seed=0, epoch=0).tolist() == epoch_order(5, seed=0, epoch=0).tolist()
    True
    >>> sorted(epoch_order(5, seed=0, epoch=1).tolist())
    [0, 1, 2, 3, 4]
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, epoch))))
    return generator.permutation(num_samples)


def round_sizes(num_samples: int, *, num_workers: int, batch_size: int) -> Iterator[list[int]]:
    """Yield the sizes of each round's batches, by rank, until ``num_samples`` are dealt; fewer than workers are not.

    >>> list(round_sizes(10, num_workers=2, batch_size=3)), list(round_sizes(1, num_workers=2, batch_size=3))
    ([[3, 3], [2, 2]], [])
    """
    while num_samples >= num_workers:
        sizes = next_round_sizes(num_samples, num_slots=num_workers, batch_size=batch_size)
        yield sizes
        num_samples -= sum(sizes)


@dataclass(slots=True)
class _Lease:
    worker: int
    block: Block
    num_finished: int = 0


class LeaseRecords:
    """Deals a budget of samples out to the workers of a store; exactly the budget is finished, none twice in an epoch.

    Pure state: the coordinator calls it, one call at a time. A worker may hold several blocks (ask for the next before
    the last is finished).

    Args:
        budget_samples: Samples to train on in all, over all workers: part of an epoch, or several epochs.
        dealing: ``guided``: the worker that asks gets the next block; ``fixed``: one batch per worker and round.
        num_workers: Of each that leases for its whole rack, how many workers that is; 1 for all others. Then no epoch
            of the budget may have fewer samples than the largest rack has workers (``fixed``: than all racks have).

    Raises:
        DataError: There are no samples.
        ConfigError: The batch size or the budget is below one.

    >>> leases = LeaseRecords(10, batch_size=4, budget_samples=10, workers=[0, 1], dealing="guided")
    >>> first, second, third = leases.lease(0), leases.lease(1), leases.lease(0)
    >>> (third.start, third.stop), leases.lease(1), leases.done
    ((8, 10), None, False)
    >>> leases.finish(0, first.id, 4), leases.finish(1, second.id, 4)
    (True, True)
    >>> leases.release(0)             # worker 0 is lost, and with it the two samples of its second block
    >>> again = leases.lease(1)
    >>> (again.start, again.stop), leases.finish(1, again.id, 2), leases.done
    ((8, 10), True, True)
    """

    def __init__(
        self,
        num_samples: int,
        *,
        batch_size: int,
        budget_samples: int,
        workers: Iterable[int] = (),
        dealing: Dealing,
        num_workers: Mapping[int, int] | None = None,
    ) -> None:
        if num_samples < 1:
            raise DataError("the data set is empty: there is nothing to lease to the workers")
        for what, value in (("batch size", batch_size), ("budget in samples", budget_samples)):
            if value < 1:
                raise ConfigError(f"the {what} is {value}; write 1 or more")
        whole = Remainder(num_samples=num_samples, num_fresh=budget_samples)
        self._begin(whole, batch_size=batch_size, workers=workers, dealing=dealing, num_workers=num_workers or {})

    @classmethod
    def of(
        cls,
        remainder: Remainder,
        *,
        batch_size: int,
        workers: Iterable[int],
        dealing: Dealing,
        num_workers: Mapping[int, int],
    ) -> Self:
        """Make the records of what is left of a plan begun otherwise; for racks, in pieces that are large enough."""
        leases = cls.__new__(cls)
        leases._begin(remainder, batch_size=batch_size, workers=workers, dealing=dealing, num_workers=num_workers)
        return leases

    def _begin(
        self,
        remainder: Remainder,
        *,
        batch_size: int,
        workers: Iterable[int],
        dealing: Dealing,
        num_workers: Mapping[int, int],
    ) -> None:
        self._pool = Pool(remainder)
        dealer = GuidedDealer if dealing == "guided" else FixedDealer
        self._dealer: Dealer = dealer(self._pool, batch_size=batch_size, num_workers=num_workers)
        self._num_workers = num_workers
        self._batch_size = batch_size
        self._dealing = dealing
        self._budget_samples = len(remainder)
        self._held: dict[int, int] = dict.fromkeys(workers, 0)
        """Samples that each live worker has leased and not finished."""
        self._leases: dict[int, _Lease] = {}
        self._next_id = 0
        self.finished_samples = 0

    @property
    def done(self) -> bool:
        """True if the budget is met; then every `lease` is None for good."""
        return self.finished_samples == self._budget_samples

    def join(self, worker: int) -> None:
        """Count a worker in: it may lease, and in fixed mode it has a batch in every round dealt from now on."""
        self._held.setdefault(worker, 0)

    def lease(self, worker: int) -> Block | None:
        """Lease the next block to a live worker; None when there is none for it now.

        None while the budget is not `done` means that others hold the rest or will sooner be done with it. If one
        is lost or slower than it was, there may be a block: ask again after every `finish` and `release`, until `done`.
        Meanwhile the policy must not wait for this worker.
        """
        assert worker in self._held, f"worker {worker} asks for samples but has not joined"
        span = self._dealer.next_for(worker, held=self._held)
        self._leave_out()
        if span is None:
            return None
        num_workers = self._num_workers.get(worker, 1)
        block = Block(
            id=self._next_id,
            epoch=span.epoch,
            start=span.start,
            stop=span.stop,
            batch_size=self._batch_size * num_workers if self._dealing == "guided" else len(span),
            num_workers=num_workers,
        )
        self._next_id += 1
        self._leases[block.id] = _Lease(worker, block)
        self._held[worker] += block.num_samples
        return block

    def finish(self, worker: int, block_id: int, num_samples: int) -> bool:
        """Record that the worker has trained on the next ``num_samples`` samples of its block.

        Returns:
            Whether that counted: not if the block is no longer the worker's (a late message of a worker counted lost).
        """
        if self._pass(worker, block_id, num_samples) is None:
            return False
        self.finished_samples += num_samples
        return True

    def give_back(self, worker: int, block_id: int, num_samples: int) -> bool:
        """Lease the next ``num_samples`` samples of a worker's block again: what it made of them was dropped.

        Returns:
            Whether that counted, as `finish` does.
        """
        span = self._pass(worker, block_id, num_samples)
        if span is None:
            return False
        if num_samples:
            self._pool.returned.append(span)
        return True

    def _pass(self, worker: int, block_id: int, num_samples: int) -> Span | None:
        """Count a worker's step on these samples, and return them; None if the block is not its own any more."""
        lease = self._leases.get(block_id)
        if lease is None or lease.worker != worker:
            return None
        block, start = lease.block, lease.block.start + lease.num_finished
        assert 0 <= num_samples <= block.stop - start, "more samples than the block has"
        lease.num_finished += num_samples
        self._held[worker] -= num_samples
        self._dealer.finished(worker)
        if lease.num_finished == block.num_samples:
            del self._leases[block_id]
        return Span(block.epoch, start, start + num_samples)

    def release(self, worker: int) -> None:
        """Count a worker out: what it had leased and not finished is leased again first. Harmless when repeated."""
        self._held.pop(worker, None)
        for block_id, lease in list(self._leases.items()):
            if lease.worker == worker:
                del self._leases[block_id]
                block = lease.block
                self._pool.returned.append(Span(block.epoch, block.start + lease.num_finished, block.stop))
        self._pool.returned.extend(self._dealer.leave(worker))
        self._leave_out()

    def _leave_out(self) -> None:
        """Take what came back and is too little for a batch of any rack that is there out of the budget."""
        least = min((self._num_workers.get(worker, 1) for worker in self._held), default=1)
        self._budget_samples -= self._pool.drop_returned(least)

    def remainder(self) -> Remainder:
        """Return what is left when all have given back their samples."""
        assert not any(self._held.values()), f"samples are held: {self._held}"
        return self._pool.remainder()

    def validate(self) -> None:
        """Raise AssertionError when the samples do not add up (tests call this after every event)."""
        parts = (self.finished_samples, sum(self._held.values()), self._dealer.num_dealt, self._pool.num_samples)
        assert sum(parts) == self._budget_samples, f"finished, outstanding, dealt, in the pool: {parts}"
        held = dict.fromkeys(self._held, 0)
        for lease in self._leases.values():
            assert lease.worker in held, "a lost worker holds a lease"
            held[lease.worker] += lease.block.num_samples - lease.num_finished
        assert held == self._held, f"held: {self._held}, leased: {held}"
