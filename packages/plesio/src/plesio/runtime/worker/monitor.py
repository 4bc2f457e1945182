"""What a worker under a policy that adapts notes down of each step, for its next review.

A sampled gradient is read once, for its squared norm and its sketch: every number is multiplied by a random sign and
added to one of m sums (a count sketch whose buckets are the positions modulo m). The signs are the same on all ranks
and for the whole run, so differences and inner products of sketches estimate those of the gradients. A review also has
the sketch of the parameters: from one to the next it says how far training has come.

Every gradient's norm is taken, which also says whether it is finite, and an extraordinary one is scaled down before it
is applied or sent (`adaptive.training.spike`). What comes in several pieces (DDP's buckets) is judged piece by
piece, because the first is under way before the last is known. The loss is known in time for the next step: while it is
extraordinary, the gradient counts as if it were, too.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch

from plesio.core.plain import recall, remember
from plesio.policies import Reviewed
from plesio.policies.adaptive import GuardConfig, ReviewConfig
from plesio.policies.adaptive.training.spike import SpikeDetector
from plesio.runtime.worker.exchange.exchange import Progress
from plesio.runtime.worker.rounds import RoundRecords
from plesio.runtime.worker.timeline import Timeline

__all__ = ["Sketch", "StepMonitor"]

SIGNS_SEED = 20_261


class Sketch:
    """Of one gradient, put together from parts that come in the same order on every rank and in every step.

    Args:
        size: m.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._signs: torch.Tensor | None = None
        self.begin()

    def begin(self) -> None:
        """Begin with another gradient."""
        self._norm_sq = 0.0
        self._sums: torch.Tensor | None = None
        self._position = 0

    @torch.no_grad()
    def add(self, part: torch.Tensor) -> None:
        """The next part, which is flat."""
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
        """The next part, which is sparse and coalesced: as `add` of it made dense, but only its rows are read."""
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
        """The sketch of what all the parts make together; what has been added is left alone."""
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
        """The squared norm, and then the sketch; nothing if no part came."""
        return () if self._sums is None else (self._norm_sq, *self._sums.tolist())


