"""The effects of compressing gradients: bytes saved, iterations lost, and the time that results.

Iterations I come from a descent that is really done (`studies.compressed_descent`), the bytes s of one from the
collectives of `plesio.policies.compression`, and its time from rings on links of latency α and bandwidth B:

    time = iterations (compute + codec + latencies + sent / B)

With f seconds of an iteration that do not depend on B, compressing pays below the *break-even bandwidth*

    B* = (I₀ s₀ - I s) / (I f - I₀ f₀)

at every bandwidth if the denominator is not positive, at none if the numerator is not; a zero is of sending everything.

``docs/planning/studies/compression.md`` has the model with its sources, its assumptions and its limits.
"""

from dataclasses import dataclass
from typing import Annotated

from plesio.core.errors import ArgumentError, ConfigError
from plesio.core.within import BANDWIDTH, DURATION_OR_0, SIZE, Within
from plesio.cost.all_reduce import ring_all_reduce_s
from plesio.cost.collectives import all_gather_s, all_to_all_s
from plesio.cost.link import Link
from plesio.policies.compression import NO_COMPRESSION, Compression
from plesio_planning.studies.compressed_descent import CompressedDescent, descend, parse_scheme
from plesio_planning.studies.compressed_training import CompressedRun, CompressedTraining

_COST = {"all_reduce": ring_all_reduce_s, "all_gather": all_gather_s, "all_to_all": all_to_all_s}
_MOST_POINTS = 150
"""Points of a curve."""
_SCHEMES = (
    "none",
    "fp16",
    "topk:0.5",
    "topk:0.1",
    "topk:0.1+no_feedback",
    "topk:0.05@0.3",
    "topk:0.05+no_feedback@0.3",
    "topk:0.01@0.1",
    "topk:0.01@0.3",
    "randk:0.1@0.1",
    "randk:0.1+no_feedback",
    "levels:1",
    "levels:3",
    "levels:15",
    "levels:127",
    "sign",
    "sign+no_feedback",
)


def _spread(number: int) -> list[int]:
    """Choose places among ``number``, at most `_MOST_POINTS`, dense at the beginning as a logarithmic axis is."""
    steps = range(_MOST_POINTS)
    return sorted({min(number - 1, round(number ** (step / (_MOST_POINTS - 1))) - (step == 0)) for step in steps})


def compression(
    *,
    schemes: tuple[str, ...] = _SCHEMES,
    num_dimensions: Annotated[int, Within(2, 5000)] = 1000,
    condition_number: Annotated[float, Within(1, 1e4, without="low")] = 1000.0,
    target: Annotated[float, Within(1e-9, 1, without="high")] = 1e-4,
    max_steps: Annotated[int, Within(1, 200_000)] = 40_000,
    num_workers: Annotated[int, Within(1, 2**20)] = 8,
    gradient_bytes: Annotated[float, SIZE] = 100e6,
    compute_s: Annotated[float, DURATION_OR_0] = 0.050,
    bytes_per_s: Annotated[float, BANDWIDTH] = 125e6,
    latency_s: Annotated[float, DURATION_OR_0] = 50e-6,
    codec_bytes_per_s: Annotated[float, BANDWIDTH] = 2e9,
    seed: int = 0,
) -> CompressedTraining:
    """Compute iterations, bytes and seconds to a target loss, and the break-even bandwidth of each compression.

    >>> answer = compression(schemes=("none", "topk:0.1", "topk:0.1+no_feedback"))
    >>> [run.iterations for run in answer.runs], answer.best.scheme
    ([870, 870, 2370], 'topk:0.1')

    Args:
        schemes: Compressions as policies have them, sign, or levels:S, each with @STEP for a step other than its own.
        num_dimensions: Dimensions of the quadratic.
        condition_number: Its largest eigenvalue over its smallest.
        target: The loss to reach, over the first.
        max_steps: Iterations after which a descent is given up.
        num_workers: Workers that exchange.
        gradient_bytes: Size of a gradient, of 4-byte numbers.
        compute_s: Forward and backward pass of a worker.
        bytes_per_s: Bandwidth of one direction of a worker's link.
        latency_s: Latency of each message.
        codec_bytes_per_s: Bytes of gradient that a worker codes and decodes in a second.
        seed: Seed of the start and of what is random.

    Raises:
        ConfigError: A scheme that does not exist, or a number out of range.
    """
    if gradient_bytes < 4 * num_workers:
        raise ArgumentError(
            f"`gradient_bytes` is {gradient_bytes:g}, less than a number for each of `num_workers`; "
            f"write {4 * num_workers} B or more"
        )
    if num_workers == 1 and compute_s == 0:
        raise ArgumentError(
            "`num_workers` is 1 and `compute_s` is 0, so that nothing takes any time; write more than 0 for `compute_s`"
        )
    workers = _Workers(
        num_workers=num_workers,
        gradient_bytes=gradient_bytes,
        compute_s=compute_s,
        link=Link(latency_s=latency_s, bytes_per_s=bytes_per_s),
        codec_bytes_per_s=codec_bytes_per_s,
    )

    def run(text: str) -> CompressedRun:
        """Descend with the scheme of this text, and cost its iterations."""
        try:
            stage, step = parse_scheme(text, dimension=num_dimensions)
        except ConfigError as error:
            raise ArgumentError.about("schemes", error) from None
        descent = descend(
            stage,
            step=step,
            dimension=num_dimensions,
            condition=condition_number,
            tolerance=target,
            most=max_steps,
            seed=seed,
        )
        return workers.run(text, stage, descent, step=step)

    dense = run("none")
    if dense.iterations is None:
        raise ArgumentError(
            f"`max_steps` is {max_steps}, and sending everything takes more; write more, or a larger `target`"
        )
    texts = [text for text in dict.fromkeys(schemes) if text != "none"]
    runs = [run(text).beside(dense) for text in texts]
    return CompressedTraining(runs=(dense, *runs), bytes_per_s=bytes_per_s, num_workers=num_workers, target=target)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workers:
    """Workers that compute and exchange a gradient in every iteration."""

    num_workers: int
    gradient_bytes: float
    compute_s: float
    link: Link
    codec_bytes_per_s: float

    def run(self, text: str, stage: Compression, descent: CompressedDescent, *, step: float) -> CompressedRun:
        """Cost the iterations of a descent with this compression."""
        sent_bytes = stage.sent_bytes(self._number, num_ranks=self.num_workers)
        places = _spread(len(descent.at))
        return CompressedRun(
            scheme=text,
            step=step,
            iterations=descent.iterations,
            diverged=descent.diverged,
            relative_error=descent.error,
            sent_bytes=sent_bytes,
            compute_s=self.compute_s,
            codec_s=0.0 if stage == NO_COMPRESSION else self.gradient_bytes / self.codec_bytes_per_s,
            latency_s=self._latencies_s(stage),
            transfer_s=sent_bytes / self.link.bytes_per_s,
            break_even_bytes_per_s=None,
            at=tuple(descent.at[place] for place in places),
            losses=tuple(descent.losses[place] for place in places),
        )

    @property
    def _number(self) -> int:
        return round(self.gradient_bytes / 4)

    def _latencies_s(self, stage: Compression) -> float:
        """Return the seconds that an iteration's collectives would take of no bytes."""
        return sum(
            _COST[one.operation](0.0, num_ranks=self.num_workers, link=self.link)
            for one in stage.collectives(self._number, num_ranks=self.num_workers)
        )
