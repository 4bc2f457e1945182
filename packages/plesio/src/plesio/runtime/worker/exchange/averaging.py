"""Local SGD on the collective exchange: ranks step on their own, and their parameters are averaged every period.

With delay 0 an averaging blocks (Stich 2019). With delay d the all-reduce of the parameters x taken at clock c runs
behind the next d steps; when step c + d is done, what it found, mean(x) - x, is added, so the progress made meanwhile
is kept (overlapped averaging, as in Wang et al. 2020, "Overlap Local-SGD", without their anchor model). Floating-point
buffers are averaged with the parameters.

Moments of the mean (`mean_moments`) need to know how far all came on average: then deltas are averaged as well.

With a compression, or an `OuterStep`, what is averaged is how far the parameters have come since the last mean
(`replica_mean`). So it is under DiLoCo, where what workers share is what the outer steps have made; there parameters
may be in *fragments*, which are averaged in turn. A rank of an island compresses its own part: what it holds alike with
the same other ranks by itself, so that it stays alike. Buffers are averaged as they are, in full, with the first
fragment: a running average that is sent late and added up overshoots what it averages. At the end, or when another
policy follows, everything is sent in full, so that nothing is kept back.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plesio.policies import Policy
from plesio.policies.compression import NO_COMPRESSION
from plesio.runtime.worker.compression import CompressedReducer
from plesio.runtime.worker.compression.records import CompressionRecords
from plesio.runtime.worker.exchange.exchange import (
    CollectiveExchange,
    HeldSteps,
    Participant,
    SharedState,
    StepProgress,
)
from plesio.runtime.worker.exchange.flat import parts_of
from plesio.runtime.worker.exchange.fragments import check_fragments, fragments_of
from plesio.runtime.worker.exchange.group import Summing, takes_blame
from plesio.runtime.worker.exchange.island_parts import Holders
from plesio.runtime.worker.exchange.local_part import local_part
from plesio.runtime.worker.exchange.mean_moments import MeanMoments
from plesio.runtime.worker.exchange.outer_step import OuterStep
from plesio.runtime.worker.exchange.rack_reducer import RackReducer
from plesio.runtime.worker.exchange.replica import State
from plesio.runtime.worker.exchange.replica_mean import DeltaMean, JoinedReducers, Named, ParameterMean, ReplicaMean

ReducerMaker = Callable[[Sequence[torch.Size]], CompressedReducer | RackReducer]
"""Makes what compresses flat deltas of tensors of these shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaAveraging:
    """How deltas are averaged, where it is not the parameters themselves that are.

    Attributes:
        make_reducer: Makes what compresses deltas, for each dtype; None sends everything.
        outer: Makes the step of a mean of deltas, of each fragment by dtype; none where it is the mean itself.
        moments: Keeps the optimizer's state what it would be of the mean gradient; None leaves it alone.
    """

    make_reducer: ReducerMaker | None
    outer: Sequence[Mapping[torch.dtype, OuterStep]]
    moments: MeanMoments | None


