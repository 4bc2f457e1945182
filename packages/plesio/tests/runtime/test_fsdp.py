"""Replicas in parts, on real processes: the numbers of bsp, what is sent and held, and what is refused."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from plesio.testing import Ending, LocalJob
from runtime import fsdp_programs as programs
from support.processes import values_of

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(programs.__file__)
LIMIT_S = 90.0
Call = tuple[str, list[dict[str, Any]]]
"""A function, and the arguments of each of its calls."""
OPTIMIZERS = {
    "SGD": {"lr": 0.05},
    "momentum": {"optimizer": "SGD", "lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "AdamW": {"lr": 0.01},
}


def endings(program: str, *, num_workers: int = 2, **arguments: Any) -> dict[int, Ending]:
    with LocalJob(num_workers) as job:
        return job.run(PROGRAMS, program, timeout_s=LIMIT_S, **arguments)


def values(program: str, **arguments: Any) -> list[Any]:
    return values_of(endings(program, **arguments))


def under_both(function: str, *, cut: str = "fsdp", **arguments: Any) -> Call:
    """A function under bsp, and then under ``cut``."""
    return function, [{"policy": policy, **arguments} for policy in ("bsp", cut)]


def both(function: str, *, num_workers: int = 2, **arguments: Any) -> list[list[Any]]:
    """By rank, what a function returns under bsp, and then under fsdp in the same job."""
    name, of = under_both(function, **arguments)
    by_rank = values("each", function=name, of=of, num_workers=num_workers)
    return [[one[index] for one in by_rank] for index in range(2)]


WAYS = [("bsp", "bsp"), ("fsdp", "fsdp"), ("fsdp", "bsp"), ("bsp", "fsdp,mirror=1")]
CALLS: dict[str, Call] = {
    "batch norm": under_both("train", optimizer="SGD", lr=0.05, batch_norm=True, accumulate=True),
    "accumulate": ("accumulate_dealt", [{"policy": "fsdp"}]),
    "go on": ("go_on", [{"policy": one, "then": then, "optimizer": "AdamW", "lr": 0.01} for one, then in WAYS]),
    "with state": under_both("with_state", optimizer="AdamW", lr=0.01),
    "clip": under_both("clip", by_optimizer=True),
    "bad loss": under_both("bad_loss"),
    "half precision": under_both("train_in_half_precision", init_scale=2.0**24),
}


@pytest.fixture(scope="module")
def done() -> dict[str, list[list[Any]]]:
    """By name, call and rank: all in one job, session after session."""
    by_rank = values("several", calls=list(CALLS.values()))
    return {
        name: [[one[place][index] for one in by_rank] for index in range(len(of))]
        for place, (name, (_, of)) in enumerate(CALLS.items())
    }


def assert_near(one: dict[Any, list[float]], other: dict[Any, list[float]]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(torch.tensor(one[name]), torch.tensor(other[name]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "optimizer", ["AdamW", *(pytest.param(it, marks=pytest.mark.slow) for it in ("SGD", "momentum"))]
)
@pytest.mark.parametrize("num_workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_numbers_are_those_of_bsp(optimizer: str, num_workers: int):
    shape = {"optimizer": optimizer} | OPTIMIZERS[optimizer]
    plain, cut = both("train", cut="fsdp,blocks=sequential", num_workers=num_workers, **shape)
    for mine, theirs in zip(cut, plain, strict=True):
        assert_near(mine["state"], theirs["state"])
        assert_near(mine["optimizer"], theirs["optimizer"])
        assert_near(mine["final"], theirs["final"])
        assert mine["at_half"] == pytest.approx(theirs["at_half"], rel=1e-4)
        assert mine["plain"], "the session has left something on the model"
        assert mine["sha256"] == cut[0]["sha256"]
    assert cut[0]["metric"] == pytest.approx(plain[0]["metric"], rel=1e-4)


def test_batch_norm_and_accumulation(done: dict[str, list[list[Any]]]):
    plain, cut = done["batch norm"]
    assert_near(cut[0]["final"], plain[0]["final"])
    assert cut[1]["final"] == cut[0]["final"], "buffers are rank 0's at the end"
    assert cut[0]["at_half"] == pytest.approx(plain[0]["at_half"], rel=1e-4)


def test_a_batch_that_is_accumulated_is_none_that_is_left_out(done: dict[str, list[list[Any]]]):
    assert done["accumulate"] == [[[], []]]


def test_a_state_goes_on_in_parts_and_whole(done: dict[str, list[list[Any]]]):
    for whole, *others in zip(*done["go on"], strict=True):
        for mine in others:
            assert_near(mine[0], whole[0])
            assert_near(mine[1], whole[0])


def test_what_an_optimizer_remembers_is_cut_with_its_parameters(done: dict[str, list[list[Any]]]):
    plain, cut = done["with state"]
    assert_near(cut[0], plain[0])


def test_clipping_takes_the_norm_of_all_parts(done: dict[str, list[list[Any]]]):
    plain, cut = done["clip"]
    assert_near(cut[0], plain[0])


@pytest.mark.slow
def test_clipping_by_hand_takes_it_too():
    plain, cut = both("clip", by_optimizer=False)
    assert_near(cut[0], plain[0])


def test_a_gradient_that_is_not_finite_is_refused_by_all_and_counted_for_one(done: dict[str, list[list[Any]]]):
    plain, cut = done["bad loss"]
    assert_near(cut[0]["final"], plain[0]["final"])
    assert cut[0]["refused"] == plain[0]["refused"] == {"1": {"not_finite": 1}}


def test_a_scaled_loss_has_one_verdict_though_nobody_sees_the_whole_gradient(done: dict[str, list[list[Any]]]):
    plain, cut = done["half precision"]
    assert cut == plain
    scales, _ = cut[0]
    assert scales[0] == 2.0**23, "the first step overflows"
    assert any(after > before for before, after in itertools.pairwise(scales))
    assert cut[1][0] == scales


def test_a_lost_worker_ends_the_run_by_name():
    ended = endings("die", policy="fsdp")
    assert ended[0].error == "WorkerLostError"
    assert "worker 1 was lost" in ended[0].message


@pytest.mark.parametrize(("alike", "from_step"), [(True, 0), pytest.param(False, 0, marks=pytest.mark.slow), (True, 2)])
def test_steps_through_different_blocks_are_found_out(alike: bool, from_step: int):
    ended = endings("branch", alike=alike, from_step=from_step).values()
    # a worker that the other's end reaches first passes on the words in which it was found out
    assert "ExchangeError" in {ending.error for ending in ended} <= {"ExchangeError", "WorkerLostError"}, ended
    assert all("goes through other blocks" in ending.message for ending in ended), ended


ODD: list[tuple[dict[str, str], str]] = [
    ({"kind": "number"}, '"scale" is one number without a dimension'),
    ({"kind": "empty"}, '"nothing" has no elements'),
    ({"kind": "hook"}, '"0.weight" has a hook on its gradient'),
    ({"kind": "accumulated"}, '"0.weight" has a hook on its gradient'),
    ({"kind": "sparse"}, 'the gradient of "weight" is sparse'),
    ({"kind": "types"}, "has parameters of torch.float32 and torch.float64"),
    ({"kind": "list"}, "a ModuleList has no forward pass"),
    ({"kind": "strided"}, "is not contiguous"),
    ({"kind": "state"}, "is not shaped like it"),
    ({"kind": "plain", "policy": "fsdp,blocks=encoder"}, 'no module of the model is a "encoder"; it has linear'),
    ({"kind": "mixing"}, "this Adafactor mixes the elements of a parameter"),
]


def test_what_cannot_be_cut_is_refused_in_one_line():
    for refusals in values("refusals", of=[arguments for arguments, _ in ODD]):
        for (error, said), (_, message) in zip(refusals, ODD, strict=True):
            # who still takes over the parameters when the other refuses is told why
            assert error in ("TaskError", "ConfigError", "WorkerLostError")
            assert message in said
            assert "\n" not in said


def test_bytes_are_two_gatherings_and_a_scattering():
    """Each rank sends (n-1)/n of a block three times, and the two numbers that are compared at each step."""
    num_workers, width, depth, more = 2, 128, 4, 10
    of = [{"policy": "fsdp", "steps": steps, "width": width, "depth": depth} for steps in (3, 3 + more)]
    short, long = (sent["collective"] for sent in values("each", function="send", of=of)[0])
    rows = math.ceil(width / num_workers)
    part = depth * rows * (width + 1) * 4
    of_step = num_workers * (num_workers - 1) * (3 * part + 16)
    assert (long - short) / more == pytest.approx(of_step, rel=0.02)


def test_what_is_not_held_any_more_is_let_go():
    assert values("let_go", width=8) == [[0, 0], [0, 0]]


@pytest.mark.slow
def test_a_fourth_is_held_by_each_of_four():
    whole, cut = both("hold", num_workers=4, width=64, depth=4)
    for mine, theirs in zip(cut, whole, strict=True):
        assert sum(theirs.values()) >= 3.5 * sum(mine.values())
        assert all(theirs[kind] > 3.5 * mine[kind] for kind in mine)
