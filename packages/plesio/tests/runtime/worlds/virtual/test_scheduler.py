import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from plesio.runtime.worlds.virtual.scheduler import Scheduler, StallError, ThreadTurn, WorkerGone
from plesio.sim.kernel import Kernel

Main = Callable[[ThreadTurn], None]


def run(
    *mains: Main, seed: int = 0, before: Callable[[Scheduler, list[ThreadTurn]], None] = lambda _, __: None
) -> Scheduler:
    scheduler = Scheduler(Kernel())
    turns: list[ThreadTurn] = []
    for number in range(len(mains)):
        turns.append(
            scheduler.spawn(f"t{number}", lambda number=number: mains[number](turns[number]), seed=seed + number)
        )
    before(scheduler, turns)
    scheduler.run()
    return scheduler


def test_threads_run_one_at_a_time_in_the_order_of_virtual_time():
    seen: list[tuple[float, int]] = []
    inside = 0
    schedulers: list[Scheduler] = []

    def worker(number: int, naps: list[float]) -> Main:
        def main(turn: ThreadTurn) -> None:
            nonlocal inside
            for nap_s in naps:
                inside += 1
                assert inside == 1
                seen.append((schedulers[0].kernel.now_s, number))
                inside -= 1
                schedulers[0].sleep(turn, nap_s)

        return main

    run(worker(0, [2.0, 2.0]), worker(1, [1.0, 1.0, 1.0]), before=lambda scheduler, _: schedulers.append(scheduler))
    assert seen == [(0.0, 0), (0.0, 1), (1.0, 1), (2.0, 0), (2.0, 1)]


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_every_thread_has_its_own_random_streams_whoever_runs_between():
    schedulers: list[Scheduler] = []

    def worker(into: list[tuple[float, float, float]], nap_s: float) -> Main:
        def main(turn: ThreadTurn) -> None:
            for _ in range(3):
                into.append(draws())
                schedulers[0].sleep(turn, nap_s)

        return main

    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    outside = draws()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    together: list[list[tuple[float, float, float]]] = [[], []]
    keep = lambda scheduler, _: schedulers.insert(0, scheduler)  # noqa: E731
    run(worker(together[0], 1.0), worker(together[1], 0.7), before=keep)
    alone: list[tuple[float, float, float]] = []
    run(worker(alone, 1.0), before=keep)
    assert together[0] == alone
    assert together[1] != alone
    assert draws() == outside, "the caller's own streams are as they were"


def test_waiting_ends_when_somebody_wakes_or_time_is_up():
    schedulers: list[Scheduler] = []
    seen: list[float] = []

    def waits(turn: ThreadTurn) -> None:
        schedulers[0].wait(turn)
        seen.append(schedulers[0].kernel.now_s)
        schedulers[0].wait(turn, timeout_s=4.0)
        seen.append(schedulers[0].kernel.now_s)

    def before(scheduler: Scheduler, turns: list[ThreadTurn]) -> None:
        schedulers.append(scheduler)
        scheduler.kernel.at(3.0, lambda: scheduler.wake(turns[0]))

    run(waits, before=before)
    assert seen == [3.0, 7.0]


def test_spent_time_is_a_threads_own_until_it_sleeps():
    schedulers: list[Scheduler] = []
    seen: list[float] = []

    def main(turn: ThreadTurn) -> None:
        scheduler = schedulers[0]
        scheduler.spend(turn, 0.25)
        seen.extend([scheduler.now_s(turn), scheduler.kernel.now_s])
        scheduler.do(turn, lambda: seen.append(scheduler.kernel.now_s))
        scheduler.sleep(turn, 1.0)
        seen.append(scheduler.kernel.now_s)

    run(main, before=lambda scheduler, _: schedulers.append(scheduler))
    assert seen == [0.25, 0.0, 0.25, 1.25]


def test_threads_that_all_wait_for_ever_are_told_so():
    schedulers: list[Scheduler] = []
    met: list[str] = []

    def main(turn: ThreadTurn) -> None:
        try:
            schedulers[0].wait(turn)
        except StallError as error:
            met.append(str(error))

    with pytest.raises(StallError, match="t0, t1 wait"):
        run(main, main, before=lambda scheduler, _: schedulers.append(scheduler))
    assert len(met) == 2


def test_a_simulated_death_ends_a_thread_where_it_waits():
    schedulers: list[Scheduler] = []
    met: list[BaseException] = []

    def main(turn: ThreadTurn) -> None:
        try:
            schedulers[0].wait(turn)
        except WorkerGone as gone:
            met.append(gone)
            with pytest.raises(WorkerGone):
                schedulers[0].sleep(turn, 1.0)

    def before(scheduler: Scheduler, turns: list[ThreadTurn]) -> None:
        schedulers.append(scheduler)
        scheduler.kernel.at(2.0, lambda: scheduler.end(turns[0]))

    run(main, before=before)
    assert len(met) == 1


def test_a_bug_in_an_event_reaches_the_caller_and_leaves_no_thread():
    schedulers: list[Scheduler] = []

    def main(turn: ThreadTurn) -> None:
        with pytest.raises(ZeroDivisionError):
            schedulers[0].wait(turn)

    def before(scheduler: Scheduler, turns: list[ThreadTurn]) -> None:
        schedulers.append(scheduler)
        scheduler.kernel.at(1.0, lambda: [][1 // 0])

    num_threads = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        run(main, before=before)
    assert threading.active_count() <= num_threads + 1  # the last one may still be leaving


@pytest.mark.parametrize("asleep", ["sleep", "pause"])
def test_a_bug_in_an_event_ends_sleepers_whose_time_had_not_come(asleep: str):
    schedulers: list[Scheduler] = []
    met: list[str] = []

    def rest(turn: ThreadTurn) -> None:
        scheduler = schedulers[0]
        if asleep == "sleep":
            scheduler.sleep(turn, 10.0)
        else:
            scheduler.pause(turn, lambda done: scheduler.kernel.after(10.0, done))

    def main(turn: ThreadTurn) -> None:
        scheduler = schedulers[0]
        with pytest.raises(ZeroDivisionError):
            rest(turn)
        before_s = scheduler.now_s(turn)
        scheduler.sleep(turn, 30.0)  # as a session may that is closed; what had been planned comes meanwhile
        assert scheduler.now_s(turn) == before_s + 30.0
        met.append(turn.name)

    def before(scheduler: Scheduler, turns: list[ThreadTurn]) -> None:
        schedulers.append(scheduler)
        scheduler.kernel.at(1.0, lambda: [][1 // 0])

    with pytest.raises(ZeroDivisionError):
        run(main, main, before=before)
    assert sorted(met) == ["t0", "t1"]