@dataclass(slots=True)
class _Fragment:
    """Tensors that are averaged at one time.

    Attributes:
        num_steps: Steps since the last averaging was begun.
        settled: Clock up to which they hold what all workers have done.
    """

    means: list[ReplicaMean] = field(default_factory=list)
    num_steps: int = 0
    settled: int = 0

    @property
    def kept_back(self) -> bool:
        return any(mean.kept_back for mean in self.means)


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
        self._halfway = None if policy.compression == NO_COMPRESSION else -(-policy.delay // 2)
        """Steps after which the second of two collectives of an exchange begins; None where there is one."""
        self._group = group
        self._leads = group.rank == 0
        self._share = 1.0
        self._pending: tuple[StepProgress, Sequence[_Fragment]] | None = None
        """The averaging under way: when it was begun, and of what."""
        self._latest: StepProgress | None = None
        self._started_s = 0.0
        self._moments = None if deltas is None else deltas.moments
        self._records: CompressionRecords | None = None
        self._fragments = [_Fragment() for _ in range(policy.fragments)]
        # buffers are averaged as they are; with deltas, the exchange must know when the script sets the replica anew
        if deltas is None:
            self._average([(name, local_part(tensor)) for name, tensor, _, _ in replica.tensors.exchanged()])
        else:
            self._average_deltas(deltas)
            replica.held_by(self)
            self._average([(name, tensor) for name, tensor, kind, _ in replica.tensors.exchanged() if kind == "buffer"])

    @property
    def _means(self) -> list[ReplicaMean]:
        return [mean for fragment in self._fragments for mean in fragment.means]

    @property
    def _settled(self) -> int:
        return min(fragment.settled for fragment in self._fragments)

    def gathered(self) -> AbstractContextManager[None]:
        # between two averagings the replica holds all there is of the shared state
        return nullcontext()

    def replaced(self) -> None:
        for mean in self._means:
            if isinstance(mean, DeltaMean):
                mean.begin()

    def held_steps(self) -> HeldSteps | None:
        return None if self._latest is None else HeldSteps(settled=self._settled, counted=self._latest.clock)

    def units(self) -> list[int]:
        return list(range(self._group.size))

    def count_as(self, share: float) -> None:
        self._share = share

    def _average(self, tensors: Sequence[Named]) -> None:
        self._fragments[0].means += [ParameterMean(named, group=self._group) for named in _by_dtype(tensors)]

    def _average_deltas(self, deltas: DeltaAveraging) -> None:
        parameters = [(name, p) for name, p, kind, _ in self._replica.tensors.exchanged() if kind == "parameter"]
        check_fragments(self._policy, num_tensors=len(parameters))
        compressed: list[CompressedReducer | RackReducer] = []
        island = self._replica.island
        holders = None if island is None else Holders.of(self._replica.parameters, island)
        places = fragments_of([p.numel() for _, p in parameters], num_fragments=len(self._fragments))
        for number, fragment in enumerate(self._fragments):
            outer = deltas.outer[number] if deltas.outer else {}
            own = [(name, local_part(p)) for name, p in (parameters[place] for place in places[number])]
            for named in _by_dtype(own):
                together = [named] if holders is None else _grouped(named, holders.first)
                reducer = None
                if deltas.make_reducer is not None:
                    parts = [deltas.make_reducer([tensor.shape for _, tensor in group]) for group in together]
                    sizes = [sum(tensor.numel() for _, tensor in group) for group in together]
                    reducer = JoinedReducers(parts, sizes)
                    compressed += parts
                fragment.means.append(
                    DeltaMean(
                        [one for group in together for one in group],
                        reducer=reducer,
                        outer=outer.get(named[0][1].dtype),
                        own_share=self._policy.own_share,
                        averages=self._policy.merge,
                        group=self._group,
                        met=self._met,
                        holders=holders,
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
        for fragment in self._fragments:
            fragment.num_steps += 1
        merges = self._policy.merges_at(progress.clock)
        if merges is not None and merges < progress.clock:
            self._merge()
        elif self._pending and self._halfway and progress.clock == self._pending[0].clock + self._halfway:
            self._go_on()
        if self._policy.exchanges_at(progress.clock):
            self._start(progress, [self._fragments[number] for number in self._policy.fragments_at(progress.clock)])
            if merges == progress.clock:
                self._merge()

    @torch.no_grad()
    def _start(self, progress: StepProgress, fragments: Sequence[_Fragment], *, in_full: bool = False) -> None:
        self._started_s = self._timeline.now_s()
        for fragment in fragments:
            for mean in fragment.means:
                mean.start(clock=progress.clock, num_steps=fragment.num_steps, share=self._share, in_full=in_full)
            fragment.num_steps = 0
        if self._moments is not None:
            self._moments.begun()
        self._pending = progress, fragments

    @torch.no_grad()
    def _go_on(self) -> None:
        """Begin the second halves of the means under way, so that these go on behind steps too."""
        assert self._pending is not None, "begun"
        started, fragments = self._pending
        begun_s = self._timeline.now_s()
        for fragment in fragments:
            for mean in fragment.means:
                mean.go_on()
        self._timeline.blocked(begun_s, self._timeline.now_s(), clock=started.clock)

    @torch.no_grad()
    def _merge(self) -> None:
        if self._pending is None:
            return
        (started, fragments), self._pending = self._pending, None
        under_way = [mean for fragment in fragments for mean in fragment.means]
        begun_s = self._timeline.now_s()
        took_s = [mean.wait() for mean in under_way]
        if self._policy.delay == 0:  # nothing but the exchange since it was begun
            took_s = [self._timeline.now_s() - self._started_s]
        known_s = [each_s for each_s in took_s if each_s is not None]
        if self._gauge is not None and len(known_s) == len(took_s):
            self._gauge.exchanged(started.clock, took_s=max(known_s))
        # without steps since, the mean itself is taken: replicas are then equal to the bit
        stepped_since = self._latest is not None and self._latest.clock != started.clock
        self._timeline.blocked(begun_s, self._timeline.now_s(), clock=started.clock)
        found = {id(mean): mean.merge(stepped=stepped_since) for mean in under_way}
        for fragment in fragments:
            fragment.settled = started.clock
        if any(mean.refused for mean in under_way):
            self._blame(started.clock, under_way)
        if self._records is not None:
            self._records.exchanged(started.clock)
        self._snapshots.offer(started.global_samples, at_s=started.at_s, state=lambda: self._state(found))

    def _blame(self, clock: int, means: Sequence[ReplicaMean]) -> None:
        guilty = not all(mean.sent_finite for mean in means)
        if takes_blame(self._group, guilty=guilty, device=self._replica.device):
            self._timeline.refuse(clock, "not_finite")

    def _state(self, found: Mapping[int, Tensor]) -> State:
        """Return the averaged tensors by name; what is not averaged (integer buffers) comes from this rank."""
        state = self._replica.state()
        for mean in self._means:
            flat = found.get(id(mean), mean.base if isinstance(mean, DeltaMean) else None)
            if flat is None:
                continue
            for (name, _), part in zip(mean.named, parts_of(flat, mean.tensors), strict=True):
                state[name] = part.to("cpu", copy=True)
        return state

    @torch.no_grad()
    def shared(self) -> State | None:
        """Return what outer steps have made, or else compute the mean of the replicas as they are now, for rank 0.

        A mean is a collective of its own; the replicas stay. Before the first step, and right after an averaging, all
        replicas are equal to the bit, and rank 0's own is the mean: at a run's end no worker waits here for one that is
        lost.
        """
        if self._latest is None or self._latest.clock == self._settled:
            return self._replica.state() if self._leads else None
        if self._leads and self._policy.own_share is not None and not any(one.settled for one in self._fragments):
            self._timeline.meter.warn(
                f"{self._policy.spec}: no round was over when it was evaluated, so the parameters were those of the "
                "start; merge more often, or evaluate later"
            )
        found = {id(mean): mean.shared() for mean in self._means}
        return self._state(found) if self._leads else None

    def finish(self) -> None:
        self._merge()
        latest = self._latest
        if latest is None:
            return
        kept_back = any(fragment.kept_back for fragment in self._fragments)
        left = [one for one in self._fragments if one.settled != latest.clock or one.kept_back]
        if left:
            self._start(latest, left, in_full=True)
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
    return _grouped(tensors, {name: tensor.dtype for name, tensor in tensors})


def _grouped(tensors: Sequence[Named], kinds: Mapping[str, Hashable]) -> list[list[Named]]:
    groups: dict[Hashable, list[Named]] = {}
    for name, tensor in tensors:
        groups.setdefault(kinds[name], []).append((name, tensor))
    return list(groups.values())
