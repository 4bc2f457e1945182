"""One run's decisions, without sockets or clocks."""

from pathlib import Path

import pytest

from plesio.core.results import Evaluation
from plesio.policies import Joined, RefuseReason, read_log, verify
from plesio.protocol.effects import ApplyOrder, DropOrder, SnapshotOrder, Tell
from plesio.protocol.figures import Report
from plesio.protocol.plans import Block
from plesio.protocol.to_server import (
    EvaluationRequest,
    Evaluations,
    Goodbye,
    Heartbeat,
    Leave,
    NotFinite,
    Release,
    UpdateHead,
)
from plesio.protocol.to_worker import Expelled, Failed, KnownEvaluation, Lease, Lost, MayLeave, Start, UpdateRefused
from plesio.runtime.coordinator.members import FIRST_LEASE_S, LEASE_STEPS, MAX_LEASE_S, MIN_LEASE_S
from support.coordinated_run import Run


def test_run_starts_when_the_last_expected_worker_has_joined():
    run = Run("asp", workers=3)
    assert run.join(2) == []
    assert run.join(0) == []
    assert run.coordinator.state == "gathering"
    run.join(1)
    assert run.coordinator.state == "running"
    assert [run.kinds(worker) for worker in range(3)] == [[Start]] * 3
    assert run.told[0][0] == Start(clock=0, elapsed_s=0.0, workers=(0, 1, 2))


def test_newcomer_starts_where_the_slowest_is():
    run = Run("ssp:4").start()
    for clock in (1, 2, 3):
        run.arrive(0, clock, base_version=0)
    run.arrive(1, 2, base_version=0)
    run.join(2)
    assert run.told[2][-1] == Start(clock=2, elapsed_s=0.0, workers=(0, 1))
    assert run.coordinator.live == [0, 1, 2]


def test_update_counts_when_the_last_server_has_its_part():
    run = Run("asp", servers=3).start()
    assert run.arrive(0, 1, server=2) == []
    assert run.arrive(0, 1, server=0) == []
    assert run.applied() == []
    run.arrive(0, 1, server=1)
    assert run.applied() == [((0, 1),)]
    assert run.coordinator.ledger.samples.applied == 2


def test_lost_worker_loses_the_updates_that_are_not_whole_and_keeps_the_others():
    run = Run("asp", servers=2).start()
    run.arrive(0, 1, server=0)
    run.arrive(0, 1, server=1)
    run.arrive(0, 2, server=0, base_version=1)
    run.do("lose", 0)
    assert run.applied() == [((0, 1),)]
    assert [order for order in run.orders if isinstance(order, DropOrder)] == [DropOrder(worker=0, clock=2)]
    [late] = run.arrive(0, 2, server=1, base_version=1)
    assert late == DropOrder(worker=0, clock=2)
    assert run.result.lost_workers == (0,)
    assert run.result.samples == 2, "its acknowledged push counts"
    assert run.kinds(1)[-1] is Lost
    assert run.coordinator.ledger.status == "finished"


@pytest.mark.parametrize("how", ["lost", "closed"])
def test_of_an_update_that_was_not_whole_nothing_counts_for_a_worker_that_is_back(how: str):
    run = Run("asp", servers=2).start()
    run.arrive(0, 1, server=0)
    if how == "lost":
        run.do("lose", 0)
    else:  # by an exception between the two pushes
        run.bye(0, status="failed", error="ValueError: x")
    assert [order for order in run.orders if isinstance(order, DropOrder)] == [DropOrder(worker=0, clock=1)]
    run.join(0)
    assert run.told[0][-1] == Start(clock=0, elapsed_s=0.0, workers=(0, 1))
    run.arrive(0, 1, server=1)
    assert run.applied() == [], "server 0 has nothing to apply"
    run.arrive(0, 1, server=0)
    assert run.applied() == [((0, 1),)]


def test_lost_worker_no_longer_holds_up_a_synchronous_round():
    run = Run("bsp,exchange=store", workers=3).start()
    run.arrive(0, 1)
    run.arrive(2, 1)
    assert run.applied() == []
    run.do("lose", 1)
    assert run.applied() == [((0, 1), (2, 1))]


