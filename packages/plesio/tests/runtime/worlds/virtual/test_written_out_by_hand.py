"""Compressed and delayed exchanges, held against the same training written out by hand in plain PyTorch."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plesio.policies import LocalSGD, parse_policy
from plesio.policies.compression import TopK
from support.noted_training import (
    IN_FLOAT32,
    LEARNING_RATE,
    NUM_FEATURES,
    NUM_SAMPLES,
    NUM_WORKERS,
    TOLERANCE,
    Worker,
    build,
    flat_of,
    run,
)
from support.problems import Problem
from support.workers import workers_of


class TopKByHand:
    """The mean over the workers of the largest of each, with what was left out added to the next."""

    def __init__(self, compression: Any) -> None:
        self.compression = compression
        self.residuals: dict[int, Tensor] = {}

    def mean(self, vectors: Sequence[Tensor], *, in_full: bool = False) -> Tensor:
        total = torch.zeros_like(vectors[0])
        for worker, vector in enumerate(vectors):
            update = vector / len(vectors) + self.residuals.get(worker, torch.zeros_like(vector))
            sent = update
            if isinstance(self.compression, TopK) and not in_full:
                numbers = update.float()
                places = numbers.abs().topk(self.compression.num_kept(len(numbers))).indices
                sent = torch.zeros_like(update)
                sent[places] = numbers[places].double()
            self.residuals[worker] = update - sent
            total += sent
        return total


class ByHand:
    """The same training without Plesio: a model for each worker, and sums in plain sight."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.models, self.optimizers = zip(*(build() for _ in range(NUM_WORKERS)), strict=True)
        self.data = Problem(NUM_SAMPLES, NUM_FEATURES)
        self.codecs = [TopKByHand(policy.compression) for _ in range(max(1, policy.delay))]
        self.under_way: deque[Tensor] = deque()
        self.base = flat_of(self.models[0])
        self.velocity = torch.zeros_like(self.base)
        self.num_steps = 0
        self.pending: tuple[int, list[Tensor], Tensor] | None = None

    def train(self, workers: Sequence[Worker], *, settle_at: int | None = None) -> Tensor:
        num_steps = len(workers[0].batches)
        for clock in range(1, num_steps + 1):
            gradients = self.gradients([worker.batches[clock - 1] for worker in workers])
            if isinstance(self.policy, LocalSGD):
                self.local_step(clock)
            else:
                codec = self.codecs[clock % len(self.codecs)]
                self.under_way.append(codec.mean(gradients))
                if len(self.under_way) > self.policy.delay:
                    self.apply(self.under_way.popleft())
            if clock in (settle_at, num_steps):
                self.settle(clock)
        return flat_of(self.models[0])

    def gradients(self, batches: Sequence[Sequence[int]]) -> list[Tensor]:
        found = []
        for model, batch in zip(self.models, batches, strict=True):
            model.zero_grad()
            (model(self.data.x[batch]) - self.data.y[batch]).square().mean().backward()
            found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
        return found

    def apply(self, gradient: Tensor) -> None:
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for parameter, part in zip(model.parameters(), self.parts(model, gradient), strict=True):
                parameter.grad = part.clone()
            optimizer.step()

    @staticmethod
    def parts(model: nn.Module, flat: Tensor) -> list[Tensor]:
        parameters = list(model.parameters())
        cut = torch.split(flat, [p.numel() for p in parameters])
        return [part.view_as(p) for p, part in zip(parameters, cut, strict=True)]

    def local_step(self, clock: int) -> None:
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * self.policy.inner_rate
            optimizer.step()
        self.num_steps += 1
        if self.policy.delay and self.pending is not None and self.pending[0] + self.policy.delay == clock:
            self.merge()
        if clock % self.policy.period == 0:
            self.start(clock)
            if self.policy.delay == 0:
                self.merge()

    def start(self, clock: int, *, in_full: bool = False) -> None:
        deltas = [flat_of(model) - self.base for model in self.models]
        progress = self.codecs[0].mean(deltas, in_full=in_full)
        if self.num_steps or self.policy.compression.keeps_residual:  # else nothing is left to settle
            num_steps, kept = max(1, self.num_steps), self.policy.momentum
            self.velocity = kept * self.velocity + (1 - kept) * progress / num_steps
            self.pending = clock, deltas, self.velocity * num_steps / self.policy.inner_rate
        self.num_steps = 0

    @torch.no_grad()
    def merge(self) -> None:
        if self.pending is None:
            return
        (_, deltas, mean), self.pending = self.pending, None
        self.base = self.base + mean
        for model, delta in zip(self.models, deltas, strict=True):
            for parameter, part in zip(model.parameters(), self.parts(model, mean - delta), strict=True):
                parameter.add_(part)

    @torch.no_grad()
    def settle(self, clock: int) -> None:
        if isinstance(self.policy, LocalSGD):
            self.merge()
            self.start(clock, in_full=True)
            self.merge()
            return
        while self.under_way:
            self.apply(self.under_way.popleft())
        nothing = [torch.zeros_like(self.base)] * NUM_WORKERS
        rest = sum(codec.mean(nothing, in_full=True) for codec in self.codecs)
        assert isinstance(rest, Tensor)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for parameter, part in zip(model.parameters(), self.parts(model, rest), strict=True):
                parameter.sub_(LEARNING_RATE * part)
                optimizer.state[parameter]["momentum_buffer"].add_(part)


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
    expected = ByHand(parse_policy(policy)).train(workers, settle_at=settle_at)
    tolerance = IN_FLOAT32 if "topk" in policy else TOLERANCE
    for worker in workers:
        torch.testing.assert_close(worker.final, expected, **tolerance)
    if "delayed" in policy:
        assert float((expected - workers_of(run("bsp"))[0].final).abs().max()) > 1e-3, "or it says nothing"


def test_averaging_every_step_one_step_late_corrects_own_gradients_as_delayed_gradient_averaging_does():
    """Zhu et al. 2021, for plain SGD: own gradients at once, replaced by the mean when it has come."""
    workers = workers_of(run("local_sgd:1,delay=1", momentum=0.0))
    hand = ByHand(parse_policy("delayed:1"))
    own = [torch.zeros_like(hand.base)] * NUM_WORKERS
    for clock in range(len(workers[0].batches)):
        late, mean = own, sum(own) / NUM_WORKERS
        own = hand.gradients([worker.batches[clock] for worker in workers])
        for model, mine, before in zip(hand.models, own, late, strict=True):
            with torch.no_grad():
                for parameter, part in zip(model.parameters(), hand.parts(model, mine - before + mean), strict=True):
                    parameter.sub_(LEARNING_RATE * part)
        for worker, model in zip(workers, hand.models, strict=True):
            torch.testing.assert_close(worker.after[clock], flat_of(model), **TOLERANCE)