class StepMonitor:
    """Gathers a review.

    Args:
        worker: Whose.
        config: Which steps are sampled.
        guard: What is extraordinary; None lets everything through.
        timeline: Where the worker's time is taken down.
        rounds: Says how much of a round this worker has.
        total_samples: Samples of the whole training, over all workers; None if nobody knows.
        rack: Number of the rack that the worker is in.
        can_push: Whether the store's servers could step for it.
        low_rank_share: What `Reviewed.low_rank_share` says of its model.
    """

    def __init__(
        self,
        worker: int,
        *,
        config: ReviewConfig,
        guard: GuardConfig | None,
        timeline: Timeline,
        rounds: RoundRecords,
        total_samples: int | None,
        rack: int = 0,
        can_push: bool = False,
        low_rank_share: float = 1.0,
    ) -> None:
        self._worker = worker
        self._rack = rack
        self._can_push = can_push
        self._low_rank_share = low_rank_share
        self._config = config
        self._timeline = timeline
        self._total_samples = total_samples
        self._rounds = rounds
        self._sketch = Sketch(config.sketch)
        self._guard = guard
        self._norms: dict[tuple[int, int], SpikeDetector] = {}
        """Of each piece of a gradient, by its place and its size."""
        self._spikes_in_loss = None if guard is None else _detector(guard)
        self._suspect = False
        self._num_pieces = 0
        self._factor = 1.0
        """The least that a piece of this step's gradient was multiplied by."""
        self._is_finite = True
        """Whether what is known of this step's gradient and loss is finite."""
        self._num_refused = 0
        self._num_clipped = 0
        self._num_clipped_before = 0
        self._first_clipped = 0
        self._clock = 0
        self._samples: list[int] = []
        self._compute_s: list[float] = []
        self._blocked_s: list[float] = []
        self._losses: list[float] = []
        self._gradients: list[tuple[float, ...]] = []
        self._sparse_bytes: list[tuple[float, ...]] = []
        """Of each step with sparse gradients, what `Reviewed.sparse_bytes` has the mean of."""
        self._exchanges: list[tuple[float, float]] = []
        self._summed_rate = 0.0
        self._num_trained = 0
        """Samples of all workers, as far as this one knows."""
        self._progress = -1.0
        self._computed_s = timeline.meter.totals.compute_s
        self._exchanged_s = timeline.exchanged_s

    @property
    def weight(self) -> float:
        """What this rank's gradient is multiplied by before the mean over the ranks is taken."""
        return self._rounds.weight

    def weight_among(self, ranks: Sequence[int]) -> float:
        """The same before the mean over some of the ranks."""
        return self._rounds.weight_among(ranks)

    def measure(self, parts: Sequence[torch.Tensor], *, scale: float = 1.0) -> bool:
        """Look at some or all of this worker's own gradient of the step under way, and scale it down if it must be.

        Args:
            parts: Of the gradient, times ``scale``.
            scale: Of the loss: what is noted down is without it.

        Returns:
            Whether it is finite.
        """
        if not parts:
            return True
        dense, sparse = _apart(parts)
        if sparse:
            self._sparse_bytes.append(_bytes_of(parts, sparse))
        if scale != 1.0:
            dense, sparse = [flat / scale for flat in dense], [(part / scale).coalesce() for part in sparse]
        values = dense + [_flat([part.values()]) for part in sparse]
        norm_sq = sum(torch.dot(flat, flat).item() for flat in values)
        if self._config.samples_at(self._clock + 1):
            for flat in dense:
                self._sketch.add(flat)
            for part in sparse:
                self._sketch.add_rows(part)
        if not math.isfinite(norm_sq):
            self._is_finite = False
            return False
        if self._guard is not None:
            place = self._num_pieces, sum(part.numel() for part in parts)
            self._num_pieces += 1
            if place not in self._norms:
                self._norms[place] = _detector(self._guard)
            factor = self._norms[place].judge(math.sqrt(norm_sq), suspect=self._suspect)
            if factor < 1.0:
                self._scale_down(parts, factor)
        return True

    def _scale_down(self, parts: Sequence[torch.Tensor], factor: float) -> None:
        for part in parts:
            (part._values() if part.is_sparse else part.detach()).mul_(factor)
        self._factor = min(self._factor, factor)

    def exchanged(self, clock: int, *, took_s: float) -> None:
        """The exchange that this worker began after step ``clock`` took so long."""
        self._exchanges.append((float(clock), took_s))

    def step(self, progress: Progress, *, rate: float = 0.0) -> None:
        """A step with this learning rate is over."""
        self._summed_rate += rate
        self._clock = progress.clock
        if row := self._sketch.take():
            self._gradients.append((float(progress.clock), *row))
            self._sketch.begin()
        computed_s, exchanged_s = self._timeline.meter.totals.compute_s, self._timeline.exchanged_s
        self._samples.append(progress.samples)
        self._compute_s.append(computed_s - self._computed_s)
        self._blocked_s.append(exchanged_s - self._exchanged_s)
        self._computed_s, self._exchanged_s = computed_s, exchanged_s
        if progress.loss is not None:
            self._losses.append(progress.loss)
            self._suspect = self._spikes_in_loss is not None and self._spikes_in_loss.judge(progress.loss) < 1.0
            self._is_finite = self._is_finite and math.isfinite(progress.loss)
        self._num_refused += not self._is_finite
        self._is_finite = True
        self._num_pieces = 0
        if self._factor < 1.0:
            self._clipped(progress.clock)
        if progress.global_samples is not None:
            self._num_trained = progress.global_samples
        else:  # on the store: as if all trained as many; of what the workers say of it, the mean is right
            self._num_trained += progress.samples * self._rounds.num_workers
        if self._total_samples is not None:
            self._progress = min(1.0, self._num_trained / self._total_samples)

    def _clipped(self, clock: int) -> None:
        self._timeline.event("clip", at_s=self._timeline.now_s(), clock=clock, factor=self._factor)
        self._first_clipped = self._first_clipped or clock
        self._num_clipped += 1
        self._factor = 1.0

    @property
    def clipped(self) -> str | None:
        """A sentence about the gradients that were scaled down, if any were."""
        if not self._num_clipped:
            return None
        return (
            f"worker {self._worker} scaled down its gradient in {self._num_clipped} steps, first in step "
            f"{self._first_clipped}: it was far larger than in the steps before"
        )

    def own(self) -> dict[str, Any]:
        """What it has seen and not reported, and what it knows of usual steps, as plain values."""
        return remember(self, without=_GIVEN, inner=(SpikeDetector,))

    def take_own(self, own: dict[str, Any]) -> None:
        """Take over what `own` gave."""
        recall(self, own, inner=(SpikeDetector,))

    def forget(self) -> None:
        """What was seen up to now was under another setting, and what the change itself took is no step's."""
        self._samples, self._compute_s, self._blocked_s = [], [], []
        self._computed_s, self._exchanged_s = self._timeline.meter.totals.compute_s, self._timeline.exchanged_s

    def take(
        self,
        clock: int,
        *,
        learning_rate: float,
        momentum: float = 0.0,
        normalises: bool = False,
        shares_moments: bool = False,
        writes: bool = False,
        parameters: Sequence[torch.Tensor] = (),
    ) -> Reviewed:
        """The review, and begin the next one."""
        losses = [loss for loss in self._losses if math.isfinite(loss)]
        review = Reviewed(
            worker=self._worker,
            clock=clock,
            samples=tuple(self._samples),
            compute_s=tuple(self._compute_s),
            blocked_s=tuple(self._blocked_s),
            loss=sum(losses) / len(losses) if losses else math.inf if self._losses else math.nan,
            learning_rate=float(learning_rate),
            momentum=momentum,
            normalises=normalises,
            shares_moments=shares_moments and not writes,
            num_refused=self._num_refused,
            num_clipped=self._num_clipped - self._num_clipped_before,
            gradients=tuple(self._gradients),
            exchanges=tuple(self._exchanges),
            progress=self._progress,
            rack=self._rack,
            can_push=self._can_push and not writes,
            writes=writes,
            position=() if self._guard is None or not parameters else self._sketch.of(parameters),
            summed_rate=self._summed_rate,
            sparse_bytes=tuple(map(statistics.fmean, zip(*self._sparse_bytes, strict=True))),
            low_rank_share=1.0 if writes else self._low_rank_share,
        )
        self.forget()
        self._num_clipped_before, self._num_refused = self._num_clipped, 0
        self._losses, self._gradients, self._exchanges, self._sparse_bytes = [], [], [], []
        self._summed_rate = 0.0
        return review


