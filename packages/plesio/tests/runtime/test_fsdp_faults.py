"""Real processes under fsdp go on without a lost worker and with a new one, by the numbers of a plain loop."""

import json
import math
import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  # as everyone calls it

from plesio.core.results import RunResult, read_results
from plesio.testing import Ending, LocalJob
from runtime import fsdp_fault_programs as programs
from runtime.fsdp_programs import build, numbers

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(programs.__file__)
LIMIT_S = 100.0
SLOW = pytest.mark.slow
PLACES = ["forward", "backward", "between", "after"]
METRIC = pytest.param("metric", 0, marks=SLOW)


def run(
    folder: Path, *, policy: str = "fsdp,mirror=1", num_workers: int = 3, joins: bool = False, **plan: Any
) -> dict[int, Ending]:
    told = {"policy": policy, "folder": folder, "plan": plan | ({"await": num_workers} if joins else {})}
    with LocalJob(num_workers) as job:
        for rank in range(num_workers):
            job.start(rank, PROGRAMS, "survive", **told)
        if joins:
            job.start(num_workers, PROGRAMS, "survive", **told)
        return job.wait(timeout_s=LIMIT_S)


def steps_made(folder: Path, *, rests: set[int], mirror: int = 1) -> dict[int, list[list[int]]]:
    """Return the batches of each step that the model holds, by its clock, of all workers who had a part in it."""
    batches: dict[int, dict[int, tuple[list[int], int]]] = defaultdict(dict)
    begun: dict[int, dict[int, tuple[list[int], int]]] = defaultdict(dict)
    for path in folder.glob("log-*"):
        rank, latest = int(path.name.split("-")[1]), None
        for line in map(json.loads, path.read_text().splitlines()):
            if "counts" in line and latest is not None:
                batches[line["counts"]][rank] = latest
            elif "samples" in line:
                latest = line["samples"], line["size"]
                begun[line["clock"]][rank] = latest
    for clock, own in batches.items():
        size = next(size for rank, (_, size) in own.items() if rank in rests)
        for rank, (samples, _) in begun[clock].items():
            if rank not in rests and len(own) < size:  # killed before it could log that the step counts
                own[rank] = samples, size
        assert len(own) == size, f"step {clock}: {own}"
    return {clock: [samples for samples, _ in batches[clock].values()] for clock in sorted(batches)}


