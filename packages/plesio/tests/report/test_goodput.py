"""Goodput: what workers could have computed is divided without rest, and each part is what took it."""

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from plesio.core.results import RunResult, WorkerTimes
from plesio.report.summarise import compare_runs
from plesio.report.table import render_comparison
from support.counted_training import join, lose, run


def times(worker: int, compute_s: float, wait_s: float = 0.0, communicate_s: float = 0.0, **more: float) -> WorkerTimes:
    counts = {"steps": 10, "samples": 100, "peak_memory_bytes": 0}
    return WorkerTimes(
        worker=worker,
        compute_s=compute_s,
        wait_s=wait_s,
        communicate_s=communicate_s,
        **{**counts, **more},  # type: ignore[arg-type]
    )


def result(*workers: WorkerTimes, wall_s: float, num_workers: int = 2, samples: int = 200, **more: object) -> RunResult:
    return RunResult(
        policy="bsp",
        task="t",
        world="process",
        seed=0,
        num_workers=num_workers,
        status="finished",
        steps=20,
        samples=samples,
        wall_s=wall_s,
        workers=workers,
        **more,  # type: ignore[arg-type]
    )


def divided(run: RunResult) -> Any:
    [summary] = compare_runs([run]).policies
    return summary.goodput


def shares(run: RunResult) -> dict[str, float]:
    return {part: share for part, share in divided(run).shares.items() if share}


def test_a_run_without_trouble_is_computing_waiting_and_communicating():
    found = shares(result(times(0, 6.0, 2.0, 1.0), times(1, 8.0, 0.0, 1.0), wall_s=10.0))
    assert found == pytest.approx(
        {"samples that count": 0.7, "waiting": 0.1, "communicating": 0.1, "between steps": 0.1}
    )


def test_refused_steps_checkpoints_and_restarts_have_their_parts():
    worker = times(0, 8.0, 0.0, 2.0, lost_s=1.0, checkpoint_s=2.0, restart_s=10.0)
    assert shares(result(worker, wall_s=10.0, num_workers=1, samples=100)) == pytest.approx(
        {"samples that count": 0.25, "communicating": 0.1, "lost work": 0.05, "checkpoints": 0.1, "restarts": 0.5}
    )


def test_a_lost_worker_is_absent_afterwards_and_what_did_not_count_is_lost():
    gone = replace(times(1, 2.0), samples=100)
    found = shares(result(times(0, 10.0), gone, wall_s=10.0, samples=150, lost_workers=(1,)))
    assert found == pytest.approx({"samples that count": 0.45, "lost work": 0.15, "absent workers": 0.4})


def test_workers_besides_add_to_what_could_have_been_computed():
    found = divided(result(times(0, 10.0), times(1, 10.0), times(2, 5.0), wall_s=10.0, samples=300))
    assert (found.capacity_s, found.share) == (25.0, 1.0)


def test_live_workers_are_judged_by_the_time_that_they_were_there():
    run_ = result(times(0, 9.0, 1.0), times(1, 4.0, 1.0), wall_s=10.0, lost_workers=(1,))
    found = divided(run_)
    assert (found.share, found.live_share) == pytest.approx((0.65, 13 / 15))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render_comparison(compare_runs([run_])))
    assert "65.0 % (86.7 % of live workers)  absent workers 25.0 %, waiting 10.0 %" in console.export_text()


def test_runs_whose_workers_recorded_nothing_have_none():
    assert divided(result(wall_s=0.0)) is None


seconds = st.floats(0, 1e4)


@given(
    workers=st.lists(st.tuples(seconds, seconds, seconds, st.floats(0, 0.5), st.floats(0, 0.5), seconds), max_size=5),
    wall_s=seconds,
    num_workers=st.integers(1, 4),
    lost=st.sets(st.integers(0, 4)),
    samples=st.integers(0, 600),
)
def test_the_parts_add_up_to_one(
    workers: list[tuple[float, ...]], wall_s: float, num_workers: int, lost: set[int], samples: int
):
    recorded = [
        times(
            rank,
            compute_s,
            wait_s,
            send_s,
            lost_s=lost_share * compute_s,
            checkpoint_s=saved * compute_s,
            restart_s=gap,
        )
        for rank, (compute_s, wait_s, send_s, lost_share, saved, gap) in enumerate(workers)
    ]
    found = divided(
        result(*recorded, wall_s=wall_s, num_workers=num_workers, samples=samples, lost_workers=tuple(lost))
    )
    if found is not None:
        assert sum(found.shares.values()) == pytest.approx(1.0)
        assert all(-1e-12 <= share <= 1 + 1e-9 for share in found.shares.values())
        assert 0 <= found.live_share <= 1 + 1e-9


def of_a_run(policy: str, *faults: Any) -> Any:
    [one] = run(policy, *faults, num_workers=4, loops=3).runs
    return divided(one)


@pytest.mark.parametrize("policy", ["bsp", "asp", "local_sgd:4"])
def test_a_simulated_run_without_losses_has_no_other_part(policy: str):
    found = of_a_run(policy)
    assert found.share > 0.5
    assert sum(found.shares[part] for part in ("lost work", "restarts", "checkpoints")) == 0
    assert found.shares["between steps"] + found.shares["absent workers"] < 0.02


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_a_worker_that_is_lost_and_replaced_is_absent_meanwhile(policy: str):
    found = of_a_run(policy, lose(2, at_s=0.1), join(at_s=0.25))
    assert 0.02 < found.shares["absent workers"] < 0.4
    assert found.live_share > found.share


def test_computing_for_a_step_that_is_called_off_is_lost_work():
    assert of_a_run("bsp", lose(2, at_s=0.11)).shares["lost work"] > 0.005