def test_samples_of_a_late_update_go_to_others_and_are_not_counted():
    run = Run("bsp,backup=1", workers=3).start()
    blocks = {worker: run.block(worker) for worker in range(3)}
    for worker in (0, 1):
        run.arrive(worker, 1, finished=((0, blocks[worker].id, 2),))
    assert run.applied() == [((0, 1), (1, 1))]
    run.arrive(2, 1, finished=((0, blocks[2].id, 2),))
    assert DropOrder(worker=2, clock=1) in run.orders
    assert run.told[2][-1] == UpdateRefused(clock=1, reason=RefuseReason.LATE, num_returned=2)
    assert run.coordinator.ledger.samples.applied == run.result.samples == 4
    again = run.block(0)
    assert (again.start, again.stop) == (blocks[2].start, blocks[2].stop)
    run.arrive(0, 2, base_version=1, finished=((0, again.id, 2),))
    run.finish(1, run.block(1))
    assert run.coordinator._stage.plans[0].done


def test_of_a_worker_that_is_lost_the_samples_it_had_handed_in_count_finite_or_not():
    run = Run("diloco:2,exchange=store", workers=2).start()
    block = run.block(0)
    head = UpdateHead(worker=0, clock=2, num_steps=2)
    run.say(0, NotFinite(event=head, finished=((0, block.id, 2),)))
    run.beat(0, clock=3, steps=3, samples=4, compute_s=6.0)
    run.do("lose", 0)
    [lost] = run.result.workers
    assert (lost.steps, lost.samples, lost.lost_s, run.result.samples) == (2, 2, 2.0, 2)


def test_the_policy_knows_one_worker_of_a_rack_and_who_it_speaks_for(tmp_path: Path):
    run = Run("hier:bsp/ssp:2", workers=5, folder=tmp_path).start_racks(0, 0, 0, 7, 7)
    assert [run.kinds(worker) for worker in range(5)] == [[Start]] * 5
    run.coordinator.close_logs()
    joined = [entry.event for entry in read_log(tmp_path / "events.jsonl").entries]
    assert joined == [Joined(worker=0, num_workers=3), Joined(worker=3, num_workers=2)]
    run.arrive(3, 1, samples=2, finished=((0, 0, 4),))
    [apply] = [order for order in run.orders if isinstance(order, ApplyOrder)]
    assert (apply.weight, apply.counts, apply.num_live) == (2 / 5, (2,), 5)
    assert run.coordinator.ledger.samples.applied == 4


@pytest.mark.parametrize("lost", [3, 4])
def test_a_lost_worker_takes_its_rack_with_it_and_no_other(lost: int):
    run = Run("hier:bsp/ssp:2", workers=5).start_racks(0, 0, 0, 7, 7)
    block = run.block(3)
    run.do("lose", lost)
    [mate] = {3, 4} - {lost}
    assert run.told[mate][-1] == Lost(workers=(lost,), fatal=True)
    assert [run.told[worker][-1] for worker in range(3)] == [Lost(workers=(lost,), fatal=False)] * 3
    assert run.ask(3) is None, "it has been taken out"
    assert run.bye(mate, status="failed", error="lost") == []
    assert (run.result.status, run.result.lost_workers) == ("finished", (lost,))
    again = run.block(0)
    assert (again.start, again.num_workers) == (block.start, 3)
    run.do("lose", 1)
    assert [run.told[worker][-1] for worker in (0, 2)] == [Lost(workers=(1,), fatal=True)] * 2
    assert run.result.status == "failed"


def test_a_worker_that_has_left_is_dealt_nothing_of_a_plan_begun_after_that():
    run = Run("bsp,exchange=store").start()
    run.say(0, Leave())
    for number in range(4):
        run.finish(1, run.block(1, plan=1), plan=1)
        assert run.coordinator._stage.plans[1].finished_samples == 2 * (number + 1)
    assert run.coordinator._stage.plans[1].done


def test_loss_is_fatal_for_a_collective_and_names_the_worker():
    run = Run("bsp").start()
    run.do("lose", 1)
    assert run.told[0][-1] == Lost(workers=(1,), fatal=True)
    assert (run.result.status, run.result.lost_workers) == ("failed", (1,))
    assert "worker 1" in str(run.result.error)


@pytest.mark.parametrize(("policy", "told"), [("bsp", True), ("local_sgd:4", True), ("asp", False)])
def test_a_worker_that_ends_with_an_error_tells_those_who_would_wait_for_it(policy: str, told: bool):
    run = Run(policy, workers=3).start()
    run.told.clear()
    run.bye(1, status="failed", error="ValueError: mine")
    lost = Lost(workers=(1,), fatal=True, error="ValueError: mine")
    assert [lost in run.told.get(worker, []) for worker in range(3)] == [told, False, told]


