"""Local SGD on the collective exchange: ranks step on their own, and their parameters are averaged every period.

With delay 0 an averaging blocks (Stich 2019). With delay d the all-reduce of the parameters x taken at clock c runs
behind the next d steps; when step c + d is done, what it found, mean(x) - x, is added, so the progress made meanwhile
is kept (overlapped averaging, as in Wang et al. 2020, "Overlap Local-SGD", without their anchor model). Floating-point
buffers are averaged with the parameters.

Moments of the mean (`mean_moments`) need to know how far all came on average: then deltas are averaged as well.

With a compression, or short local steps and an `OuterStep`, what is averaged is how far the parameters have come since
the last mean (`replica_mean`). Buffers are averaged as they are, in full: a running average that is sent late and added
up overshoots what it averages. At the end, or when another policy follows, everything is sent in full, so that nothing
is kept back.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from plesio.policies import Policy
from plesio.runtime.worker.compression import CompressedReducer
from plesio.runtime.worker.compression.records import CompressionRecords
from plesio.runtime.worker.exchange.exchange import (
    CollectiveExchange,
    HeldSteps,
    Participant,
    SharedState,
    StepProgress,
)
from plesio.runtime.worker.exchange.flat import flat_of, parts_of
from plesio.runtime.worker.exchange.group import Summing, takes_blame
from plesio.runtime.worker.exchange.mean_moments import MeanMoments
from plesio.runtime.worker.exchange.outer_step import OuterStep
from plesio.runtime.worker.exchange.rack_reducer import RackReducer
from plesio.runtime.worker.exchange.replica import State
from plesio.runtime.worker.exchange.replica_mean import DeltaMean, Named, ParameterMean, Reducer, ReplicaMean

__all__ = ["AveragingExchange", "DeltaAveraging", "ReducerMaker"]

ReducerMaker = Callable[[Sequence[torch.Size]], CompressedReducer | RackReducer]
"""Makes what compresses flat deltas of tensors of these shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaAveraging:
    """How deltas are averaged, where it is not the parameters themselves that are.

    Attributes:
        make_reducer: Makes what compresses deltas, for each dtype; None sends everything.
        outer: Makes the step of a mean of deltas, by dtype; it is the mean itself where there is none.
        moments: Keeps the optimizer's state what it would be of the mean gradient; None leaves it alone.
    """

    make_reducer: ReducerMaker | None
    outer: Mapping[torch.dtype, OuterStep]
    moments: MeanMoments | None


