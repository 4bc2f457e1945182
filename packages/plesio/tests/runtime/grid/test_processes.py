"""Grids of real processes: the numbers of the virtual world, messages that pile up, and workers that are killed."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from plesio.policies.grid import GridSetting
from plesio.testing import Ending, LocalJob
from runtime.grid import programs
from support.processes import values_of

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(programs.__file__)
LIMIT_S = 90.0


def endings(spec: str, **arguments: Any) -> dict[int, Ending]:
    with LocalJob(GridSetting.parse(spec).num_workers) as job:
        return job.run(PROGRAMS, "in_processes", timeout_s=LIMIT_S, spec=spec, **arguments)


def assert_as_in_the_virtual_world(spec: str) -> None:
    values = values_of(endings(spec))
    state, result, _ = programs.in_virtual_world(GridSetting.parse(spec))
    assert {value["sha256"] for value in values} == {values[0]["sha256"]}, "all hear the same result"
    assert values[0]["samples"] == result.samples
    assert all(values[0]["memory"])
    assert all(value["state"] is None for value in values[1:])
    for name, tensor in state.items():
        torch.testing.assert_close(torch.tensor(values[0]["state"][name]), tensor.flatten(), rtol=1e-5, atol=1e-6)


def test_the_numbers_are_those_of_the_virtual_world():
    assert_as_in_the_virtual_world("grid:2x2,mixing=ring,every=2")


def test_a_stage_that_is_far_ahead_reads_gradients_late_and_nobody_waits_for_ever():
    assert_as_in_the_virtual_world("grid:1x2,delay=9")


def test_evaluations_in_a_row_do_not_wait_for_gradients_that_are_on_their_way():
    """The first stage takes those at its next step only."""
    values = values_of(endings("grid:1x2", epochs=2, evaluations=2))
    assert [value["metrics"] for value in values] == [[0.5] * 5] * 2


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["grid:1x3,schedule=gpipe,micro_batches=8", "grid:2x2,bound=3,every=4", "grid:1x4"])
def test_other_schedules(spec: str):
    assert_as_in_the_virtual_world(spec)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("die", [0, 3])
def test_the_other_group_goes_on_without_a_killed_worker(die: int):
    ended = endings("grid:2x2", die=die, epochs=6)
    gone, left = (0, 1) if die == 0 else (1, 0)
    partner = 2 * gone + 1 - die % 2
    assert f"worker {die} is gone: group {gone} of the grid ends; the other goes on" in (ended[partner].message or "")
    for rank in (2 * left, 2 * left + 1):
        assert ended[rank].error is None, ended[rank].trace
        assert ended[rank].value["lost"] == [2 * gone, 2 * gone + 1]
        assert ended[rank].value["samples"] == 6 * programs.NUM_SAMPLES, "what it had not trained on was dealt again"


def test_a_stopped_worker_is_given_up_and_hears_of_it_when_it_wakes():
    ended = endings("grid:2x1", sleep=0)
    assert "silent for longer than its lease" in (ended[0].message or "")
    assert ended[1].error is None, ended[1].trace
    assert ended[1].value["lost"] == [0]


def test_the_next_one_collects_when_the_one_that_does_is_killed_at_the_end():
    ended = endings("grid:3x1", die_at_the_end=0)
    for rank in (1, 2):
        assert ended[rank].error is None, ended[rank].trace
        assert ended[rank].value["lost"] == [0]
        assert ended[rank].value["metrics"] == [0.5]
    assert ended[1].value["state"] is not None
    assert ended[1].value["sha256"] == ended[2].value["sha256"]


@pytest.mark.parametrize("spec", ["grid:1x2", pytest.param("grid:2x2,every=2,compress=qsgd:8", marks=pytest.mark.slow)])
def test_a_group_of_processes_joins(spec: str):
    setting = GridSetting.parse(spec)
    with LocalJob(setting.num_workers) as job:
        for rank in range(setting.num_workers + setting.stages):
            job.start(rank, PROGRAMS, "until_joined", spec=spec)
        ended = job.wait(timeout_s=LIMIT_S)
    values = values_of(ended)
    assert len({value["joined_at"] for value in values}) == 1
    assert len({value["sha256"] for value in values}) == 1
    assert values[0]["workers"] == list(range(len(ended)))
    counts = Counter(number for value in values for number in value["given"])
    assert sum(counts.values()) == values[0]["samples"]
    assert max(counts.values()) - min(counts.values()) <= 1, "no sample is left out of an epoch, or comes twice"


def test_a_group_that_has_joined_goes_on_without_the_one_that_it_learnt_from():
    with LocalJob(2) as job:
        for rank in range(4):
            job.start(rank, PROGRAMS, "until_joined", spec="grid:1x2", die=0)
        ended = job.wait(timeout_s=LIMIT_S)
    assert "worker 0 is gone: group 0 of the grid ends; the other goes on" in (ended[1].message or "")
    for rank in (2, 3):
        assert ended[rank].error is None, ended[rank].trace
        assert ended[rank].value["lost"] == [0, 1]
