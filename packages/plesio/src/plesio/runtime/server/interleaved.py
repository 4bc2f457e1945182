"""How N workers' updates, applied one by one, come to the steps that the synchronous optimizer would make.

The problem. BSP steps once a round with the mean of N gradients. A store that steps at every arrival with a stock
optimizer, and an N-th of the rate, makes N steps a round: momentum is forgotten N times as fast (0.9 remembers 10 steps
of a round's N, where it should remember 10 rounds), and so are Adam's moments, which also see the noise of one worker's
gradient where BSP normalises by that of the mean. And each gradient is about a round old when it is applied. A delay of
one step under heavy-ball momentum β is stable only for ``η λ < 1 - β`` (on a quadratic of curvature λ), where without
delay it is ``2 (1 + β)``: 38 times less at β = 0.9. So keeping β^(1/N) at every arrival is not enough either.

The rule. The optimizer's state advances once a round, with the mean gradient of that round; and every update makes its
share of the step at once, in the form of Nesterov, which looks ahead by as much as the gradients are late. With w the
update's share of a round (1/N of one step of one of N workers), weight its weight by staleness, M the mean of past
gradients and G the gain of the momentum in the long run (1 / (1 - β), for Adam 1):

    at every update     θ <- θ - η · weight · G ((1 - b²) g + b² M) / D
    at a round's end    M <- b M + (1 - b) ḡ,        ḡ the mean over the round

Over a round that is what `torch.optim`'s Nesterov step with ḡ makes of it; the delay is that of the gradients alone. It
is the *delayed Nesterov* of Liu et al. 2024 (arXiv 2401.09135) with steps instead of outer steps, and the look-ahead of
DANA (Hakimi et al. 2019, "Taming Momentum in a Distributed Asynchronous Environment") with one buffer for all workers.

How long it remembers. Momentum averages over n = 1 / (1 - β) rounds. With gradients that are a round late, ``η λ`` may
be about ``0.8 (1 - β) / (1 - b)`` at most, for N = 2 to 32 workers in turn: so a longer memory b at the same gain G
raises the limit, and with five times n it is that of BSP's heavy ball. But what is remembered is learned late. So where
gradients are a rounds old (updates of p steps are p rounds old when they are applied) the memory grows to ``(1 + 4 a)
n``, and is never more than a third of the rounds so far (`step_rules.memory`). Asynchrony acts as momentum by itself
(Mitliagkas et al. 2016, "Asynchrony begets momentum"), but where workers take turns it is a delay, which damps nothing;
hence the look-ahead instead of less momentum. An optimizer that normalises and has no momentum gets a memory as well
(n = 1), which it needs to bear the rates that BSP bears. Plain SGD gets none: it bears three quarters of them, and so
its updates simply add up. The tests hold limits and rates of convergence against BSP's.

What is normalised by, D, is what the synchronous optimizer would have at the end of the round if the rest of it were as
what has come: sqrt(v̂) + ε of the round's mean so far. So the noise in it is that of means. That mean may be next to
nothing by chance, which at the end of a round nothing would be divided by: it counts as no less than sqrt(w) g, the
scatter of the mean of a round of such gradients. So one gradient that is far too large is divided by itself.

By class (`step_rules`): SGD, Adam, AdamW, Adamax, Adagrad and RMSprop follow the rule above. Of the others every update
is a step of the stock optimizer at the update's share of the rate, with decay rates to the power of the share. The
state is kept where the stock optimizer keeps it and means the same, so it goes to a collective exchange and back.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plesio.runtime.server.step_rules import STEP_RULES, Group, MomentumHistory, StepRule, penalised

_WHOLE = 1 - 1e-6
"""Least share of a whole round: shares are fractions, and their sum is one only to rounding."""
_AGE_SMOOTHING = 0.25
"""Share of a round's ages in their smoothed value."""
_DECAYS = ("momentum", "rho", "alpha")
"""Options of a stock optimizer that set what is kept from one step to the next."""


@dataclass(slots=True)
class _Round:
    """The sums of the round under way.

    Attributes:
        share: Sum of the updates' shares.
        sums: By parameter, the sum of share times gradient; a parameter without one is not in it.
    """

    share: float = 0.0
    sums: dict[Tensor, Tensor] = field(default_factory=dict)


class InterleavedOptimizer:
    """Steps a stock optimizer's parameters with whole rounds or with parts of them; the module's head has the rule.

    Args:
        optimizer: Of torch; its groups' options may be changed at any time.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._rule = STEP_RULES.get(type(optimizer))
        self._past = MomentumHistory()
        self._round = _Round()

    @torch.no_grad()
    def step(self, *, weight: float, share: float = 1.0, age: float = 0.0) -> None:
        """Make the part of a round's step that is due to the gradients in ``grad``, and clear these.

        Args:
            weight: Multiplies the step: the share times what the update counts for by its staleness.
            share: Of a round, by which time goes on.
            age: Rounds that were applied since the parameters were pulled that the gradients are of.
        """
        if self._rule is None or (share == 1.0 and age == 0.0):
            self.end_round()
            with self._scaled(weight, decays=share):
                self._optimizer.step()
        else:
            self._step_part(self._rule, weight=weight, share=share, age=age)
        for group in self._optimizer.param_groups:  # as `zero_grad` does, without a profiler's hooks
            for parameter in group["params"]:
                parameter.grad = None

    def _step_part(self, rule: StepRule, *, weight: float, share: float, age: float) -> None:
        current = self._round
        current.share += share
        self._past.age += (age - self._past.age) * min(1.0, share * _AGE_SMOOTHING)
        for parameter, group in self._present():
            gradient = penalised(parameter, group)
            total = current.sums.get(parameter)
            if total is None:
                total = current.sums[parameter] = gradient * share
            else:
                total.add_(gradient, alpha=share)
            mean = _expected_mean(total / current.share, gradient, share=share) if rule.scale is not None else total
            state = self._optimizer.state[parameter]
            rule.move(parameter, gradient, mean, state, group, weight, self._past)
        if current.share >= _WHOLE:
            self.end_round()

    @torch.no_grad()
    def end_round(self) -> None:
        """Take what has come of the round under way into the state; without any it stays as it is."""
        current, self._round = self._round, _Round()
        if not current.sums:
            return
        assert self._rule is not None
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in current.sums:
                    mean = current.sums[parameter].div_(current.share)
                    state = self._optimizer.state[parameter]
                    self._rule.advance(parameter, mean, state, group, current.share, self._past)
        self._past.rounds += current.share

    def _present(self) -> Iterator[tuple[Tensor, Group]]:
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    yield parameter, group

    @contextmanager
    def _scaled(self, weight: float, *, decays: float = 1.0) -> Iterator[None]:
        """Multiply learning rates by ``weight`` within this context, and decay by a part of a step's."""
        groups = self._optimizer.param_groups
        before = [dict(group) for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * weight
            if decays != 1.0:
                group.update({key: group[key] ** decays for key in _DECAYS if group.get(key)})
                if "betas" in group:
                    group["betas"] = tuple(beta**decays for beta in group["betas"])
        try:
            yield
        finally:
            for group, options in zip(groups, before, strict=True):
                group.update(options)


def _expected_mean(mean: Tensor, gradient: Tensor, *, share: float) -> Tensor:
    """Return the round's mean so far, and no nearer to zero than chance will leave it."""
    least = gradient * math.sqrt(min(1.0, share))
    return torch.where(mean.abs() >= least.abs(), mean, least)
