import random
from collections import Counter, deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from plesio.core.errors import ConfigError, DataError
from plesio.protocol.plans import Block
from plesio.runtime.coordinator.dealing import MAX_BLOCK_BATCHES, Dealing
from plesio.runtime.coordinator.leases import LeaseRecords, epoch_order, round_sizes


def all_ranks(num_samples: int, *, num_workers: int, batch_size: int) -> list[tuple[int, ...]]:
    """The sizes of each rank's batches."""
    return list(zip(*round_sizes(num_samples, num_workers=num_workers, batch_size=batch_size), strict=True))


def test_an_order_is_a_permutation_that_seed_and_epoch_change():
    order = epoch_order(1000, seed=3, epoch=5)
    assert sorted(order) == list(range(1000))
    assert order.tolist() == epoch_order(1000, seed=3, epoch=5).tolist()
    assert order.tolist() != epoch_order(1000, seed=3, epoch=6).tolist()
    assert order.tolist() != epoch_order(1000, seed=4, epoch=5).tolist()
    assert epoch_order(1000, seed=0, epoch=1).tolist() != epoch_order(1000, seed=1, epoch=0).tolist()


def test_an_order_is_the_same_on_every_machine_and_release():
    # Recorded: a change here changes every stored run's data order, and must be said in the changelog.
    assert epoch_order(8, seed=0, epoch=0).tolist() == RECORDED_ORDER


RECORDED_ORDER = [3, 6, 4, 0, 7, 5, 2, 1]


@given(num_workers=st.integers(1, 9), batch_size=st.integers(1, 7), extra=st.integers(0, 200))
def test_rounds_deal_every_sample_in_equal_numbers_of_batches(num_workers: int, batch_size: int, extra: int):
    sizes = np.array(all_ranks(num_workers + extra, num_workers=num_workers, batch_size=batch_size))
    assert sizes.sum() == num_workers + extra
    assert (np.ptp(sizes, axis=0) <= 1).all()
    assert sizes.min() >= 1
    assert sizes.max() <= batch_size + 1
    assert (sizes[:, :-1] == batch_size).all()


def test_a_rest_of_one_sample_per_worker_or_more_makes_a_round_of_its_own():
    assert all_ranks(21, num_workers=4, batch_size=4) == [(4, 2), (4, 1), (4, 1), (4, 1)]


def test_a_smaller_rest_is_added_to_the_last_full_round():
    assert all_ranks(35, num_workers=4, batch_size=4) == [(4, 5), (4, 5), (4, 5), (4, 4)]


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"num_samples": 0}, DataError), ({"batch_size": 0}, ConfigError), ({"budget_samples": 0}, ConfigError)],
)
def test_a_book_needs_samples_a_batch_size_and_a_budget(changes: dict[str, int], error: type[Exception]):
    values = {"num_samples": 5, "batch_size": 2, "budget_samples": 5, **changes}
    with pytest.raises(error):
        LeaseRecords(values.pop("num_samples"), **values, dealing="guided")


