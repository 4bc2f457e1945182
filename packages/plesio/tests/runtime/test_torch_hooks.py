"""torch's own hooks and its post-local SGD, as baselines on real processes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from runtime import fsdp_programs as programs
from support.processes import on_processes

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(programs.__file__)
WIDTH, DEPTH = 512, 3
"""More than one bucket of DDP."""
MORE = 20
"""Steps."""
SHAPE = {"optimizer": "SGD", "lr": 0.05, "momentum": 0.9}


def each(function: str, of: list[dict[str, Any]]) -> list[list[Any]]:
    """Return a function's result for each of several arguments, in one job; by rank."""
    by_rank = on_processes(2, PROGRAMS, "each", function=function, of=of)
    return [[one[index] for one in by_rank] for index in range(len(of))]


def trained(*policies: str) -> list[list[Any]]:
    return each("train", [{"policy": policy, **SHAPE} for policy in policies])


def distance(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    return max(float((torch.tensor(one[name]) - torch.tensor(other[name])).abs().max()) for name in one)


def test_casting_hooks_are_those_that_a_compression_uses():
    hooked, compressed = trained("bsp,hook=fp16", "bsp,compress=fp16")
    assert hooked == compressed


def test_replicas_stay_equal_and_near_to_bsp():
    plain, *others = trained("bsp", "bsp,hook=bf16", "bsp,hook=powersgd:2+start:3")
    for hooked in others:
        assert hooked[0]["final"] == hooked[1]["final"]
        assert 0 < distance(hooked[0]["final"], plain[0]["final"]) < 0.1


def test_post_local_sgd_is_bsp_and_then_local_sgd():
    """Its first averaging is a step after the warm-up's last one, as that of a stage of one step more is not."""
    torchs, own = trained("post_local_sgd:2,warmup=3", "switch:bsp/local_sgd:2@2")
    assert torchs[0]["final"] == torchs[1]["final"]
    assert distance(torchs[0]["final"], own[0]["final"]) < 0.05


def test_an_evaluation_sees_the_mean_of_replicas_that_differ():
    """After step 4 of a warm-up of 1 and a period of 4 (averagings are after steps 2 and 6)."""
    seen = on_processes(2, PROGRAMS, "train", policy="post_local_sgd:4,warmup=1", **SHAPE)
    assert seen[0]["at_half"] == seen[1]["at_half"]
    assert seen[0]["state"] != seen[1]["state"], "replicas are each worker's own between averagings"
    assert seen[0]["final"] == seen[1]["final"]


def test_after_the_warm_up_a_gradient_is_refused_where_it_was_made():
    ended = on_processes(2, PROGRAMS, "bad_loss", policy="post_local_sgd:2,warmup=1")
    assert ended[0]["refused"] == {"1": {"not_finite": 1}}
    assert ended[0]["final"] == ended[1]["final"]


@pytest.mark.parametrize(
    "shares",
    [
        {"bsp,hook=fp16": 0.5, "bsp,hook=powersgd:1+start:2": 0.05},
        pytest.param({"bsp,hook=bf16": 0.5}, marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_bytes_are_what_was_sent(shares: dict[str, float]):
    shares = {"bsp": 1.0, **shares}
    runs = [(policy, steps) for policy in shares for steps in (3, 3 + MORE)]
    shape = {"width": WIDTH, "depth": DEPTH}
    sent = each("send", [{"policy": policy, "steps": steps, **shape} for policy, steps in runs])
    by_run = {run: by_rank[0]["collective"] for run, by_rank in zip(runs, sent, strict=True)}
    # of a step, by both workers; what the beginning and the end send is in neither
    of_step = {policy: (by_run[policy, 3 + MORE] - by_run[policy, 3]) / MORE for policy in shares}
    plain = of_step["bsp"]
    assert plain == pytest.approx(2 * DEPTH * WIDTH * (WIDTH + 1) * 4, rel=0.02)  # 2(n-1)/n of it, by two ranks
    for policy, share in shares.items():
        assert of_step[policy] <= 1.03 * share * plain, policy
