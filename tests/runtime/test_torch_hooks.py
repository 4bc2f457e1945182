"""torch's own hooks and its post-local SGD, as baselines on real processes."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from plesio.testing import LocalJob
from runtime import fsdp_programs as programs

pytestmark = pytest.mark.timeout(180)

PROGRAMS = Path(programs.__file__)
WIDTH, DEPTH = 512, 3
"""More than one bucket of DDP."""
SHAPE = {"optimizer": "SGD", "lr": 0.05, "momentum": 0.9}


def values(function: str, **arguments: Any) -> list[Any]:
    with LocalJob(2) as job:
        ended = job.run(PROGRAMS, function, timeout_s=90, **arguments)
    for ending in ended.values():
        assert ending.error is None, ending.trace
    return [ended[rank].value for rank in sorted(ended)]


def distance(one: dict[str, list[float]], other: dict[str, list[float]]) -> float:
    return max(float((torch.tensor(one[name]) - torch.tensor(other[name])).abs().max()) for name in one)


def test_casting_hooks_are_those_that_a_compression_uses():
    assert values("train", policy="bsp,hook=fp16", **SHAPE) == values("train", policy="bsp,compress=fp16", **SHAPE)


@pytest.mark.parametrize("hook", ["bf16", "powersgd:2+start:3"])
def test_replicas_stay_equal_and_near_to_bsp(hook: str):
    plain, hooked = (values("train", policy=policy, **SHAPE) for policy in ("bsp", f"bsp,hook={hook}"))
    assert hooked[0]["final"] == hooked[1]["final"]
    assert 0 < distance(hooked[0]["final"], plain[0]["final"]) < 0.1


def test_post_local_sgd_is_bsp_and_then_local_sgd():
    """Its first averaging is a step after the warm-up's last one, as that of a stage of one step more is not."""
    torchs, own = (
        values("train", policy=policy, **SHAPE) for policy in ("post_local_sgd:2,warmup=3", "switch:bsp/local_sgd:2@2")
    )
    assert torchs[0]["final"] == torchs[1]["final"]
    assert distance(torchs[0]["final"], own[0]["final"]) < 0.05


def test_an_evaluation_sees_the_mean_of_replicas_that_differ():
    """After step 4 of a warm-up of 1 and a period of 4 (averagings are after steps 2 and 6)."""
    seen = values("train", policy="post_local_sgd:4,warmup=1", **SHAPE)
    assert seen[0]["at_half"] == seen[1]["at_half"]
    assert seen[0]["state"] != seen[1]["state"], "replicas are each worker's own between averagings"
    assert seen[0]["final"] == seen[1]["final"]


def test_after_the_warm_up_a_gradient_is_refused_where_it_was_made():
    ended = values("bad_loss", policy="post_local_sgd:2,warmup=1")
    assert ended[0]["refused"] == {"1": {"not_finite": 1}}
    assert ended[0]["final"] == ended[1]["final"]


@functools.cache
def sent_a_step(policy: str) -> float:
    """Bytes, by both workers; what the beginning and the end send is in neither."""
    more = 10
    short, long = (
        values("send", policy=policy, steps=steps, width=WIDTH, depth=DEPTH)[0]["collective"] for steps in (3, 3 + more)
    )
    return (long - short) / more


@pytest.mark.parametrize(("hook", "share"), [("fp16", 0.5), ("bf16", 0.5), ("powersgd:1+start:2", 0.05)])
def test_bytes_are_what_was_sent(hook: str, share: float):
    plain, hooked = sent_a_step("bsp"), sent_a_step(f"bsp,hook={hook}")
    assert plain == pytest.approx(2 * DEPTH * WIDTH * (WIDTH + 1) * 4, rel=0.02)  # 2(n-1)/n of it, by two ranks
    assert hooked <= 1.03 * share * plain