class LeasedEpochs(RuleBasedStateMachine):
    """For every order of leases, progress, losses and joins, each sample is dealt once, and the run ends."""

    @initialize(
        num_samples=st.integers(1, 60),
        batch_size=st.integers(1, 5),
        budget=st.integers(1, 150),
        num_workers=st.integers(1, 5),
        dealing=st.sampled_from(["guided", "fixed"]),
    )
    def begin(self, num_samples: int, batch_size: int, budget: int, num_workers: int, dealing: Dealing):
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.budget = budget
        self.live = list(range(num_workers))
        self.next_worker = num_workers
        self.book = LeaseRecords(
            num_samples, batch_size=batch_size, budget_samples=budget, workers=self.live, dealing=dealing
        )
        self.held: dict[int, tuple[int, Block, int]] = {}
        self.finished: Counter[tuple[int, int]] = Counter()
        self.ids: set[int] = set()

    @precondition(lambda self: self.live)
    @rule(pick=st.randoms(use_true_random=False))
    def lease(self, pick: random.Random):
        self.lease_for(pick.choice(self.live))

    def lease_for(self, worker: int) -> bool:
        block = self.book.lease(worker)
        if block is None:
            return False
        assert block.id not in self.ids
        assert 1 <= block.num_samples <= max(MAX_BLOCK_BATCHES * self.batch_size, self.batch_size + 1)
        assert 0 <= block.start < block.stop <= self.num_samples
        batches = list(block.batches())
        assert (batches[0].start, batches[-1].stop) == (block.start, block.stop)
        self.ids.add(block.id)
        self.held[block.id] = (worker, block, 0)
        return True

    @precondition(lambda self: self.held)
    @rule(pick=st.randoms(use_true_random=False))
    def progress(self, pick: random.Random):
        block_id = pick.choice(sorted(self.held))
        worker, block, done = self.held[block_id]
        self.advance(block_id, pick.randint(1, block.num_samples - done))
        assert not self.book.finish(worker + 1000, block_id, 1)

    @precondition(lambda self: self.held)
    @rule(pick=st.randoms(use_true_random=False))
    def give_back(self, pick: random.Random):
        block_id = pick.choice(sorted(self.held))
        worker, block, done = self.held[block_id]
        self.advance(block_id, pick.randint(1, block.num_samples - done), dropped=True)
        assert not self.book.give_back(worker + 1000, block_id, 1)

    def advance(self, block_id: int, num: int, *, dropped: bool = False) -> None:
        worker, block, done = self.held[block_id]
        if dropped:
            assert self.book.give_back(worker, block_id, num)
        else:
            assert self.book.finish(worker, block_id, num)
            self.finished.update(
                (block.epoch, position) for position in range(block.start + done, block.start + done + num)
            )
        self.held[block_id] = (worker, block, done + num)
        if done + num == block.num_samples:
            del self.held[block_id]

    @precondition(lambda self: len(self.live) > 1)
    @rule(pick=st.randoms(use_true_random=False))
    def lose(self, pick: random.Random):
        worker = pick.choice(self.live)
        self.live.remove(worker)
        self.book.release(worker)
        for block_id, (holder, _, _) in list(self.held.items()):
            if holder == worker:
                del self.held[block_id]
                assert not self.book.finish(worker, block_id, 1)

    @precondition(lambda self: len(self.live) < 6)
    @rule()
    def join(self):
        self.live.append(self.next_worker)
        self.book.join(self.next_worker)
        self.next_worker += 1

    @invariant()
    def samples_add_up(self):
        if not hasattr(self, "book"):
            return
        self.book.validate()
        assert self.book.finished_samples == self.finished.total()
        assert set(self.finished.values()) <= {1}

    def teardown(self):
        if not hasattr(self, "book"):
            return
        while not self.book.done:
            leased = [self.lease_for(worker) for worker in self.live]
            assert any(leased) or self.held, "samples are left that nobody can lease and nobody holds"
            for block_id in list(self.held):
                _, block, done = self.held[block_id]
                self.advance(block_id, block.num_samples - done)
            self.samples_add_up()
        full, rest = divmod(self.budget, self.num_samples)
        counts = Counter(epoch for epoch, _ in self.finished)
        assert counts == Counter({**dict.fromkeys(range(full), self.num_samples), **({full: rest} if rest else {})})
        assert [self.book.lease(worker) for worker in self.live] == [None] * len(self.live)


LeasedEpochs.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestLeasedEpochs = LeasedEpochs.TestCase


def fixed_batches(
    book: LeaseRecords, workers: list[int], *, pick: random.Random
) -> dict[int, list[tuple[int, int, int]]]:
    """Run to the end with workers that ask and finish in a random order; what each worker was given, in its order."""
    given_to: dict[int, list[tuple[int, int, int]]] = {worker: [] for worker in workers}
    asking = list(workers)
    held: dict[int, Block] = {}
    while asking or held:
        worker = pick.choice(asking + list(held))
        if worker in held:
            block = held.pop(worker)
            assert book.finish(worker, block.id, block.num_samples)
            asking.append(worker)
            continue
        asking.remove(worker)
        block = book.lease(worker)
        if block is not None:
            held[worker] = block
            given_to[worker].append((block.epoch, block.start, block.stop))
    return given_to


@given(
    num_samples=st.integers(1, 80),
    batch_size=st.integers(1, 6),
    num_workers=st.integers(1, 5),
    num_epochs=st.integers(1, 3),
    pick=st.randoms(use_true_random=False),
)
def test_fixed_dealing_is_independent_of_timing(
    num_samples: int, batch_size: int, num_workers: int, num_epochs: int, pick: random.Random
):
    def run(pick: random.Random) -> dict[int, list[tuple[int, int, int]]]:
        workers = list(range(num_workers))
        book = LeaseRecords(
            num_samples,
            batch_size=batch_size,
            budget_samples=num_epochs * num_samples,
            workers=workers,
            dealing="fixed",
        )
        dealt = fixed_batches(book, workers, pick=pick)
        assert book.done
        return dealt

    dealt = run(pick)
    assert dealt == run(random.Random(0))
    if num_samples < num_workers:
        return
    for rank, spans in dealt.items():
        expected, rounds = [], list(round_sizes(num_samples, num_workers=num_workers, batch_size=batch_size))
        for epoch in range(num_epochs):
            for number, sizes in enumerate(rounds):
                start = sum(map(sum, rounds[:number])) + sum(sizes[:rank])
                expected.append((epoch, start, start + sizes[rank]))
        assert spans == expected


