"""Replicas in parts, on real processes: the numbers of bsp, what is sent and held, and what is refused."""

import functools
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from plesio.testing import Ending, LocalJob
from runtime import fsdp_programs as programs

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(programs.__file__)
LIMIT_S = 90.0
OPTIMIZERS = {
    "SGD": {"lr": 0.05},
    "momentum": {"optimizer": "SGD", "lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "AdamW": {"lr": 0.01},
}


def endings(function: str, *, num_workers: int = 2, **arguments: Any) -> dict[int, Ending]:
    with LocalJob(num_workers) as job:
        return job.run(PROGRAMS, function, timeout_s=LIMIT_S, **arguments)


def values(function: str, **arguments: Any) -> list[Any]:
    ended = endings(function, **arguments)
    for ending in ended.values():
        assert ending.error is None, ending.trace
    return [ended[rank].value for rank in sorted(ended)]


def assert_near(one: dict[Any, list[float]], other: dict[Any, list[float]]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(torch.tensor(one[name]), torch.tensor(other[name]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("num_workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_numbers_are_those_of_bsp(optimizer: str, num_workers: int):
    shape = {"optimizer": optimizer} | OPTIMIZERS[optimizer]
    plain, cut = (
        values("train", policy=policy, num_workers=num_workers, **shape) for policy in ("bsp", "fsdp,blocks=sequential")
    )
    for mine, theirs in zip(cut, plain, strict=True):
        assert_near(mine["state"], theirs["state"])
        assert_near(mine["optimizer"], theirs["optimizer"])
        assert_near(mine["final"], theirs["final"])
        assert mine["at_half"] == pytest.approx(theirs["at_half"], rel=1e-4)
        assert mine["plain"], "the session has left something on the model"
        assert mine["sha256"] == cut[0]["sha256"]
    assert cut[0]["metric"] == pytest.approx(plain[0]["metric"], rel=1e-4)


def test_batch_norm_and_accumulation():
    shape = {"optimizer": "SGD", "lr": 0.05, "batch_norm": True, "accumulate": True}
    plain, cut = (values("train", policy=policy, **shape) for policy in ("bsp", "fsdp"))
    assert_near(cut[0]["final"], plain[0]["final"])
    assert cut[1]["final"] == cut[0]["final"], "buffers are rank 0's at the end"
    assert cut[0]["at_half"] == pytest.approx(plain[0]["at_half"], rel=1e-4)


@functools.cache
def whole_run() -> dict[str, list[float]]:
    return values("go_on", policy="bsp", then="bsp", optimizer="AdamW", lr=0.01)[0][0]


@pytest.mark.parametrize(("policy", "then"), [("fsdp", "fsdp"), ("fsdp", "bsp"), ("bsp", "fsdp")])
def test_a_state_goes_on_in_parts_and_whole(policy: str, then: str):
    for mine in values("go_on", policy=policy, then=then, optimizer="AdamW", lr=0.01):
        assert_near(mine[0], whole_run())
        assert_near(mine[1], whole_run())


def test_what_an_optimizer_remembers_is_cut_with_its_parameters():
    plain, cut = (values("with_state", policy=policy, optimizer="AdamW", lr=0.01) for policy in ("bsp", "fsdp"))
    assert_near(cut[0], plain[0])


@pytest.mark.parametrize("by_optimizer", [False, True])
def test_clipping_takes_the_norm_of_all_parts(by_optimizer: bool):
    plain, cut = (values("clip", policy=policy, by_optimizer=by_optimizer) for policy in ("bsp", "fsdp"))
    assert_near(cut[0], plain[0])


def test_a_gradient_that_is_not_finite_is_refused_by_all_and_counted_for_one():
    plain, cut = (values("bad_loss", policy=policy) for policy in ("bsp", "fsdp"))
    assert_near(cut[0]["final"], plain[0]["final"])
    assert cut[0]["refused"] == plain[0]["refused"] == {"1": {"not_finite": 1}}


def test_a_scaled_loss_has_one_verdict_though_nobody_sees_the_whole_gradient():
    plain, cut = (values("train_in_half_precision", policy=policy, init_scale=2.0**24) for policy in ("bsp", "fsdp"))
    assert cut == plain
    scales, _ = cut[0]
    assert scales[0] == 2.0**23, "the first step overflows"
    assert any(after > before for before, after in itertools.pairwise(scales))
    assert cut[1][0] == scales


def test_a_lost_worker_ends_the_run_by_name():
    ended = endings("die", policy="fsdp")
    assert ended[0].error == "WorkerLostError"
    assert "worker 1 was lost" in ended[0].message


@pytest.mark.parametrize(("alike", "from_step"), [(True, 0), (False, 0), (True, 2)])
def test_steps_through_different_blocks_are_found_out(alike: bool, from_step: int):
    for ending in endings("branch", alike=alike, from_step=from_step).values():
        assert ending.error == "ExchangeError"
        assert "goes through other blocks" in ending.message


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("number", {}, '"scale" is one number without a dimension'),
        ("sparse", {}, 'the gradient of "weight" is sparse'),
        ("types", {}, "has parameters of torch.float32 and torch.float64"),
        ("list", {}, "a ModuleList has no forward pass"),
        ("strided", {}, "is not contiguous"),
        ("state", {}, "is not shaped like it"),
        ("plain", {"policy": "fsdp,blocks=encoder"}, 'no module of the model is a "encoder"; it has linear'),
        ("plain", {"checkpoint": "nowhere"}, "fsdp takes no checkpoints"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_line(kind: str, arguments: dict[str, str], message: str):
    for ending in endings("odd", kind=kind, **arguments).values():
        assert ending.error in ("TaskError", "ConfigError"), ending.trace
        assert message in ending.message
        assert "\n" not in ending.message


def test_bytes_are_two_gatherings_and_a_scattering():
    """Each rank sends (n-1)/n of a block three times, and the two numbers that are compared at each step."""
    num_workers, width, depth, more = 2, 128, 4, 10
    short, long = (
        values("send", policy="fsdp", steps=steps, width=width, depth=depth)[0]["collective"] for steps in (3, 3 + more)
    )
    rows = math.ceil(width / num_workers)
    part = depth * rows * (width + 1) * 4
    of_step = num_workers * (num_workers - 1) * (3 * part + 16)
    assert (long - short) / more == pytest.approx(of_step, rel=0.02)


def test_what_is_not_held_any_more_is_let_go():
    assert values("let_go", width=8) == [[0, 0], [0, 0]]


@pytest.mark.slow
def test_a_fourth_is_held_by_each_of_four():
    whole, cut = (values("hold", policy=policy, num_workers=4, width=64, depth=4) for policy in ("bsp", "fsdp"))
    for mine, theirs in zip(cut, whole, strict=True):
        assert sum(theirs.values()) >= 3.5 * sum(mine.values())
        assert all(theirs[kind] > 3.5 * mine[kind] for kind in mine)
