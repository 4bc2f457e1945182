"""Compressed and delayed exchanges, held against the same training written out by hand in plain PyTorch."""

import pytest
import torch

from plesio.policies import parse_policy
from support.by_hand import ByHand, flat_of, parameters_of, parts_of
from support.noted_training import (
    IN_FLOAT32,
    LEARNING_RATE,
    NUM_FEATURES,
    NUM_SAMPLES,
    NUM_WORKERS,
    TOLERANCE,
    build,
    run,
)
from support.problems import Problem
from support.workers import workers_of

POLICIES = [
    "delayed:1",
    "delayed:2",
    "delayed:5",
    "bsp,compress=topk:0.2",
    "delayed:1,compress=topk:0.2",
    "delayed:3,compress=topk:0.2",
    "local_sgd:4,compress=topk:0.2",
    "local_sgd:4,delay=2,compress=topk:0.2",
    "local_sgd:3,delay=3,compress=topk:0.2",
    "local_sgd:4,inner_rate=0.5",
    "local_sgd:4,momentum=0.5",
    "local_sgd:4,delay=2,inner_rate=0.25,momentum=0.5",
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("policy", "settle_at"),
    [
        *((policy, 8) for policy in POLICIES),
        *((policy, None) for policy in POLICIES[1::3]),
        *(pytest.param(policy, None, marks=pytest.mark.slow) for policy in POLICIES if policy not in POLICIES[1::3]),
    ],
)
def test_it_is_the_run_written_out_by_hand(policy: str, settle_at: int | None):
    simulation = run(policy, settle_at=settle_at)
    workers = workers_of(simulation)
    assert simulation.runs[0].fallbacks == (), "by hand nothing is flushed"
    hand = ByHand(parse_policy(policy), build, sizes=(NUM_WORKERS,), data=Problem(NUM_SAMPLES, NUM_FEATURES))
    expected = flat_of(hand.train(workers, settle_at=settle_at))
    tolerance = IN_FLOAT32 if "topk" in policy else TOLERANCE
    for worker in workers:
        torch.testing.assert_close(worker.final, expected, **tolerance)
    if "delayed" in policy:
        assert float((expected - workers_of(run("bsp"))[0].final).abs().max()) > 1e-3, "or it says nothing"


def test_averaging_every_step_one_step_late_corrects_own_gradients_as_delayed_gradient_averaging_does():
    """Zhu et al. 2021, for plain SGD: own gradients at once, replaced by the mean when it has come."""
    workers = workers_of(run("local_sgd:1,delay=1", momentum=0.0))
    hand = ByHand(parse_policy("delayed:1"), build, sizes=(NUM_WORKERS,), data=Problem(NUM_SAMPLES, NUM_FEATURES))
    own = [torch.zeros_like(hand.base)] * NUM_WORKERS
    for clock in range(len(workers[0].batches)):
        late, mean = own, sum(own) / NUM_WORKERS
        own = hand.gradients([worker.batches[clock] for worker in workers])
        for model, mine, before in zip(hand.models, own, late, strict=True):
            with torch.no_grad():
                moved = flat_of(model) - LEARNING_RATE * (mine - before + mean)
                for parameter, part in zip(parameters_of(model), parts_of(model, moved), strict=True):
                    parameter.copy_(part)
        for worker, model in zip(workers, hand.models, strict=True):
            torch.testing.assert_close(worker.after[clock], flat_of(model), **TOLERANCE)