def test_a_faster_worker_is_leased_more():
    book = LeaseRecords(1000, batch_size=5, budget_samples=1000, workers=[0, 1], dealing="guided")
    samples = Counter()
    held = {worker: book.lease(worker) for worker in (0, 1)}
    for tick in range(1, 10_000):
        for worker, pace in ((0, 1), (1, 3)):
            if held[worker] is not None and tick % pace == 0:
                block = held[worker]
                samples[worker] += 1
                assert book.finish(worker, block.id, 1)
                held[worker] = Block(
                    id=block.id, epoch=0, start=block.start + 1, stop=block.stop, batch_size=block.batch_size
                )
                if held[worker].num_samples == 0:
                    held[worker] = book.lease(worker)
        if book.done:
            break
    assert book.done
    assert tick <= 750 + 3 * 5, "the end of the epoch waited for more than one batch of the slow worker"
    assert samples[0] == pytest.approx(750, abs=15)


@pytest.mark.parametrize("num_batches", [7, 60, 301])
def test_all_finish_at_about_the_same_time_although_blocks_are_asked_for_ahead(num_batches: int):
    paces = {0: 1, 1: 1, 2: 1, 3: 3}
    book = LeaseRecords(num_batches, batch_size=1, budget_samples=num_batches, workers=paces, dealing="guided")
    queues: dict[int, list[Block]] = {worker: [] for worker in paces}
    left: dict[int, int] = {}
    now = 0
    while not book.done:
        for worker, pace in paces.items():
            if left.get(worker, 0) > 1:
                left[worker] -= 1
                continue
            if left.pop(worker, 0):
                book.finish(worker, queues[worker][0].id, 1)
                queues[worker][0] = replace(queues[worker][0], start=queues[worker][0].start + 1)
                if queues[worker][0].num_samples == 0:
                    del queues[worker][0]
            while len(queues[worker]) < 2 and (block := book.lease(worker)) is not None:
                queues[worker].append(block)  # the one under way and the next
            if queues[worker]:
                left[worker] = pace
        now += 1
        book.validate()
    ideal = num_batches / sum(1 / pace for pace in paces.values())
    assert now - 1 <= ideal + 2, "more than the last step of a fast worker and the clock's own"


def test_worker_that_would_only_be_late_is_refused_until_it_is_needed():
    book = LeaseRecords(100, batch_size=1, budget_samples=100, workers=[0, 1], dealing="guided")
    train(book, 0, num_batches=90, batch_size=1)
    last = [book.lease(0)]
    while (num_left := 100 - book.finished_samples - sum(book._held.values())) > 2:
        last.append(book.lease(0))
    assert num_left > 0
    assert book.lease(1) is None, "worker 0 is done with all before worker 1 with one batch"
    book.release(0)
    assert book.lease(1) is not None


def test_a_worker_whose_first_report_is_under_way_is_not_taken_for_a_slow_one():
    """An update that is sent behind the next steps brings its report after the worker has asked for another block."""
    book = LeaseRecords(64, batch_size=1, budget_samples=64, workers=[0, 1], dealing="guided")
    first = [(worker, book.lease(worker)) for _ in range(8) for worker in (0, 1)]
    for worker, block in first:
        if worker == 0:
            book.finish(worker, block.id, 1)
    assert book.lease(0) is not None
    assert book.lease(1) is not None


