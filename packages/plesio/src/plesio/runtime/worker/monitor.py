"""A worker's notes of each step for its next review, under a policy that adapts.

A sampled gradient is read once, for its squared norm and its sketch: every number is multiplied by a random sign and
added to one of m sums (a count sketch whose buckets are the positions modulo m). The signs are the same on all ranks
and for the whole run, so differences and inner products of sketches estimate those of the gradients. A review also has
the sketch of the parameters: its change since the last review shows how far training has come.

Every gradient's norm is taken, which also shows whether it is finite, and an extraordinary one is scaled down before it
is applied or sent (`adaptive.spike`). A gradient in several pieces (DDP's buckets) is judged piece by piece,
because the first is under way before the last is known. The loss is known in time for the next step: while it is
extraordinary, the gradient counts as if it were, too.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import msgspec
import torch

from plesio.core.records import from_values, to_values
from plesio.policies import Reviewed
from plesio.policies.adaptive.spike import SpikeDetector
from plesio.runtime.worker.exchange.exchange import StepProgress
from plesio.runtime.worker.meter import WorkerTimeline
from plesio.runtime.worker.rounds import RoundRecords

SIGNS_SEED = 20_261
SKETCH = 64
"""Numbers in a sketch of a gradient."""
SAMPLE_EVERY = 32
"""Length of the stretches of steps, in each of which the first two gradients are sampled: 6 % of steps."""
RISE = 0.1
"""Share by which the loss is above that of the last review, if the losses of single steps are reported."""
LEARNING = 64
"""Steps in which the guard learns what is usual, and has no use for the losses of single steps."""


class Sketch:
    """The sketch of one gradient, put together from parts that come in the same order on all ranks, in all steps."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._signs: torch.Tensor | None = None
        self.begin()

    def begin(self) -> None:
        self._norm_sq = 0.0
        self._sums: torch.Tensor | None = None
        self._position = 0

    @torch.no_grad()
    def add(self, part: torch.Tensor) -> None:
        """Add the next part, which is flat."""
        part = part.detach().to(torch.float32)
        begin, end = self._position, self._position + part.numel()
        signs = self._signs_for(end, device=part.device)
        rows = -(-part.numel() // self._size)
        padded = torch.empty(rows * self._size, device=part.device)
        torch.mul(part, signs[begin:end], out=padded[: end - begin])
        padded[end - begin :] = 0.0
        sums = padded.view(rows, self._size).sum(0)
        self._put(sums, norm_sq=float(torch.dot(part, part)), end=end)

    @torch.no_grad()
    def add_rows(self, part: torch.Tensor) -> None:
        """Add the next part, which is sparse and coalesced: like `add` of it made dense, but only its rows are read."""
        values = part.values().to(torch.float32)
        end = self._position + part.numel()
        strides = torch.tensor([part.shape[dim + 1 :].numel() for dim in range(part.sparse_dim())])
        firsts = (part.indices() * strides.to(part.device)[:, None]).sum(0)
        width = part.shape[part.sparse_dim() :].numel()
        places = (firsts[:, None] + torch.arange(width, device=part.device)).reshape(-1)
        signs = self._signs_for(end, device=part.device)[self._position + places]
        flat = values.reshape(-1)
        sums = torch.zeros(self._size, device=part.device).index_add_(0, places % self._size, flat * signs)
        self._put(sums, norm_sq=float(torch.dot(flat, flat)), end=end)

    def _put(self, sums: torch.Tensor, *, norm_sq: float, end: int) -> None:
        self._sums = sums if self._sums is None else self._sums + sums
        self._norm_sq += norm_sq
        self._position = end

    @torch.no_grad()
    def of(self, parts: Sequence[torch.Tensor]) -> tuple[float, ...]:
        """Return the sketch of all the parts together; what has been added is left alone."""
        padding = torch.zeros(self._size - sum(part.numel() for part in parts) % self._size, device=parts[0].device)
        signed = _flat([*parts, padding])  # never a part itself: there is always some padding
        signed.mul_(self._signs_for(signed.numel(), device=signed.device)[: signed.numel()])
        return tuple(signed.view(-1, self._size).sum(0).tolist())

    def _signs_for(self, count: int, *, device: torch.device) -> torch.Tensor:
        if self._signs is None or self._signs.numel() < count or self._signs.device != device:
            generator = torch.Generator().manual_seed(SIGNS_SEED)
            self._signs = (torch.randint(0, 2, (count,), generator=generator).float() * 2 - 1).to(device)
        return self._signs

    def take(self) -> tuple[float, ...]:
        """Return the squared norm, and then the sketch; nothing if no part came."""
        return () if self._sums is None else (self._norm_sq, *self._sums.tolist())


class _Seen(msgspec.Struct, kw_only=True, rename=lambda name: f"_{name}"):
    """Figures that a checkpoint keeps of a monitor: those since the last review, and what is usual.

    Attributes:
        spikes_in_loss: None where nothing is extraordinary.
        norms: The detector of each piece of a gradient, by its place and its size.
        suspect: Whether the latest loss was extraordinary.
        factor: The least that a piece of this step's gradient was multiplied by.
        is_finite: Whether what is known of this step's gradient and loss is finite, or an overflow of a scaled loss.
        sparse_bytes: Bytes of each step with sparse gradients; `Reviewed.sparse_bytes` is their mean.
    """

    spikes_in_loss: SpikeDetector | None
    norms: dict[tuple[int, int], SpikeDetector] = msgspec.field(default_factory=dict)
    suspect: bool = False
    num_pieces: int = 0
    factor: float = 1.0
    is_finite: bool = True
    num_refused: int = 0
    num_clipped: int = 0
    num_clipped_before: int = 0
    first_clipped: int = 0
    clock: int = 0
    samples: list[int] = msgspec.field(default_factory=list)
    compute_s: list[float] = msgspec.field(default_factory=list)
    blocked_s: list[float] = msgspec.field(default_factory=list)
    losses: list[float] = msgspec.field(default_factory=list)
    gradients: list[tuple[float, ...]] = msgspec.field(default_factory=list)
    sparse_bytes: list[tuple[float, ...]] = msgspec.field(default_factory=list)
    exchanges: list[tuple[float, float]] = msgspec.field(default_factory=list)
    summed_rate: float = 0.0
    num_trained: int = 0
    progress: float = -1.0
    loss_before: float = math.inf


@dataclass(frozen=True, slots=True)
class WorkerTraits:
    """Facts about a worker that are the same in all its reviews.

    Attributes:
        can_push: Whether the store's servers could step for it.
        low_rank_share: `Reviewed.low_rank_share` of its model.
        scales_loss: True if its loss is scaled: a gradient that is not finite is an overflow then.
    """

    worker: int
    _: KW_ONLY
    rack: int = 0
    can_push: bool = False
    low_rank_share: float = 1.0
    scales_loss: bool = False


class StepMonitor:
    """Gathers a review.

    Args:
        guard: True if extraordinary gradients are found and scaled down.
        total_samples: Samples of the whole training, over all workers; None if it is unknown.
    """

    def __init__(
        self,
        traits: WorkerTraits,
        *,
        guard: bool,
        timeline: WorkerTimeline,
        rounds: RoundRecords,
        total_samples: int | None,
    ) -> None:
        self._traits, self._timeline, self._total_samples = traits, timeline, total_samples
        self._rounds = rounds
        self._sketch = Sketch(SKETCH)
        self._guard = guard
        self._seen = _Seen(spikes_in_loss=SpikeDetector() if guard else None)
        self._computed_s = timeline.meter.totals.compute_s
        self._exchanged_s = timeline.exchanged_s

    def weight(self, ranks: Sequence[int] | None) -> float:
        return self._rounds.weight(ranks)

    def measure(self, parts: Sequence[torch.Tensor], *, scale: float = 1.0) -> bool:
        """Look at some or all of this worker's own gradient of the step under way; see `Gauge.measure`."""
        if not parts:
            return True
        seen = self._seen
        dense, sparse = _apart(parts)
        if sparse:
            seen.sparse_bytes.append(_bytes_of(parts, sparse))
        if scale != 1.0:
            dense, sparse = [flat / scale for flat in dense], [(part / scale).coalesce() for part in sparse]
        values = dense + [_flat([part.values()]) for part in sparse]
        norm_sq = sum(torch.dot(flat, flat).item() for flat in values)
        if _is_sampled(seen.clock + 1):
            for flat in dense:
                self._sketch.add(flat)
            for part in sparse:
                self._sketch.add_rows(part)
        if not math.isfinite(norm_sq):
            seen.is_finite = seen.is_finite and self._traits.scales_loss
            return False
        if self._guard:
            place = seen.num_pieces, sum(part.numel() for part in parts)
            seen.num_pieces += 1
            if place not in seen.norms:
                seen.norms[place] = SpikeDetector()
            factor = seen.norms[place].judge(math.sqrt(norm_sq), suspect=seen.suspect)
            if factor < 1.0:
                self._scale_down(parts, factor)
        return True

    def _scale_down(self, parts: Sequence[torch.Tensor], factor: float) -> None:
        for part in parts:
            (part._values() if part.is_sparse else part.detach()).mul_(factor)
        self._seen.factor = min(self._seen.factor, factor)

    def exchanged(self, clock: int, *, took_s: float) -> None:
        self._seen.exchanges.append((float(clock), took_s))

    def step(self, progress: StepProgress, *, rate: float = 0.0) -> None:
        seen = self._seen
        seen.summed_rate += rate
        seen.clock = progress.clock
        if row := self._sketch.take():
            seen.gradients.append((float(progress.clock), *row))
            self._sketch.begin()
        computed_s, exchanged_s = self._timeline.meter.totals.compute_s, self._timeline.exchanged_s
        seen.samples.append(progress.samples)
        seen.compute_s.append(computed_s - self._computed_s)
        seen.blocked_s.append(exchanged_s - self._exchanged_s)
        self._computed_s, self._exchanged_s = computed_s, exchanged_s
        if progress.loss is not None:
            seen.losses.append(progress.loss)
            seen.suspect = seen.spikes_in_loss is not None and seen.spikes_in_loss.judge(progress.loss) < 1.0
            seen.is_finite = seen.is_finite and math.isfinite(progress.loss)
        seen.num_refused += not seen.is_finite
        seen.is_finite = True
        seen.num_pieces = 0
        if seen.factor < 1.0:
            self._clipped(progress.clock)
        if progress.global_samples is not None:
            seen.num_trained = progress.global_samples
        else:  # on the store: as if all trained as many; of the workers' reports the mean is right
            seen.num_trained += progress.samples * self._rounds.num_workers
        if self._total_samples is not None:
            seen.progress = min(1.0, seen.num_trained / self._total_samples)

    def _clipped(self, clock: int) -> None:
        seen = self._seen
        self._timeline.event("clip", at_s=self._timeline.now_s(), clock=clock, factor=seen.factor)
        seen.first_clipped = seen.first_clipped or clock
        seen.num_clipped += 1
        seen.factor = 1.0

    @property
    def clipped(self) -> str | None:
        seen = self._seen
        if not seen.num_clipped:
            return None
        return (
            f"worker {self._traits.worker} scaled down its gradient in {seen.num_clipped} steps, first in step "
            f"{seen.first_clipped}: it was far larger than in the steps before"
        )

    def own(self) -> dict[str, Any]:
        """Return what it has seen and not reported, and its figures of usual steps, as plain values."""
        return to_values(self._seen)

    def take_own(self, own: dict[str, Any]) -> None:
        self._seen = from_values(_unwrapped(own), _Seen)

    def forget(self) -> None:
        """Forget the times seen so far, which were under another setting, and the time of the change itself."""
        self._seen.samples, self._seen.compute_s, self._seen.blocked_s = [], [], []
        self._computed_s, self._exchanged_s = self._timeline.meter.totals.compute_s, self._timeline.exchanged_s

    def relearn(self) -> None:
        """Learn anew what is extraordinary: the data have changed."""
        assert self._guard, "no guard"
        self._seen.spikes_in_loss, self._seen.suspect = SpikeDetector(), False
        self._seen.norms.clear()

    def take(
        self,
        clock: int,
        *,
        learning_rate: float,
        momentum: float = 0.0,
        normalises: bool = False,
        accumulates: bool = False,
        shares_moments: bool = False,
        writes: bool = False,
        parameters: Sequence[torch.Tensor] = (),
    ) -> Reviewed:
        seen = self._seen
        # a refused step has no finite loss; infinity says that all were refused, NaN that the script gives none
        losses = [loss for loss in seen.losses if math.isfinite(loss)]
        loss = sum(losses) / len(losses) if losses else math.inf if seen.losses else math.nan
        before, seen.loss_before = seen.loss_before, loss
        leapt = self._guard and clock > LEARNING and loss - before > RISE * abs(before)
        review = Reviewed(
            worker=self._traits.worker,
            clock=clock,
            samples=tuple(seen.samples),
            compute_s=tuple(seen.compute_s),
            blocked_s=tuple(seen.blocked_s),
            loss=loss,
            losses=tuple(losses) if leapt and len(losses) == len(seen.samples) else (),
            learning_rate=float(learning_rate),
            momentum=momentum,
            normalises=normalises,
            accumulates=accumulates,
            shares_moments=shares_moments and not writes,
            num_refused=seen.num_refused,
            num_clipped=seen.num_clipped - seen.num_clipped_before,
            gradients=tuple(seen.gradients),
            exchanges=tuple(seen.exchanges),
            progress=seen.progress,
            rack=self._traits.rack,
            can_push=self._traits.can_push and not writes,
            writes=writes,
            position=self._sketch.of(parameters) if self._guard and parameters else (),
            summed_rate=seen.summed_rate,
            sparse_bytes=tuple(map(statistics.fmean, zip(*seen.sparse_bytes, strict=True))),
            low_rank_share=1.0 if writes else self._traits.low_rank_share,
        )
        # what is usual (norms, spikes) outlives the review, and so does the count of clipped steps for the user
        self.forget()
        seen.num_clipped_before, seen.num_refused = seen.num_clipped, 0
        seen.losses, seen.gradients, seen.exchanges, seen.sparse_bytes = [], [], [], []
        seen.summed_rate = 0.0
        return review


def _unwrapped(value: Any) -> Any:
    """Turn the values of older checkpoints, whose lists and tables carry the names of their types, into plain ones."""
    if isinstance(value, list):
        return [_unwrapped(one) for one in (value[1:] if value[:1] in (["tuple"], ["list"]) else value)]
    if not isinstance(value, dict):
        return value
    kind = value.get("kind of part")
    if kind == "table":
        return {tuple(key[1:]): _unwrapped(one) for key, one in value["items"]}
    if kind == "deque":
        return _unwrapped(value["items"])
    return {name: _unwrapped(one) for name, one in (value if kind is None else value["values"]).items()}


def _is_sampled(clock: int) -> bool:
    """Return True if the gradient of the step that ends at ``clock`` is sampled.

    >>> [clock for clock in range(1, 70) if _is_sampled(clock)]
    [1, 2, 33, 34, 65, 66]
    """
    return (clock - 1) % SAMPLE_EVERY < 2


def _apart(parts: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Part the dense tensors, as one flat tensor if there are any, from the sparse ones, coalesced."""
    sparse = [part.coalesce() for part in parts if part.is_sparse]
    dense = [part for part in parts if not part.is_sparse] if sparse else parts
    return [_flat(dense)] if dense else [], sparse


def _bytes_of(parts: Sequence[torch.Tensor], sparse: Sequence[torch.Tensor]) -> tuple[float, float, float]:
    """Return the bytes of the dense parts, of the sparse ones if they were dense, and of their places and values."""
    dense = sum(part.nbytes for part in parts if not part.is_sparse)
    tables = sum(part.numel() * part.dtype.itemsize for part in sparse)
    rows = sum(part.indices().nbytes + part.values().nbytes for part in sparse)
    return float(dense), float(tables), float(rows)


def _flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one flat tensor, in which squares of single numbers do not overflow; a copy unless it is one already.

    One product over it takes half the time of a norm for each of a model's many small tensors, and a bucket, which is
    flat already, is looked at as it is: every call that a step makes once finds its code in no cache.
    """
    flat = parts[0]
    if len(parts) > 1 or flat.dim() != 1:
        flat = torch._utils._flatten_dense_tensors(parts)  # type: ignore[no-untyped-call]
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
