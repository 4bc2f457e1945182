"""The exchange of a policy that adapts: one collective exchange after another, changed where all ranks are equal.

A worker reports to server 0 after the step that the last answer named, goes on, and does what the answer says after the
step from which it holds (`plesio.policies.adaptive.review`). A change happens there, on all ranks alike:

1. *settle*: what is under way is merged and all replicas become their mean; no step of anybody is lost;
2. where the next exchange needs it (BSP after local SGD) the optimizer's state becomes the mean over the ranks;
3. the next exchange is built, and `on_transition` is called.

Learning rates stay as they are: under every policy they are those of the synchronous step. So does momentum: each
replica's is that of its own steps, and their mean that of the mean gradient, which is what BSP would have had.

Going back (the guard's alarm): a state is known to be good one review after it was kept, so two are kept, and every
rank loads the older one. It was kept at one clock by all, perhaps between two averagings, so parameters and optimizer
state are then averaged. The copies take twice the memory of the parameters and the optimizer's state.
"""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from plesio.policies import Policy, Reviewed, Steer, parse_policy
from plesio.policies.adaptive import FIRST_CLOCK, FIRST_REVIEW
from plesio.runtime.exchange.collective import CollectiveExchanges
from plesio.runtime.exchange.exchange import Progress, SharedState
from plesio.runtime.exchange.group import Group
from plesio.runtime.exchange.replica import Replica, State
from plesio.runtime.exchange.state_copy import StateCopy, average_state
from plesio.runtime.monitor import StepMonitor
from plesio.runtime.rounds import RoundBook
from plesio.runtime.timeline import Timeline

__all__ = ["AdaptiveExchange", "Transition"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A change of policy in a running job.

    Attributes:
        clock: The last step under ``before``.
        before: The policy up to there.
        after: The policy from there on.
        restored: Whether the worker has gone back to an earlier state.
    """

    clock: int
    before: Policy
    after: Policy
    restored: bool


class AdaptiveExchange:
    """Runs the policies that the controller asks for.

    Args:
        replica: Equal on all ranks.
        group: The ranks.
        exchanges: Builds the exchange of each policy.
        first: The policy to begin with.
        monitor: Gathers reviews.
        rounds: This rank's; dealt in the shares that the controller asks for.
        timeline: Where waiting for an answer goes.
        report: Sends a review.
        answer: Waits for the answer to the last review.
        on_transition: Called after every change, with the optimizer, on every worker.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        group: Group,
        exchanges: CollectiveExchanges,
        first: Policy,
        monitor: StepMonitor,
        rounds: RoundBook,
        timeline: Timeline,
        report: Callable[[Reviewed], None],
        answer: Callable[[], Steer],
        on_transition: Callable[[Transition, torch.optim.Optimizer], None] | None,
    ) -> None:
        self._replica = replica
        self._group = group
        self._exchanges = exchanges
        self._monitor = monitor
        self._rounds = rounds
        self._timeline = timeline
        self._report = report
        self._answer = answer
        self._on_transition = on_transition
        self._policy = first
        self._shares: tuple[float, ...] = ()
        self._review, self._holds = FIRST_REVIEW, FIRST_CLOCK
        self._kept: deque[StateCopy] = deque(maxlen=2)
        self._current = exchanges.build(self._policy)

    @property
    def ready_s(self) -> float | None:
        """When this step's own gradient was complete, if it is being exchanged since then; else None."""
        return self._current.ready_s

    def step(self, progress: Progress) -> None:
        """Exchange as the policy in force says; report, and do as the answer says, when it is time."""
        self._current.step(progress)
        self._monitor.step(progress)
        if progress.clock == self._review:
            rate, momentum = self._replica.optimizer.param_groups[0]["lr"], self._replica.momentum
            self._report(self._monitor.take(progress.clock, learning_rate=rate, momentum=momentum))
        if progress.clock == self._holds:
            begun_s = self._timeline.now_s()
            steer = self._answer()
            self._timeline.wait(begun_s, self._timeline.now_s(), clock=progress.clock)
            assert steer.clock == progress.clock, f"an answer for clock {steer.clock} at clock {progress.clock}"
            self._follow(steer)

    def _follow(self, steer: Steer) -> None:
        self._review, self._holds = steer.next_review, steer.next_clock
        policy = parse_policy(steer.policy)
        restored = steer.restore and bool(self._kept)
        if steer.shares != self._shares:
            self._rounds.change(steer.shares)
            self._shares = steer.shares
            self._current.share = self._share
        if policy != self._policy or restored:
            self._change(policy, steer, restored=restored)
        if steer.keep:
            self._kept.append(StateCopy(self._replica))

    def _change(self, policy: Policy, steer: Steer, *, restored: bool) -> None:
        before, self._policy = self._policy, policy
        self._current.settle()
        self._current.close()
        if restored:
            self._kept[0].restore()
            self._kept = deque([self._kept[0]], maxlen=2)
        if restored or (before.update == "delta" and policy.update == "gradient"):
            begun_s = self._timeline.now_s()
            if not average_state(self._replica, self._group, parameters=restored):
                self._timeline.meter.totals.fallbacks.append(
                    f"at step {steer.clock} the optimizer's state was dropped: not all workers had one"
                )
            self._timeline.blocked(begun_s, self._timeline.now_s(), clock=steer.clock)
        self._current = self._exchanges.build(policy)
        self._current.share = self._share
        self._monitor.forget()
        self._timeline.event("steer", at_s=self._timeline.now_s(), clock=steer.clock, policy=steer.policy)
        if self._on_transition is not None:
            transition = Transition(clock=steer.clock, before=before, after=policy, restored=restored)
            self._on_transition(transition, self._replica.optimizer)

    @property
    def _share(self) -> float:
        """What this rank's parameters count in a mean; 1 where all count alike."""
        return self._shares[self._group.rank] * self._group.size if self._shares else 1.0

    def accumulating(self) -> AbstractContextManager[None]:
        """Backward passes in this context only add to the gradient."""
        return self._current.accumulating()

    def admitted_at(self, clock: int) -> None:
        """Never rests: all ranks have equally many batches."""

    def shared(self) -> State | None:
        """The shared parameters now, on rank 0."""
        return self._current.shared()

    def finish(self) -> None:
        """Contribute what is still held back."""
        self._current.finish()

    def snapshots(self) -> list[SharedState]:
        """The snapshots taken since the last call (rank 0)."""
        return self._current.snapshots()

    def close(self) -> None:
        """Let go of the model."""
        self._current.close()
        self._kept.clear()