_GIVEN = (
    "_worker",
    "_rack",
    "_can_push",
    "_low_rank_share",
    "_config",
    "_timeline",
    "_total_samples",
    "_rounds",
    "_sketch",
    "_guard",
    "_computed_s",
    "_exchanged_s",
)
"""Attributes of a monitor that it is made with, or that are of the moment."""


def _detector(guard: GuardConfig) -> SpikeDetector:
    return SpikeDetector(jump=guard.spike_jump, shift=guard.spike_shift)


def _apart(parts: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The dense parts as one flat tensor, if there are any, and the sparse ones, coalesced."""
    sparse = [part.coalesce() for part in parts if part.is_sparse]
    dense = [part for part in parts if not part.is_sparse] if sparse else parts
    return [_flat(dense)] if dense else [], sparse


def _bytes_of(parts: Sequence[torch.Tensor], sparse: Sequence[torch.Tensor]) -> tuple[float, float, float]:
    """Bytes of the dense parts, of the sparse ones if they were dense, and of the places and values that these have."""
    dense = sum(part.nbytes for part in parts if not part.is_sparse)
    tables = sum(part.numel() * part.dtype.itemsize for part in sparse)
    rows = sum(part.indices().nbytes + part.values().nbytes for part in sparse)
    return float(dense), float(tables), float(rows)


def _flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One flat tensor, in which squares of single numbers do not overflow; a copy unless it is one already.

    One product over it takes half the time of a norm for each of a model's many small tensors, and a bucket, which is
    flat already, is looked at as it is: every call that a step makes once finds its code in no cache.
    """
    flat = parts[0]
    if len(parts) > 1 or flat.dim() != 1:
        flat = torch._utils._flatten_dense_tensors(parts)  # type: ignore[no-untyped-call]
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
