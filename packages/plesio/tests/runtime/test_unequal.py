"""Workers of a collective that make unequally many steps: the others go on without one that has ended its loop, or all
end where one evaluates while another steps."""

from pathlib import Path

import pytest

from plesio.testing import LocalJob
from support.processes import on_processes

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(__file__).with_name("unequal_programs.py")
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("policy", "short", "what"),
    [
        ("bsp", 1, "own"),
        pytest.param("bsp", 0, "break", marks=SLOW),
        pytest.param("local_sgd:4", 0, "own", marks=SLOW),
        pytest.param("local_sgd:4", 1, "break", marks=SLOW),
        pytest.param("adaptive", 0, "own", marks=SLOW),
        pytest.param("adaptive", 1, "own", marks=SLOW),
    ],
)
def test_the_others_go_on_without_a_worker_that_has_ended_its_loop(policy: str, short: int, what: str):
    found, _ = on_processes(2, PROGRAMS, "train", limit_s=150, policy=policy, short=short, what=what)
    assert found["status"] == ("finished", ())
    assert found["steps"][short] == 10
    assert found["steps"][1 - short] > 15
    assert found["samples"] == found["own"]
    assert len(found["fallbacks"]) == 1
    assert f"worker {short} ended its loop after 10 steps and the others went on without it" in found["fallbacks"][0]
    assert ("the final parameters are worker 1's" in found["fallbacks"][0]) == (short == 0)


@pytest.mark.parametrize("policy", ["asp", pytest.param("bsp", marks=SLOW), pytest.param("hier:bsp/asp", marks=SLOW)])
def test_collectives_of_the_script_in_a_loop_whose_lengths_differ_are_warned_of(policy: str):
    first, _ = on_processes(2, PROGRAMS, "meet", limit_s=150, policy=policy)
    lines = [line for line in first if "calls torch.distributed between two batches" in line]
    assert len(lines) == (policy == "asp"), first
    assert all("under asp workers are given unequally many" in line for line in lines)


@pytest.mark.parametrize(
    ("policy", "place"),
    [
        ("bsp", "step 11"),
        ("bsp,compress=topk:0.5", "step 11"),
        *(pytest.param(policy, "step", marks=SLOW) for policy in ("local_sgd:4", "adaptive")),
        pytest.param("fsdp", "the forward pass of step 11", marks=SLOW),
    ],
)
def test_one_that_evaluates_while_another_steps_ends_all_in_a_line(policy: str, place: str):
    with LocalJob(2) as job:
        endings = job.run(PROGRAMS, "train", timeout_s=150, policy=policy, short=1, what="evaluate")
    assert [one.error for one in endings.values()] == ["WorkerLostError"] * 2, endings
    line = f"worker 1 evaluates after step 10 while worker 0 is in {place}"
    told = [one.message for one in endings.values()]
    assert all(line in message and "session.shard(loader)" in message for message in told), told


@pytest.mark.slow
@pytest.mark.parametrize("short", [0, 1])
def test_nobody_waits_for_ever_where_one_leaves_out_a_batch_before_an_evaluation(short: int):
    with LocalJob(2) as job:
        endings = job.run(PROGRAMS, "leave_out", timeout_s=150, policy="local_sgd:2", short=short)
    # the other may have come through its evaluation by a collective of this one's
    errors = [one.error for one in endings.values()]
    assert "WorkerLostError" in errors, endings
    assert set(errors) <= {"WorkerLostError", None}, endings
    told = [one.message for one in endings.values() if one.error is not None]
    assert all(f"worker {short} evaluates after step 7 while worker {1 - short}" in message for message in told), told


def test_another_session_begins_in_a_job_in_which_one_has_failed():
    assert on_processes(2, PROGRAMS, "train_again", policy="bsp") == [("finished", 8)] * 2
