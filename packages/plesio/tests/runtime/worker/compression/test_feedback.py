import math

import pytest
import torch
from torch import Tensor

from plesio.policies.compression import parse_compression
from plesio.runtime.parameters.codecs import make_codec
from plesio.runtime.worker.compression import ErrorFeedback

TEXTS = ["topk:0.05", "randk:0.05", "qsgd:4+feedback", "qsgd:8+feedback", "fp16+feedback", "bf16+feedback"]


@pytest.mark.parametrize("text", TEXTS)
def test_what_was_sent_and_the_residual_are_all_the_updates(text: str):
    codec = make_codec(parse_compression(text), num_elements=400, seed=1, rank=0)
    feedback = ErrorFeedback(limit=math.inf)
    generator = torch.Generator().manual_seed(0)
    given, sent = torch.zeros(400, dtype=torch.float64), torch.zeros(400, dtype=torch.float64)
    for clock in range(100):
        update = torch.randn(400, generator=generator)
        given += update
        compensated = feedback.compensate(update.clone())
        decoded = codec.decode(codec.encode(compensated, clock=clock), clock=clock)
        feedback.keep(compensated - decoded)
        sent += decoded
    assert feedback.residual is not None
    # each of 100 steps rounds numbers of up to 60 or so once: 100 * 60 * 2^-24
    torch.testing.assert_close(sent + feedback.residual, given, atol=4e-4, rtol=0)
    bound = parse_compression(text).residual_limit(400)
    assert feedback.ratio < bound, "Karimireddy et al. 2019, lemma 3"


def least_squares(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, targets with noise, and the optimum."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(400, 20, generator=generator) * torch.logspace(0, -0.5, 20)
    targets = rows @ torch.ones(20) + 0.5 * torch.randn(400, generator=generator)
    return rows, targets, torch.linalg.lstsq(rows, targets.unsqueeze(1)).solution.squeeze(1)


def distance_after(text: str, *, feedback: bool, num_steps: int = 300, seed: int = 0) -> float:
    """Distance to the optimum of SGD with falling rate, by that at the start, with two ranks whose data differ."""
    rows, targets, optimum = least_squares(seed)
    order = targets.argsort().view(2, 200)  # the lower targets to the first rank
    codecs = [make_codec(parse_compression(text), num_elements=20, seed=seed, rank=rank) for rank in range(2)]
    memories = [ErrorFeedback(limit=math.inf) for _ in range(2)]
    point = torch.zeros(20)
    for clock in range(num_steps):
        mean = torch.zeros(20)
        for rank in range(2):
            own = order[rank]
            gradient = rows[own].T @ (rows[own] @ point - targets[own]) / 400
            if feedback:
                gradient = memories[rank].compensate(gradient)
            decoded = codecs[rank].decode(codecs[rank].encode(gradient, clock=clock), clock=clock)
            if feedback:
                memories[rank].keep(gradient - decoded)
            mean += decoded
        point -= 0.3 / (1 + clock / 50) * mean
    return float((point - optimum).norm() / optimum.norm())


def test_top_k_reaches_the_optimum_with_feedback_and_does_not_without():
    assert distance_after("topk:0.05", feedback=True) < 0.05
    assert distance_after("topk:0.05", feedback=False) > 0.5
    assert distance_after("topk:1", feedback=False) < 0.05, "it is the compression, and not the problem"


def test_the_guard_trips_when_updates_become_smaller_and_not_before():
    # of a density of 0.05 a residual is sent within 20 exchanges anyhow, before it outweighs anything
    compression = parse_compression("topk:0.01")
    codec = make_codec(compression, num_elements=400, seed=1, rank=0)
    feedback = ErrorFeedback(limit=compression.residual_limit(400))
    generator = torch.Generator().manual_seed(0)
    tripped = []
    for clock in range(200):
        size = 1.0 if clock < 100 else 1e-4
        compensated = feedback.compensate(size * torch.randn(400, generator=generator))
        feedback.keep(compensated - codec.decode(codec.encode(compensated, clock=clock), clock=clock))
        tripped.append(feedback.exceeded)
    assert not any(tripped[:100])
    assert any(tripped[100:])


def test_norms_of_what_is_zero_or_large():
    feedback = ErrorFeedback(limit=10.0)
    assert (feedback.ratio, feedback.exceeded, feedback.average_norm) == (0.0, False, 0.0)
    feedback.compensate(torch.zeros(3))
    feedback.keep(torch.ones(3))
    assert feedback.exceeded, "any residual outweighs updates that are all zero"
    feedback.keep(None)
    assert not feedback.exceeded
    feedback.compensate(torch.full((4,), 1e25))
    feedback.keep(torch.full((4,), 1e25))
    assert feedback.residual_norm == pytest.approx(2e25)
    assert math.isfinite(feedback.ratio)


def test_the_average_is_of_the_updates_seen_and_not_of_a_zero_before_them():
    feedback = ErrorFeedback(limit=1.0)
    for _ in range(3):
        feedback.compensate(torch.full((4,), 2.0))
        assert feedback.average_norm == pytest.approx(4.0)
