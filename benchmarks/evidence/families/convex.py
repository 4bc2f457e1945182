"""Logistic regression whose inputs have very unequal scales, and a policy learned from rewards alone."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from families.problem import Problem, accuracy_points, cross_entropy, dense, generator_of

NUM_TRAIN, NUM_HELD_OUT = 4096, 2000
INPUTS, ARMS = 40, 6


def logistic(seed: int, difficulty: float) -> Problem:
    """Make inputs whose variances span a factor of 100 to 10,000, and whose directions are mixed."""
    scales = torch.logspace(0, -(1.0 + difficulty), INPUTS)
    turn, _ = torch.linalg.qr(torch.randn(INPUTS, INPUTS, generator=generator_of(seed, 0)))
    truth = torch.randn(INPUTS, 4, generator=generator_of(seed, 4)) * 0.7

    def samples(number: int, part: int) -> tuple[Tensor, Tensor]:
        random = generator_of(seed, part)
        whitened = torch.randn(number, INPUTS, generator=random)
        logits = whitened @ truth
        classes = (logits + 0.3 * torch.randn(logits.shape, generator=random)).argmax(1)
        return 3.0 * (whitened * scales) @ turn, classes

    return Problem(
        build=lambda: nn.Linear(INPUTS, 4),
        train=samples(NUM_TRAIN, 1),
        loss=cross_entropy,
        points=accuracy_points(*samples(NUM_HELD_OUT, 2)),
    )


def bandit(seed: int, difficulty: float) -> Problem:
    """Choose the best of six arms by context from logged trials: each has one arm, drawn, and its noisy reward.

    The loss is the logged reward times minus the chance of the logged arm, over the chance 1/6 with which it was
    drawn: an unbiased estimate of the reward that the policy would earn, with a variance as large as its mean (inverse
    propensity scoring, Horvitz & Thompson 1952), plus a little entropy. Points are percent of the best arm's reward.
    """
    arms = torch.randn(16, ARMS, generator=generator_of(seed, 0)) / 4
    random = generator_of(seed, 1)
    contexts = torch.randn(NUM_TRAIN, 16, generator=random)
    drawn = torch.randint(ARMS, (NUM_TRAIN,), generator=random)
    earned = (contexts @ arms).gather(1, drawn[:, None]).squeeze(1)
    rewards = earned + (0.3 + 0.7 * difficulty) * torch.randn(NUM_TRAIN, generator=random)
    held_out = torch.randn(NUM_HELD_OUT, 16, generator=generator_of(seed, 2))
    worth = held_out @ arms

    def points(model: nn.Module) -> float:
        chances = model(held_out).softmax(-1)
        return 100.0 * ((chances * worth).sum(1).mean() / worth.max(1).values.mean()).item()

    return Problem(
        build=lambda: dense(16, 32, ARMS), train=(contexts, drawn, rewards), loss=_minus_reward, points=points
    )


def _minus_reward(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    contexts, drawn, rewards = batch
    logs = F.log_softmax(model(contexts), dim=-1)
    chances = logs.exp()
    chosen = chances.gather(1, drawn[:, None]).squeeze(1)
    entropy = -(chances * logs).sum(1).mean()
    return -(ARMS * chosen * rewards).mean() - 0.05 * entropy