def plain_loop(steps: list[list[list[int]]], *, clip: float) -> dict[str, list[float]]:
    """Make these steps, each of several batches with the mean of their gradients, in one process."""
    model, optimizer = build(0, **programs.OPTIMIZER)
    x, y, _ = programs.data().tensors
    for batches in steps:
        sum(F.cross_entropy(model(x[one]), y[one]) / len(batches) for one in batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return numbers({name: p.detach() for name, p in model.named_parameters()})


def result_in(folder: Path) -> RunResult:
    return read_results(folder / "trace" / "results.json")[0]


def assert_goes_on(
    ended: dict[int, Ending], folder: Path, *, lost: set[int], undone: tuple[int, ...] = (), clip: float = math.inf
) -> None:
    """Assert that who is left has the numbers of a plain loop, and each sample of the run once."""
    rests = {rank: ending.value for rank, ending in ended.items() if rank not in lost}
    assert all(one is not None and one["error"] is None for one in rests.values()), ended
    steps = steps_made(folder, rests=set(rests))
    expected = plain_loop([batches for clock, batches in steps.items() if clock not in undone], clip=clip)
    for rank, one in rests.items():
        assert one["plain"], "the session has left something on the model"
        assert one["same"] or rank >= 3, "parameters are other objects than before"
        assert one["groups"]
        assert one["hooks"] == 1, "the script's own hook, and no other"
        for name, values in one["final"].items():
            torch.testing.assert_close(torch.tensor(values), torch.tensor(expected[name]), rtol=1e-4, atol=1e-5)
    result = result_in(folder)
    assert (result.status, set(result.lost_workers)) == ("finished", lost)
    held = [sample for clock, batches in steps.items() if clock not in undone for one in batches for sample in one]
    assert result.samples == len(held)
    assert sorted(held) == sorted(list(range(programs.NUM_SAMPLES)) * (len(held) // programs.NUM_SAMPLES))


@pytest.mark.parametrize(
    ("place", "rank"), [("forward", 0), ("backward", 1), *(pytest.param(it, 2, marks=SLOW) for it in PLACES), METRIC]
)
def test_the_others_go_on_from_the_copy_of_a_lost_part(place: str, rank: int, tmp_path: Path):
    ended = run(tmp_path, kills=[[rank, 4, place]], evaluate=2, epochs=2)
    assert_goes_on(ended, tmp_path, lost={rank})
    metrics = [ending.value["metrics"] for who, ending in ended.items() if who != rank]
    assert metrics[0] == metrics[1]
    assert all(metric == metric for metric in metrics[0]), "the others evaluated what the loss had broken"


@pytest.mark.parametrize(("place", "scales"), [("between", False), ("backward", True)])
def test_the_others_go_on_where_the_script_clips_and_unscales(place: str, scales: bool, tmp_path: Path):
    ended = run(tmp_path, kills=[[1, 4, place]], epochs=2, clip=0.5, scales=scales)
    assert_goes_on(ended, tmp_path, lost={1}, clip=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_worker_may_be_lost_at_any_moment(seed: int, tmp_path: Path):
    rng = random.Random(seed)
    num_workers, step = rng.choice((2, 3, 4)), rng.randrange(1, 20)
    lost, plan = rng.randrange(num_workers), {"epochs": 6, "evaluate": rng.choice((0, 3))}
    with LocalJob(num_workers) as job:
        for rank in range(num_workers):
            job.start(rank, PROGRAMS, "survive", policy="fsdp,mirror=1", folder=tmp_path, plan=plan)
        deadline_s = time.monotonic() + LIMIT_S
        while not (tmp_path / f"at-{lost}-{step}").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.03))  # into the step that follows
        os.kill(int((tmp_path / f"pid-{lost}").read_text()), signal.SIGKILL)
        ended = job.wait(timeout_s=LIMIT_S)
    assert_goes_on(ended, tmp_path, lost={lost})


@pytest.mark.slow
def test_steps_since_the_last_copies_are_made_again(tmp_path: Path):
    ended = run(tmp_path, policy="fsdp,mirror=3", kills=[[1, 6, "forward"]], epochs=2)
    assert_goes_on(ended, tmp_path, lost={1}, undone=(4, 5))


def test_no_steps_of_a_loop_that_is_over_are_lost(tmp_path: Path):
    ended = run(tmp_path, policy="fsdp,mirror=20", kills=[[1, 9, "forward"]], epochs=2)  # a loop has eight
    assert_goes_on(ended, tmp_path, lost={1})


@pytest.mark.slow
def test_a_worker_is_lost_after_its_last_step(tmp_path: Path):
    ended = run(tmp_path, kills=[[1, 0, "end"]])
    assert_goes_on(ended, tmp_path, lost={1})


def test_one_joins_and_another_is_lost(tmp_path: Path):
    ended = run(tmp_path, joins=True, kills=[[1, 5, "forward"]], epochs=400, clip=0.5)
    assert_goes_on(ended, tmp_path, lost={1}, clip=0.5)
    assert result_in(tmp_path).workers[-1].worker == 3


@pytest.mark.slow
@pytest.mark.parametrize("saves", [False, True])
def test_workers_join_without_copies(saves: bool, tmp_path: Path):
    ended = run(tmp_path, joins=True, policy="fsdp", epochs=400, saves=saves)
    assert_goes_on(ended, tmp_path, lost=set())


def test_two_lost_neighbours_end_the_run_with_a_line(tmp_path: Path):
    ended = run(tmp_path, num_workers=4, kills=[[1, 4, "forward"], [2, 4, "forward"]])
    for rank in (0, 3):
        assert ended[rank].value["ranks"] == [1], ended
        assert ended[rank].value["error"] == (
            "worker 1 was lost (rank 1), and under fsdp the next one, which had a copy, was lost with it: go on from a "
            "checkpoint, if there is one"
        )


@pytest.mark.slow
@pytest.mark.parametrize("beside", [{"saves": True}, {"snapshots": 12}])
def test_the_others_go_on_beside_checkpoints_and_snapshots(beside: dict[str, Any], tmp_path: Path):
    ended = run(tmp_path, kills=[[1, 6, "backward"]], epochs=2, **beside)
    assert_goes_on(ended, tmp_path, lost={1})


@pytest.mark.slow
def test_two_lost_workers_that_are_no_neighbours_are_done_without(tmp_path: Path):
    ended = run(tmp_path, num_workers=4, kills=[[0, 4, "backward"], [2, 4, "forward"]], epochs=2)
    assert_goes_on(ended, tmp_path, lost={0, 2})


def test_without_copies_a_loss_ends_the_run_and_says_how_it_would_not(tmp_path: Path):
    ended = run(tmp_path, policy="fsdp", kills=[[1, 4, "forward"]])
    for rank in (0, 2):
        assert "worker 1 was lost (rank 1), and under fsdp nobody has a copy of its part" in ended[rank].value["error"]
        assert "fsdp,mirror=1" in ended[rank].value["error"]
