"""What a worker under a policy that adapts notes down of each step, for its next review.

A sampled gradient is read once, for its squared norm and its sketch: every number is multiplied by a random sign and
added to one of m sums (a count sketch whose buckets are the positions modulo m). The signs are the same on all ranks
and for the whole run, so differences and inner products of sketches estimate those of the gradients.
"""

import math
from collections.abc import Sequence

import torch

from plesio.policies import Reviewed
from plesio.policies.adaptive import ReviewConfig
from plesio.runtime.exchange.exchange import Progress
from plesio.runtime.rounds import RoundBook
from plesio.runtime.timeline import Timeline

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
        """The next part."""
        dense = part.to_dense() if part.is_sparse else part
        flat = dense.detach().reshape(-1).to(torch.float32)
        signs = self._signs_for(self._position + flat.numel(), device=flat.device)
        rows = -(-flat.numel() // self._size)
        padded = torch.zeros(rows * self._size, device=flat.device)
        torch.mul(flat, signs[self._position : self._position + flat.numel()], out=padded[: flat.numel()])
        sums = padded.view(rows, self._size).sum(0)
        self._sums = sums if self._sums is None else self._sums + sums
        self._norm_sq += float(torch.dot(flat, flat))
        self._position += flat.numel()

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
        timeline: Where the worker's time is taken down.
        rounds: Says how much of a round this worker has.
        total_samples: Samples of the whole training, over all workers; None if nobody knows.
    """

    def __init__(
        self,
        worker: int,
        *,
        config: ReviewConfig,
        timeline: Timeline,
        rounds: RoundBook,
        total_samples: int | None,
    ) -> None:
        self._worker = worker
        self._config = config
        self._timeline = timeline
        self._total_samples = total_samples
        self._rounds = rounds
        self._sketch = Sketch(config.sketch)
        self._clock = 0
        self._samples: list[int] = []
        self._compute_s: list[float] = []
        self._blocked_s: list[float] = []
        self._losses: list[float] = []
        self._gradients: list[tuple[float, ...]] = []
        self._exchanges: list[tuple[float, float]] = []
        self._progress = -1.0
        self._computed_s = timeline.meter.totals.compute_s
        self._exchanged_s = timeline.exchanged_s

    @property
    def weight(self) -> float:
        """What this rank's gradient is multiplied by before the mean over the ranks is taken."""
        return self._rounds.weight

    def measure(self, parts: Sequence[torch.Tensor]) -> None:
        """Some or all of this worker's own gradient of the step under way; looked at if the step is sampled."""
        if self._config.samples_at(self._clock + 1):
            for part in parts:
                self._sketch.add(part)

    def exchanged(self, clock: int, *, took_s: float) -> None:
        """The exchange that this worker began after step ``clock`` took so long."""
        self._exchanges.append((float(clock), took_s))

    def step(self, progress: Progress) -> None:
        """A step is over."""
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
        if self._total_samples is not None and progress.global_samples is not None:
            self._progress = min(1.0, progress.global_samples / self._total_samples)

    def forget(self) -> None:
        """What was seen up to now was under another setting."""
        self._samples, self._compute_s, self._blocked_s = [], [], []

    def take(self, clock: int, *, learning_rate: float, momentum: float = 0.0) -> Reviewed:
        """The review, and begin the next one."""
        losses = [loss for loss in self._losses if math.isfinite(loss)]
        review = Reviewed(
            worker=self._worker,
            clock=clock,
            samples=tuple(self._samples),
            compute_s=tuple(self._compute_s),
            blocked_s=tuple(self._blocked_s),
            loss=sum(losses) / len(losses) if losses else math.nan,
            learning_rate=float(learning_rate),
            momentum=momentum,
            num_refused=len(self._losses) - len(losses),
            gradients=tuple(self._gradients),
            exchanges=tuple(self._exchanges),
            progress=self._progress,
        )
        self.forget()
        self._losses, self._gradients, self._exchanges = [], [], []
        return review