def test_an_error_after_the_training_ends_nobody_elses():
    run = Run("bsp", workers=2).start()
    run.say(1, Leave())
    run.bye(1, status="failed", error="ValueError: mine")
    assert not any(isinstance(message, Lost) for message in run.told[0])


def test_worker_that_is_silent_for_a_lease_is_lost_and_told_so_when_it_speaks():
    run = Run("asp").start()
    run.now_s = FIRST_LEASE_S
    run.beat(0)
    assert run.do("tick") == []
    run.now_s += 0.1
    run.do("tick")
    assert run.coordinator.live == [0]
    assert run.result.lost_workers == (1,)
    [told] = run.beat(1)
    assert told == Tell(worker=1, message=Expelled())
    assert run.say(1, Leave()) == []
    assert run.ask(1) is None


def test_lease_follows_the_slowest_workers_step():
    run = Run("asp").start()
    assert run.coordinator.lease_s == FIRST_LEASE_S
    run.beat(0, recent_step_s=0.001)
    assert run.coordinator.lease_s == MIN_LEASE_S
    run.beat(1, recent_step_s=0.5)
    assert run.coordinator.lease_s == LEASE_STEPS * 0.5
    run.beat(1, recent_step_s=1e3)
    assert run.coordinator.lease_s == MAX_LEASE_S


def test_silence_while_the_server_was_busy_is_nobodys():
    run = Run("asp").start()
    run.now_s = 2 * FIRST_LEASE_S
    assert run.coordinator.tick(now_s=run.now_s, busy_s=1.5 * FIRST_LEASE_S) == []


def test_update_that_is_not_finite_is_refused_and_the_next_one_counts():
    run = Run("asp").start()
    run.say(0, NotFinite(event=UpdateHead(worker=0, clock=1), finished=()))
    assert run.applied() == []
    assert [order for order in run.orders if isinstance(order, DropOrder)] == [DropOrder(worker=0, clock=1)]
    assert UpdateRefused not in run.kinds(0), "the worker found it itself, and counted it"
    run.arrive(0, 2)
    assert run.applied() == [((0, 2),)]


def test_stale_update_is_refused_where_the_weighting_says_so():
    run = Run("asp,weight=cap:1").start()
    for clock in (1, 2):
        run.arrive(0, clock, base_version=clock - 1)
    run.arrive(1, 1, base_version=0)
    assert run.told[1][-1] == UpdateRefused(clock=1, reason=RefuseReason.TOO_STALE)


def test_lead_is_the_largest_when_a_step_began():
    run = Run("ssp:4").start()
    for clock in (1, 2, 3):
        run.arrive(0, clock, base_version=clock - 1)
    assert run.result.max_lead == 2


def test_resting_worker_holds_nobody_up_and_goes_on_where_the_others_are(tmp_path: Path):
    run = Run("ssp:1", folder=tmp_path).start()
    while run.next_block(1) is not None:
        pass
    while (block := run.next_block(0)) is not None:
        run.finish(0, block)
    assert run.ask(0, idle=True) is None, "worker 1 holds blocks that may come back"
    for clock in range(1, 6):
        run.arrive(1, clock, base_version=clock - 1)  # without the rest, the bound would forbid the third
    run.do("lose", 1)
    [answer] = [message for message in run.told[0] if isinstance(message, Lease)][-1:]
    assert answer.block is not None
    assert answer.clock == 5
    run.coordinator.close_logs()
    assert verify(read_log(tmp_path / "events.jsonl")) is None


def test_plan_is_over_for_all_when_its_samples_are_finished():
    run = Run("asp").start()
    held: dict[int, list[Block]] = {0: [], 1: []}
    for worker in (0, 1) * 8:
        answer = run.ask(worker)
        if answer is not None and answer.block is not None:
            held[worker].append(answer.block)
    assert sum(block.num_samples for blocks in held.values() for block in blocks) == 8
    for block in held[0]:
        run.finish(0, block)
    assert run.ask(0, idle=True) is None
    for block in held[1]:
        run.finish(1, block)
    assert run.told[0][-1] == Lease(plan=0, block=None)
    answer = run.ask(1, idle=True)
    assert answer is not None
    assert answer.block is None


