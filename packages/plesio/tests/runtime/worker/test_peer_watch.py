"""Workers that have stopped are given up after a lease; those that leave in good order are not."""

import threading
import time
from collections.abc import Callable
from typing import cast

import pytest
import torch.distributed as dist
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from plesio.runtime.worker import peer_watch
from plesio.runtime.worker.peer_watch import PeerWatch

LEASE_S = 0.3
PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_watch, "lease_s", lambda step_s: LEASE_S + step_s)


class Given:
    """Notes who is given up, and when."""

    def __init__(self) -> None:
        self.up: dict[int, float] = {}

    def __call__(self, rank: int) -> None:
        assert rank not in self.up, "given up once"
        self.up[rank] = time.monotonic()


class HeldStore:
    """A store whose host stops when it is held, and may end."""

    def __init__(self) -> None:
        self._store = HashStore()
        self._ended = False
        self._answers = threading.Event()
        self._answers.set()

    def hold(self) -> None:
        self._answers.clear()

    def let_go(self) -> None:
        self._answers.set()

    def end(self) -> None:
        self._ended = True

    def add(self, key: str, amount: int) -> int:
        self._answers.wait()
        if self._ended:
            raise dist.DistNetworkError("connection reset by peer")
        return self._store.add(key, amount)


def watch(
    store: Store | HeldStore,
    rank: int,
    others: list[int],
    given: Given,
    *,
    host: int | None = None,
    step_s: float = 0.0,
) -> PeerWatch:
    return PeerWatch(
        cast(Store, store), rank=rank, others=others, step_s=lambda: step_s, give_up=given, store_host=host
    )


def wait_until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_worker_without_a_sign_of_life_is_given_up_after_a_lease_and_not_before() -> None:
    given, began_s = Given(), time.monotonic()
    mine = watch(HashStore(), 0, [1, 2], given)
    wait_until(lambda: given.up.keys() == {1, 2})
    mine.close()
    assert min(given.up.values()) - began_s > LEASE_S
    assert not mine.is_given_up()


def test_a_worker_that_has_left_is_not_given_up() -> None:
    given, store = Given(), HashStore()
    other = watch(store, 1, [], given)
    other.close()
    other.close()
    mine = watch(store, 0, [1], given)
    time.sleep(3 * LEASE_S)
    mine.close()
    assert not given.up


def test_who_has_the_store_is_given_up_when_it_answers_no_more() -> None:
    given, store = Given(), HeldStore()
    mine = watch(store, 1, [0, 2], given, host=0)
    store.hold()
    wait_until(lambda: bool(given.up))
    store.let_go()
    mine.close()
    assert not mine.is_given_up(), "it is the other that is lost"
    assert given.up.keys() == {0}, "not worker 2 too, which could not give a sign of life meanwhile"


def test_when_the_store_has_ended_with_its_host_nobody_is_given_up_for_want_of_signs() -> None:
    given, store = Given(), HeldStore()
    mine = watch(store, 1, [0, 2], given, host=0)
    store.end()
    time.sleep(3 * LEASE_S)
    assert not mine.is_given_up()
    assert not given.up
    mine.close()


def test_time_in_which_the_store_did_not_answer_is_not_held_against_others() -> None:
    given, store = Given(), HeldStore()
    mine = watch(store, 1, [2], given)
    for _ in range(2):  # together longer than a lease, neither by itself
        store.hold()
        time.sleep(LEASE_S * 0.7)
        store.let_go()
        time.sleep(LEASE_S * 0.1)
    store.add("alive/2", 1)
    mine.close()
    assert not given.up or mine.is_given_up()


def test_a_worker_that_reaches_no_store_of_the_launcher_is_itself_the_one_that_is_lost() -> None:
    given, store = Given(), HeldStore()
    mine = watch(store, 1, [0, 2], given)
    store.hold()
    wait_until(lambda: mine.is_given_up() and given.up.keys() == {0, 2})
    store.let_go()
    mine.close()
    assert mine.is_given_up()


def test_who_is_given_up_by_one_of_the_others_reads_it_in_the_store_and_so_does_everyone_else() -> None:
    store = HashStore()
    store.add("alive/1", 1)
    hasty, patient = Given(), Given()
    first = watch(store, 0, [1], hasty)
    third = watch(store, 2, [1], patient, step_s=100.0)
    wait_until(lambda: bool(patient.up))
    assert hasty.up.keys() == patient.up.keys() == {1}
    given_up = watch(store, 1, [], Given(), step_s=100.0)
    assert given_up.is_given_up(), "though by its own longer lease it has shown life in time"
    assert not first.is_given_up()
    assert not third.is_given_up()
    for each in (first, third, given_up):
        each.close()


def test_a_host_of_the_store_that_was_given_up_reads_it_when_the_store_answers_again() -> None:
    given, store = Given(), HeldStore()
    mine = watch(store, 1, [0], given, host=0)
    host = watch(store, 0, [1], Given(), host=0, step_s=100.0)
    store.hold()
    wait_until(lambda: bool(given.up))
    store.let_go()
    assert host.is_given_up()
    for each in (mine, host):
        each.close()
