"""Synchronous policies without Plesio: a model for each worker in one process, and sums in plain sight."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from plesio.policies import Hierarchical, LocalSGD, Policy, parse_policy
from plesio.policies.compression import TopK
from support.problems import Problem
from support.workers import racks_of


class Seen(Protocol):
    """A worker of the run that is done again: the samples of each of its batches."""

    batches: list[list[int]]


def parameters_of(model: nn.Module) -> list[nn.Parameter]:
    """In the order of their names, in which an exchange has them; slices depend on it."""
    return [parameter for _, parameter in sorted(model.named_parameters())]


def flat_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters_of(model)])


def parts_of(model: nn.Module, flat: Tensor) -> list[Tensor]:
    parameters = parameters_of(model)
    cut = flat.split([p.numel() for p in parameters])
    return [part.view_as(p) for p, part in zip(parameters, cut, strict=True)]


class SumByHand:
    """The sum of the largest numbers of each slice of each vector; what was left out is added to the next vector."""

    def __init__(self, compression: Any, *, num_slices: int) -> None:
        self.compression, self.num_slices = compression, num_slices
        self.residuals: dict[int, Tensor] = {}

    def of(self, vectors: Sequence[Tensor], *, in_full: bool = False) -> Tensor:
        total = torch.zeros_like(vectors[0])
        for place, vector in enumerate(vectors):
            update = sent = vector + self.residuals.get(place, torch.zeros_like(vector))
            if isinstance(self.compression, TopK) and not in_full:
                width = -(-len(update) // self.num_slices)
                sent = torch.cat(
                    [self._largest(part, self.compression.num_kept(width)) for part in update.split(width)]
                )
            self.residuals[place] = update - sent
            total += sent
        return total

    @staticmethod
    def _largest(part: Tensor, number: int) -> Tensor:
        places = part.float().abs().topk(number).indices
        return torch.zeros_like(part).index_copy_(0, places, part[places].float().double())


class ByHand:
    """The same training as that of a run under ``policy``, on the batches that its workers saw."""

    def __init__(self, policy: Policy, build: Callable[[], Any], *, sizes: Sequence[int], data: Problem) -> None:
        self.racks, self.num_workers, self.data = racks_of(sizes), sum(sizes), data
        self.models, self.optimizers = zip(*(build() for _ in range(self.num_workers)), strict=True)
        self.base = flat_of(self.models[0])
        self.velocity = torch.zeros_like(self.base)
        self.num_steps = 0
        self.under_way: deque[Tensor] = deque()
        self.pending: tuple[int, list[Tensor], Tensor] | None = None
        self._begin(policy)

    def _begin(self, policy: Policy) -> None:
        self.policy: Any = policy
        outer = policy.outer if isinstance(policy, Hierarchical) else policy
        self.local = outer if isinstance(outer, LocalSGD) else None
        # rails of racks of one size each sum a slice
        equal = isinstance(policy, Hierarchical) and len(set(map(len, self.racks))) == 1
        num_slices = len(self.racks[0]) if equal else 1
        self.sums = [SumByHand(outer.compression, num_slices=num_slices) for _ in range(max(1, policy.delay))]

    def train(
        self,
        workers: Sequence[Seen],
        *,
        changes: Mapping[int, tuple[str, Sequence[float]]] | None = None,
        settle_at: int | None = None,
    ) -> nn.Module:
        """Return the model; ``changes`` are policies and shares of workers after a step, and it settles at another."""
        num_steps, shares = len(workers[0].batches), ()
        for clock in range(1, num_steps + 1):
            self.step(clock, [worker.batches[clock - 1] for worker in workers], shares)
            if changes and clock in changes:
                spec, shares = changes[clock]
                self.change(clock, parse_policy(spec), shares)
            if clock in (settle_at, num_steps):
                self.settle(clock, shares)
        return self.models[0]

    @property
    def groups(self) -> list[list[int]]:
        """Workers that step together."""
        if self.local is None:
            return [list(range(self.num_workers))]
        return self.racks if isinstance(self.policy, Hierarchical) else [[one] for one in range(self.num_workers)]

    def gradients(self, batches: Sequence[Sequence[int]]) -> list[Tensor]:
        found = []
        for model, batch in zip(self.models, batches, strict=True):
            model.zero_grad()
            (model(self.data.x[batch]) - self.data.y[batch]).square().mean().backward()
            found.append(torch.cat([p.grad.reshape(-1) for p in parameters_of(model) if p.grad is not None]))
        return found

    def step(self, clock: int, batches: Sequence[Sequence[int]], shares: Sequence[float]) -> None:
        own = self.gradients(batches)
        for group in self.groups:
            weights = [len(batches[worker]) if shares else 1 for worker in group]
            weighted = [weight / sum(weights) * own[worker] for weight, worker in zip(weights, group, strict=True)]
            if self.local is None:
                self.under_way.append(self.sums[clock % len(self.sums)].of(weighted))
            else:
                self.apply(group, torch.stack(weighted).sum(0))
        if self.local is None:
            if len(self.under_way) > self.policy.delay:
                self.apply(range(self.num_workers), self.under_way.popleft())
            self.base, self.velocity = flat_of(self.models[0]), torch.zeros_like(self.velocity)
            return
        self.num_steps += 1
        if self.pending is not None and self.pending[0] + self.local.delay == clock:
            self.merge()
        if clock % self.local.period == 0:
            self.start(clock, shares)
            if self.local.delay == 0:
                self.merge()

    def apply(self, workers: Sequence[int], gradient: Tensor) -> None:
        for worker in workers:
            model, optimizer = self.models[worker], self.optimizers[worker]
            for parameter, part in zip(parameters_of(model), parts_of(model, gradient), strict=True):
                parameter.grad = part.clone()
            rate = optimizer.param_groups[0]["lr"]
            optimizer.param_groups[0]["lr"] = rate * (self.local.inner_rate if self.local else 1)
            optimizer.step()
            optimizer.param_groups[0]["lr"] = rate

    def start(self, clock: int, shares: Sequence[float], *, in_full: bool = False) -> None:
        """Begin an average of the groups' parameters."""
        assert self.local is not None
        deltas = [flat_of(model) - self.base for model in self.models]
        weights = [
            sum(shares[one] for one in group) if shares else len(group) / self.num_workers for group in self.groups
        ]
        weighted = [weight * deltas[group[0]] for weight, group in zip(weights, self.groups, strict=True)]
        progress = self.sums[0].of(weighted, in_full=in_full)
        if self.num_steps or self.local.compression.keeps_residual:  # else nothing is left to settle
            num_steps, kept = max(1, self.num_steps), self.local.momentum
            self.velocity = kept * self.velocity + (1 - kept) * progress / num_steps
            self.pending = clock, deltas, self.velocity * num_steps / self.local.inner_rate
        self.num_steps = 0

    @torch.no_grad()
    def merge(self) -> None:
        if self.pending is None:
            return
        (_, deltas, mean), self.pending = self.pending, None
        self.base = self.base + mean
        for model, delta in zip(self.models, deltas, strict=True):
            for parameter, part in zip(parameters_of(model), parts_of(model, mean - delta), strict=True):
                parameter.add_(part)

    @torch.no_grad()
    def settle(self, clock: int, shares: Sequence[float]) -> None:
        """Exchange what is left, in full."""
        if self.local is not None:
            self.merge()
            self.start(clock, shares, in_full=True)
            self.merge()
            return
        while self.under_way:
            self.apply(range(self.num_workers), self.under_way.popleft())
        nothing = [torch.zeros_like(self.base)] * self.num_workers
        rest = torch.stack([one.of(nothing, in_full=True) for one in self.sums]).sum(0)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            for parameter, part in zip(parameters_of(model), parts_of(model, rest), strict=True):
                parameter.sub_(optimizer.param_groups[0]["lr"] * part)
                optimizer.state[parameter]["momentum_buffer"].add_(part)

    @torch.no_grad()
    def change(self, clock: int, policy: Policy, shares: Sequence[float]) -> None:
        """Settle, and give those that step together from now on the mean of all momenta, unless they had the same."""
        if policy == self.policy:
            return
        before, local = self.groups, self.local
        if local is not None:
            self.settle(clock, shares)
        self._begin(policy)
        if local and self.local and (local.inner_rate, local.momentum) != (self.local.inner_rate, self.local.momentum):
            self.velocity = torch.zeros_like(self.velocity)
        if all(any(set(group) <= set(of) for of in before) for group in self.groups):
            return
        for same in zip(*map(parameters_of, self.models), strict=True):
            states = [optimizer.state[p] for optimizer, p in zip(self.optimizers, same, strict=True)]
            mean = torch.stack([state["momentum_buffer"] for state in states]).mean(0)
            for state in states:
                state["momentum_buffer"] = mean.clone()