def test_worker_that_leaves_its_loop_gives_its_blocks_back():
    run = Run("asp").start()
    first = run.block(0)
    while run.next_block(1) is not None:
        pass
    run.say(0, Release())
    again = run.block(1)
    assert (again.start, again.stop) == (first.start, first.stop)


def test_synchronous_workers_begin_the_next_plan_together():
    run = Run("bsp,exchange=store").start()
    rounds = [(run.block(0), run.block(1)) for _ in range(2)]
    for number, blocks in enumerate(rounds, start=1):
        for worker in (0, 1):
            run.arrive(worker, number)
            if (worker, number) != (1, 2):
                run.finish(worker, blocks[worker])
    assert run.ask(0, idle=True) is None, "worker 1 has not reported its last block"
    run.finish(1, rounds[1][1])
    # worker 0 was waiting; worker 1 is quick, and has the next plan's first batch before worker 0 has asked for its own
    assert run.ask(1, idle=True) is not None
    assert run.block(1, plan=1) is not None
    run.arrive(1, 3)
    assert len(run.applied()) == 2, "worker 1 makes a round of its own"
    run.arrive(0, 3)
    assert run.applied()[2] == ((1, 3), (0, 3))


def test_who_has_handed_in_its_round_early_and_is_given_more_goes_on_where_the_round_ended():
    run = Run("local_sgd:3,exchange=store").start()
    mine, held = run.block(0), run.block(1)
    run.arrive(0, 3, num_steps=1, finished=((0, mine.id, 2),))  # idle after its first step
    rest = run.block(0)
    run.do("lose", 1)
    run.arrive(0, 6, num_steps=1, finished=((0, rest.id, 2),))
    lease = run.ask(0, idle=True)
    assert lease is not None
    assert lease.block is not None
    assert (lease.block.start, lease.block.stop) == (held.start, held.stop)
    assert lease.clock == 6


def test_lowest_rank_evaluates_when_all_have_left():
    run = Run("asp", workers=3).start()
    run.say(0, Leave())
    assert MayLeave not in run.kinds(0)
    run.say(2, Leave())
    assert run.told[2][-1] == MayLeave(evaluates=False)
    run.say(1, Leave())
    assert run.told[0][-1] == MayLeave(evaluates=True)


def test_if_the_lowest_rank_is_lost_the_next_one_evaluates():
    run = Run("asp", workers=3).start()
    run.do("lose", 0)
    run.say(1, Leave())
    run.say(2, Leave())
    assert run.told[1][-1] == MayLeave(evaluates=True)
    assert run.told[2][-1] == MayLeave(evaluates=False)


def test_samples_that_a_lost_worker_had_not_told_count_where_those_that_left_know_of_them():
    run = Run("bsp", workers=3).start()
    for worker in (0, 1, 2):
        run.say(worker, Heartbeat(report=Report(samples=10 if worker == 2 else 16)))
        run.say(worker, Leave(samples=48))
    run.do("lose", 2)
    for worker in (0, 1):
        run.say(worker, Goodbye(status="finished", error=None, report=Report(samples=16)))
    result = run.coordinator.ledger.result(status="finished")
    assert result.samples == 48
    assert result.fallbacks == (
        "6 of the samples are in no worker's own figures: worker 2 was lost before it had told its last steps",
    )


def test_the_result_says_that_the_one_which_was_to_evaluate_is_lost():
    run = Run("asp").start()
    run.say(1, Leave())
    run.say(0, Leave())
    run.do("lose", 0)
    assert run.coordinator.ledger.fallbacks.lines == [
        "nobody has evaluated the final parameters: worker 0 was lost while it evaluated, when the others had left"
    ]


def test_run_ends_when_the_last_worker_has_said_goodbye():
    run = Run("asp").start()
    run.bye(0, status="finished", error=None)
    assert run.coordinator.state == "running"
    run.bye(1, status="finished", error=None)
    assert run.coordinator.state == "ended"
    assert run.bye(1, status="failed", error="late") == []
    assert run.result.status == "finished"


def test_first_failure_is_the_runs():
    run = Run("asp").start()
    run.bye(1, status="failed", error="ValueError: x")
    run.bye(0, status="interrupted", error="interrupted")
    assert (run.result.status, run.result.error) == ("failed", "ValueError: x")