class AveragingExchange(CollectiveExchange):
    """Averages parameters every ``policy.period`` steps and merges the mean ``policy.delay`` steps later.

    Local steps take the policy's share of the learning rate.

    Args:
        own: Its snapshots are each taken at the next averaging.
        group: The ranks, or racks whose ranks bring equal tensors.
        deltas: How deltas of parameters are averaged; None averages the parameters themselves.
    """

    def __init__(self, own: Participant, *, policy: Policy, group: Summing, deltas: DeltaAveraging | None) -> None:
        self._replica = replica = own.replica
        self._timeline = own.timeline
        self._snapshots, self._gauge = own.snapshots, own.gauge
        self._policy = policy
        self._group = group
        self._leads = group.rank == 0
        self._share = 1.0
        self._pending: StepProgress | None = None
        """When the averaging under way was begun."""
        self._latest: StepProgress | None = None
        self._averaged_clock = 0
        self._started_s = 0.0
        self._num_steps = 0
        """Since the last averaging was begun."""
        self._moments = None if deltas is None else deltas.moments
        self._records: CompressionRecords | None = None
        self._means: list[ReplicaMean] = []
        # buffers are averaged as they are; with deltas, the exchange must know when the script sets the replica anew
        if deltas is None:
            self._average([(name, tensor) for name, tensor, _, _ in replica.tensors.exchanged()])
        else:
            self._average_deltas(deltas)
            replica.held_by(self)
            self._average([(name, tensor) for name, tensor, kind, _ in replica.tensors.exchanged() if kind == "buffer"])

    def gathered(self) -> AbstractContextManager[None]:
        # between two averagings the replica holds all there is of the shared state
        return nullcontext()

    def replaced(self) -> None:
        for mean in self._means:
            if isinstance(mean, DeltaMean):
                mean.begin()

    def held_steps(self) -> HeldSteps | None:
        return None if self._latest is None else HeldSteps(settled=self._averaged_clock, counted=self._latest.clock)

    def units(self) -> list[int]:
        return list(range(self._group.size))

    def count_as(self, share: float) -> None:
        """Set the weight of this rank's parameters; the ranks' shares add up to their number."""
        self._share = share

    def _average(self, tensors: Sequence[Named]) -> None:
        self._means += [ParameterMean(named, group=self._group) for named in _by_dtype(tensors)]

    def _average_deltas(self, deltas: DeltaAveraging) -> None:
        compressed: list[CompressedReducer | RackReducer] = []
        for named in _by_dtype(
            [(name, p) for name, p, kind, _ in self._replica.tensors.exchanged() if kind == "parameter"]
        ):
            reducer: Reducer | None = None
            if deltas.make_reducer is not None:
                compressed.append(reducer := deltas.make_reducer([tensor.shape for _, tensor in named]))
            dtype = named[0][1].dtype
            self._means.append(
                DeltaMean(
                    named,
                    reducer=reducer,
                    outer=deltas.outer.get(dtype) or OuterStep(inner_rate=1.0, momentum=0.0),
                    group=self._group,
                    met=self._met,
                )
            )
        if compressed:
            self._records = CompressionRecords(compressed, timeline=self._timeline)

    def _met(self, named: Sequence[Named], progress: torch.Tensor) -> None:
        """Correct the moments by how far the workers have come on average since they met last."""
        if self._moments is not None:
            of = zip(named, parts_of(progress, [tensor for _, tensor in named]), strict=True)
            self._moments.met({self._replica.parameters[name]: part for (name, _), part in of})

    def step(self, progress: StepProgress) -> None:
        if self._finite():
            with self._replica.stepper.scaled_rate(self._policy.inner_rate):
                self._replica.stepper.step()
        else:
            self._timeline.refuse(progress.clock, self._replica.refusal(progress.loss))
        self._replica.optimizer.zero_grad(set_to_none=True)
        self.stepped(progress)

    def _finite(self) -> bool:
        if self._gauge is None:
            return self._replica.gradients_finite()
        return self._gauge.measure(self._replica.gradients())

    def stepped(self, progress: StepProgress) -> None:
        self._latest = progress
        self._num_steps += 1
        merges = self._policy.merges_at(progress.clock)
        if merges is not None and merges < progress.clock:
            self._merge()
        if self._policy.exchanges_at(progress.clock):
            self._start(progress)
            if merges == progress.clock:
                self._merge()

    @torch.no_grad()
    def _start(self, progress: StepProgress, *, in_full: bool = False) -> None:
        self._started_s = self._timeline.now_s()
        for mean in self._means:
            mean.start(clock=progress.clock, num_steps=max(1, self._num_steps), share=self._share, in_full=in_full)
        if self._moments is not None:
            self._moments.begun()
        self._num_steps = 0
        self._pending = progress

    @torch.no_grad()
    def _merge(self) -> None:
        if self._pending is None:
            return
        started, self._pending = self._pending, None
        begun_s = self._timeline.now_s()
        took_s = [mean.wait() for mean in self._means]
        if self._policy.delay == 0:  # nothing but the exchange since it was begun
            took_s = [self._timeline.now_s() - self._started_s]
        known_s = [each_s for each_s in took_s if each_s is not None]
        if self._gauge is not None and len(known_s) == len(took_s):
            self._gauge.exchanged(started.clock, took_s=max(known_s))
        # without steps since, the mean itself is taken: replicas are then equal to the bit
        stepped_since = self._latest is not None and self._latest.clock != started.clock
        self._timeline.blocked(begun_s, self._timeline.now_s(), clock=started.clock)
        means = [mean.merge(stepped=stepped_since) for mean in self._means]
        self._averaged_clock = started.clock
        if any(mean.refused for mean in self._means):
            self._blame(started.clock)
        if self._records is not None:
            self._records.exchanged(started.clock)
        self._snapshots.offer(started.global_samples, at_s=started.at_s, state=lambda: self._state(means))

    def _blame(self, clock: int) -> None:
        guilty = not all(mean.sent_finite for mean in self._means)
        if takes_blame(self._group, guilty=guilty, device=self._replica.device):
            self._timeline.refuse(clock, "not_finite")

    def _state(self, means: Sequence[torch.Tensor]) -> State:
        """Return the averaged tensors by name; what is not averaged (integer buffers) comes from this rank."""
        state = self._replica.state()
        for mean, flat in zip(self._means, means, strict=True):
            for (name, _), part in zip(mean.named, parts_of(flat, mean.tensors), strict=True):
                state[name] = part.to("cpu", copy=True)
        return state

    @torch.no_grad()
    def shared(self) -> State | None:
        """Compute the mean of the replicas as they are now (a collective of its own) for rank 0; the replicas stay.

        Before the first step, and right after an averaging, all replicas are equal to the bit, and rank 0's own is the
        mean: at a run's end no worker waits here for one that is lost.
        """
        if self._latest is None or self._latest.clock == self._averaged_clock:
            return self._replica.state() if self._leads else None
        means = [flat_of(mean.tensors) for mean in self._means]
        for flat in means:
            self._group.all_reduce(flat).wait()
            flat.div_(self._group.size)
        return self._state(means) if self._leads else None

    def finish(self) -> None:
        self._merge()
        latest = self._latest
        kept_back = any(mean.kept_back for mean in self._means)
        if latest is not None and (latest.clock != self._averaged_clock or kept_back):
            self._start(latest, in_full=True)
            self._merge()
            if self._records is not None and kept_back:
                self._records.settled(latest.clock)

    def snapshots(self) -> list[SharedState]:
        return self._snapshots.take()

    def close(self) -> None:
        self._replica.held_by(None)
        self._pending = None
        if self._moments is not None:
            self._moments.close()
        if self._records is not None and self._latest is not None:
            self._records.close(self._latest.clock)


def _by_dtype(tensors: Sequence[Named]) -> list[list[Named]]:
    groups: dict[torch.dtype, list[Named]] = {}
    for name, tensor in tensors:
        groups.setdefault(tensor.dtype, []).append((name, tensor))
    return list(groups.values())
