"""Local SGD on the collective exchange: ranks step on their own, and their parameters are averaged every period.

With delay 0 an averaging blocks (Stich 2019). With delay d the all-reduce of the parameters x taken at clock c runs
behind the next d steps; when step c + d is done, what it found, mean(x) - x, is added, so the progress made meanwhile
is kept (overlapped averaging, as in Wang et al. 2020, "Overlap Local-SGD", without their anchor model). Floating-point
buffers are averaged with the parameters.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from plesio.policies import Policy
from plesio.runtime.exchange.exchange import Gauge, Progress, Refusal, SharedState, SnapshotTaker
from plesio.runtime.exchange.group import Group, Work
from plesio.runtime.exchange.replica import Replica, State
from plesio.runtime.timeline import Timeline

__all__ = ["AveragingExchange"]

_Named = tuple[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Averaging:
    """One averaging under way: a flat tensor for each dtype."""

    started: Progress
    sent: list[torch.Tensor]
    sums: list[torch.Tensor]
    works: list[Work]


class AveragingExchange:
    """Averages parameters every ``policy.period`` steps and merges the mean ``policy.delay`` steps later.

    Args:
        replica: Equal on all ranks when the exchange is built.
        policy: Says when.
        group: The ranks.
        timeline: Where blocked spans go.
        refuse: Called when this rank's gradient is not finite; its local step is left out, nobody else is touched.
        snapshots: Kept on rank 0, each at the next averaging.
        gauge: Shown this rank's own gradients; None for a policy that never adapts.
    """

    ready_s: float | None = None

    def __init__(
        self,
        replica: Replica,
        *,
        policy: Policy,
        group: Group,
        timeline: Timeline,
        refuse: Refusal,
        snapshots: SnapshotTaker,
        gauge: Gauge | None = None,
    ) -> None:
        self._replica = replica
        self._policy = policy
        self._group = group
        self._timeline = timeline
        self._refuse = refuse
        self._leads = group.rank == 0
        self._num_workers = group.size
        self._snapshots = snapshots
        self.share = 1.0
        """What this rank's parameters count in the mean; the ranks' shares add up to their number."""
        self._gauge = gauge
        self._pending: _Averaging | None = None
        self._latest: Progress | None = None
        self._averaged_clock = 0
        self._groups = _by_dtype([(name, tensor) for name, tensor, _, _ in replica.tensors()])

    def step(self, progress: Progress) -> None:
        """Step locally, then merge and start the averagings that are due."""
        if self._gauge is not None:
            self._gauge.measure([p.grad for p in self._replica.parameters.values() if p.grad is not None])
        if self._replica.gradients_finite():
            self._replica.optimizer.step()
        else:
            self._refuse(progress.clock, "not_finite")
        self._replica.optimizer.zero_grad(set_to_none=True)
        self.stepped(progress)

    def stepped(self, progress: Progress) -> None:
        """The replica has made its step: merge and start the averagings that are due."""
        self._latest = progress
        merges = self._policy.merges_at(progress.clock)
        if merges is not None and merges < progress.clock:
            self._merge()
        if self._policy.exchanges_at(progress.clock):
            self._start(progress)
            if merges == progress.clock:
                self._merge()

    @torch.no_grad()
    def _start(self, progress: Progress) -> None:
        sent = [torch.cat([tensor.reshape(-1) for _, tensor in group]) for group in self._groups]
        sums = [flat * self.share for flat in sent]
        works = [self._group.all_reduce(flat) for flat in sums]
        self._pending = _Averaging(progress, sent, sums, works)

    @torch.no_grad()
    def _merge(self) -> None:
        if self._pending is None:
            return
        averaging, self._pending = self._pending, None
        begun_s = self._timeline.now_s()
        for work in averaging.works:
            work.wait()
        started = averaging.started
        if self._gauge is not None:
            self._gauge.exchanged(started.clock, took_s=max(work.took_s() for work in averaging.works))
        # without steps since, the mean itself is taken: replicas are then equal to the bit
        stepped_since = self._latest is not None and self._latest.clock != started.clock
        self._timeline.blocked(begun_s, self._timeline.now_s(), clock=started.clock)
        for group, sent, total in zip(self._groups, averaging.sent, averaging.sums, strict=True):
            mean = total.div_(self._num_workers)  # sum, then divide
            for (_, tensor), before, after in zip(group, _parts(group, sent), _parts(group, mean), strict=True):
                if stepped_since:
                    tensor.add_(after - before)
                else:
                    tensor.copy_(after)
        self._averaged_clock = started.clock
        self._snapshots.offer(started.global_samples, at_s=started.at_s, state=lambda: self._state(averaging.sums))

    def _state(self, means: Sequence[torch.Tensor]) -> State:
        """The averaged tensors by name; what is not averaged (integer buffers) from this rank."""
        state = self._replica.state()
        for group, mean in zip(self._groups, means, strict=True):
            for (name, _), part in zip(group, _parts(group, mean), strict=True):
                state[name] = part.to("cpu", copy=True)
        return state

    def accumulating(self) -> nullcontext[None]:
        """Gradients stay on the rank anyhow."""
        return nullcontext()

    def admitted_at(self, clock: int) -> None:
        """Never rests: all ranks have equally many batches."""

    @torch.no_grad()
    def shared(self) -> State | None:
        """The mean of the replicas as they are now (a collective of its own); rank 0 gets it, the replicas stay."""
        means = [torch.cat([tensor.reshape(-1) for _, tensor in group]) for group in self._groups]
        for flat in means:
            self._group.all_reduce(flat).wait()
            flat.div_(self._num_workers)
        return self._state(means) if self._leads else None

    def settle(self) -> None:
        """Make all replicas equal, and equal to their mean. All workers call it after the same step."""
        self.finish()

    def finish(self) -> None:
        """Merge what is under way, and average once more if steps were made since it began."""
        self._merge()
        latest = self._latest
        if latest is not None and latest.clock != self._averaged_clock:
            self._start(latest)
            self._merge()

    def snapshots(self) -> list[SharedState]:
        """The snapshots taken since the last call (rank 0)."""
        return self._snapshots.take()

    def close(self) -> None:
        """Forget what is under way."""
        self._pending = None


def _by_dtype(tensors: Sequence[_Named]) -> list[list[_Named]]:
    groups: dict[torch.dtype, list[_Named]] = {}
    for name, tensor in tensors:
        groups.setdefault(tensor.dtype, []).append((name, tensor))
    return list(groups.values())


def _parts(group: Sequence[_Named], flat: torch.Tensor) -> list[torch.Tensor]:
    """``flat`` cut into the shapes of the group's tensors, sharing its memory."""
    sizes = [tensor.numel() for _, tensor in group]
    return [part.view_as(tensor) for part, (_, tensor) in zip(torch.split(flat, sizes), group, strict=True)]