@pytest.mark.parametrize("how", ["rejected", "lost", "failed"])
def test_start_fails_for_all_when_one_worker_cannot_take_part(how: str):
    run = Run("bsp", workers=3)
    run.join(0)
    if how == "rejected":
        run.join(1, layout="other")
    else:
        run.join(1)
        if how == "lost":
            run.do("lose", 1)
        else:
            run.bye(1, status="failed", error="x")
    assert Failed in run.kinds(0)
    run.join(2)
    assert run.kinds(2) == [Failed], "who comes later is told too"
    for worker in run.coordinator.live:
        run.bye(worker, status="failed", error="x")
    assert run.coordinator.state == "ended"
    assert run.result.status == "failed"


def test_late_worker_that_disagrees_does_not_disturb_the_run():
    run = Run("asp").start()
    run.join(7, layout="other")
    assert run.kinds(7) == [Failed]
    assert run.coordinator.live == [0, 1]
    assert run.coordinator.ledger.status == "finished"


def test_snapshots_are_taken_when_the_samples_pass_a_multiple():
    run = Run("asp", snapshot_every=4).start()
    for clock in range(1, 6):
        run.now_s = float(clock)
        run.arrive(0, clock, samples=2, base_version=clock - 1)
    assert [(one.number, one.samples, one.at_s) for one in run.coordinator.snapshots] == [(0, 4, 2.0), (1, 8, 4.0)]
    kinds = [type(order) for order in run.orders if isinstance(order, ApplyOrder | SnapshotOrder)]
    assert kinds == [ApplyOrder, ApplyOrder, SnapshotOrder, ApplyOrder, ApplyOrder, SnapshotOrder, ApplyOrder]


def _found(run: Run, worker: int) -> list[float | None]:
    answers = [message.evaluation for message in run.told.get(worker, []) if isinstance(message, KnownEvaluation)]
    return [None if one is None else one.metric for one in answers]


def _finds(run: Run, worker: int, number: int, *metrics: float) -> None:
    points = tuple(Evaluation(samples=1, at_s=0.1, metric=metric) for metric in metrics)
    run.say(worker, Evaluations(evaluations=points, parameters_sha256=None, number=number))


def test_the_first_to_come_to_an_evaluation_makes_it_and_whoever_comes_gets_it():
    run = Run("ssp:1", workers=3).start()
    for worker in (2, 0):
        run.say(worker, EvaluationRequest(number=0))
    assert [_found(run, worker) for worker in range(3)] == [[], [], [None]]
    run.say(2, EvaluationRequest(number=5))  # another evaluation is another matter
    _finds(run, 2, 0, 0.25, 0.5)
    run.say(1, EvaluationRequest(number=0))
    run.join(3)  # a worker that joins late comes to all that were made before it
    run.say(3, EvaluationRequest(number=0))
    assert [_found(run, worker) for worker in range(4)] == [[0.5], [0.5], [None, None], [0.5]]
    assert [point.metric for point in run.result.evaluations] == [0.25, 0.5]


@pytest.mark.parametrize("how", ["lost", "failed", "ended"])
def test_the_lowest_that_waits_evaluates_if_the_one_that_did_cannot(how: str):
    run = Run("asp", workers=4).start()
    for worker in (1, 3, 2, 0):
        run.say(worker, EvaluationRequest(number=0))
    run.do("lose", 0)
    if how == "lost":
        run.do("lose", 1)
    elif how == "failed":  # its function has raised, and the script goes on
        _finds(run, 1, 0)
    else:
        run.bye(1, status="failed", error="ValueError: x")
    assert [_found(run, worker) for worker in range(4)] == [[], [None], [None], []]
    _finds(run, 2, 0, 0.5)
    assert _found(run, 3) == [0.5]


def test_progress_tells_who_lives_how_far_and_in_what():
    run = Run("bsp", workers=2).start()
    run.beat(0, clock=3, steps=3, recent_step_s=0.5, within="step")
    run.now_s = 2.0
    run.do("lose", 1)
    figures = run.coordinator.progress(now_s=run.now_s)
    assert (figures.in_force, figures.total_samples, figures.checkpoint) == ("bsp", None, None)
    first, second = figures.workers
    assert (first.clock, first.live, first.step_s, first.silent_s, first.within) == (3, True, 0.5, 2.0, "step")
    assert (second.clock, second.live) == (0, False)


def test_progress_tells_leads_where_workers_do_not_meet():
    run = Run("asp", workers=2).start()
    for clock in (1, 2, 3):
        run.arrive(1, clock)
    run.arrive(0, 1)
    assert [(one.clock, one.lead) for one in run.coordinator.progress(now_s=0.0).workers] == [(1, 0), (3, 2)]