def train(book: LeaseRecords, worker: int, *, num_batches: int, batch_size: int) -> list[int]:
    """Lease and finish, one block after the other; the blocks' sizes in batches."""
    sizes: list[int] = []
    while sum(sizes) < num_batches and (block := book.lease(worker)) is not None:
        for batch in block.batches():
            assert book.finish(worker, block.id, batch.stop - batch.start)
        sizes.append(-(-block.num_samples // batch_size))
    return sizes


def test_blocks_grow_with_what_is_known_of_the_pace_and_shrink_towards_the_end():
    book = LeaseRecords(400, batch_size=4, budget_samples=400, workers=[0, 1], dealing="guided")
    sizes = train(book, 0, num_batches=100, batch_size=4)
    peak = sizes.index(MAX_BLOCK_BATCHES)
    assert sizes[0] == 1
    assert sizes[:peak] == sorted(sizes[:peak])
    assert sizes[peak:] == sorted(sizes[peak:], reverse=True)
    assert sizes[-1] == 1


def test_what_a_lost_worker_left_is_leased_first():
    book = LeaseRecords(100, batch_size=2, budget_samples=100, workers=[0, 1, 2], dealing="guided")
    train(book, 0, num_batches=15, batch_size=2)
    lost = book.lease(0)
    book.lease(1)
    assert book.finish(0, lost.id, 3)
    book.release(0)
    again = book.lease(2)
    assert (again.epoch, again.start, again.num_samples) == (lost.epoch, lost.start + 3, 2)


def test_a_worker_that_is_back_begins_as_a_new_one():
    book = LeaseRecords(10_000, batch_size=1, budget_samples=10_000, workers=[0, 1], dealing="guided")
    train(book, 1, num_batches=1, batch_size=1)
    book.release(1)
    train(book, 0, num_batches=200, batch_size=1)  # more steps than are remembered: what is forgotten is not of 1
    book.join(1)
    assert max(train(book, 1, num_batches=60, batch_size=1)) == MAX_BLOCK_BATCHES
    book.release(1)
    book.join(1)
    assert train(book, 1, num_batches=1, batch_size=1) == [1], "it may be slow now"


def test_a_lost_workers_batch_is_dealt_to_the_survivors_in_the_next_round():
    book = LeaseRecords(60, batch_size=5, budget_samples=60, workers=[0, 1, 2], dealing="fixed")
    first = {worker: book.lease(worker) for worker in (2, 0, 1)}
    assert [(first[worker].start, first[worker].stop) for worker in (0, 1, 2)] == [(0, 5), (5, 10), (10, 15)]
    book.release(1)
    second = {worker: book.lease(worker) for worker in (2, 0)}
    assert [(second[worker].start, second[worker].stop) for worker in (0, 2)] == [(5, 10), (15, 20)]


def test_a_worker_that_joins_has_a_batch_in_the_next_round():
    book = LeaseRecords(60, batch_size=5, budget_samples=60, workers=[0], dealing="fixed")
    book.lease(0)
    book.join(7)
    assert [book.lease(worker).start for worker in (7, 0)] == [10, 5]


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    num_samples=st.integers(16, 70),
    batch_size=st.integers(1, 5),
    epochs=st.integers(1, 2),
    dealing=st.sampled_from(["guided", "fixed"]),
    pick=st.randoms(use_true_random=False),
)
def test_racks_have_a_sample_for_each_worker_in_every_batch_and_all_samples_once(
    sizes: list[int], num_samples: int, batch_size: int, epochs: int, dealing: Dealing, pick: random.Random
):
    """Only a rest that is too small for every rack that stays is left out, whichever workers ask, are slow or leave
    early.
    """
    budget = epochs * num_samples
    book = LeaseRecords(
        num_samples,
        batch_size=batch_size,
        budget_samples=budget,
        workers=range(len(sizes)),
        dealing=dealing,
        num_workers=dict(enumerate(sizes)),
    )
    live, held, finished = set(range(len(sizes))), {}, Counter()

    def lease(worker: int) -> bool:
        block = book.lease(worker) if worker not in held else None
        if block is None:
            return False
        held[worker] = (block, deque(block.batches()))
        assert all(batch.stop - batch.start >= sizes[worker] for batch in held[worker][1])
        return True

    while not book.done:
        worker = pick.choice(sorted(live))
        if lease(worker):
            pass
        elif worker in held and len(live) > 1 and pick.random() < 0.05:
            live.remove(worker)
            del held[worker]
            book.release(worker)
        elif worker in held:
            block, batches = held[worker]
            batch = batches.popleft()
            finished.update((block.epoch, position) for position in range(batch.start, batch.stop))
            assert book.finish(worker, block.id, batch.stop - batch.start)
            if not batches:
                del held[worker]
        else:
            assert book.done or held or any(map(lease, live)), "samples are left that nobody can lease and nobody holds"
        book.validate()
    assert set(finished.values()) == {1}
    if len(live) == len(sizes) or len(set(sizes)) == 1:
        assert finished.total() == budget


def test_rounds_of_racks_are_those_of_their_workers():
    book = LeaseRecords(23, batch_size=2, budget_samples=23, workers=[0, 3], dealing="fixed", num_workers={0: 3, 3: 2})
    dealt = [(book.lease(worker), book.lease(worker)) for worker in (3, 0)]
    flat = list(round_sizes(23, num_workers=5, batch_size=2))
    assert [[block.num_samples for block in blocks] for blocks in dealt] == [
        [sum(sizes[3:]) for sizes in flat],
        [sum(sizes[:3]) for sizes in flat],
    ]
