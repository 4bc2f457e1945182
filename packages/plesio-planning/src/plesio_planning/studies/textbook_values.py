"""Compute what the text's inputs give, for each result that the text prints.

A function for each study, of its name, returns a number for each row of ``textbook.toml``, in the order there. Most ask
the study at the text's inputs; results ``by = "its own formula"`` are the text's formula, which prints something else.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plesio_planning.studies.order_statistics import LogNormalTimes
from plesio_planning.studies.study import Answer

Values = Sequence[float | str]


@dataclass(frozen=True, slots=True)
class Asking:
    """A study, to be asked at the text's inputs.

    Attributes:
        known: The answer with its defaults, where it is there already.
    """

    function: Callable[..., Answer]
    known: Answer | None = None

    def defaults(self, **cheaper: Any) -> Any:
        """Return the answer with the study's defaults; if not known, with ``cheaper`` inputs of the same numbers."""
        return self.function(**cheaper) if self.known is None else self.known

    def at(self, **inputs: Any) -> Any:
        """Return the answer with these inputs."""
        return self.function(**inputs)


def data_parallel(asking: Asking) -> Values:
    """256 workers, 700 MB, 125 ms of computing: the iteration, its ring, and the size at which ring and tree cross."""
    from plesio_planning.studies.models.collectives import collectives

    text = asking.at(forward_s=0.05, backward_s=0.075)
    crossing_mb = collectives(bytes_per_s=50e9, other_ranks=()).ring_from_bytes[256] / 1e6
    tree_s = collectives(message_bytes=700e6, bytes_per_s=25e9, other_ranks=()).at_s["tree"]
    ring_s = text.at.all_reduce_s
    times = (1e3 * text.total, 1e3 * ring_s, 100 * ring_s / text.total)
    return (*times, 100 * text.at.efficiency, text.at.speedup, 1e3 * tree_s, crossing_mb, crossing_mb)


def stragglers(asking: Asking) -> Values:
    """256 workers with lognormal steps of 50 ms: efficiency by variation, and how much longer the slowest takes."""
    slowest_s = [LogNormalTimes(mean_s=0.05, cv=cv).expected_s(rank=256, of=256) for cv in (0.05, 0.1, 0.2, 0.5)]
    return [*(100 / (each_s / 0.05) for each_s in slowest_s), asking.defaults(num_steps=2).cost]


def bounded_staleness(asking: Asking) -> Values:
    """Return the iterations of a quadratic (κ = 100) to 1e-4 of the start, at the best step for each staleness."""
    points = asking.defaults(num_trials=1, num_dimensions=2).points
    return [point.best_iterations for point in points if point.delay in (0, 1, 5, 10, 20, 50)]


def collectives(asking: Asking) -> Values:
    """256 ranks, 10 µs and 50 GB/s: where ring and tree cross, and both times by size."""
    answer = asking.defaults(other_ranks=())
    times_ms = [
        1e3 * answer.links.all_reduce_s(algorithm, size_mb * 1e6, num_ranks=256)
        for algorithm in ("ring", "tree")
        for size_mb in (1, 10, 100, 500, 1000)
    ]
    return [answer.ring_from_bytes[256] / 1e6, *times_ms]


def pipeline(asking: Asking) -> Values:
    """Eight stages of GPT-3, by micro-batches: bubble and activations."""
    points = asking.at(schedule="gpipe", recomputation="none", tp=1).points
    at = {
        point.num_micro_batches: point for point in points if (point.schedule, point.recomputation) == ("gpipe", "none")
    }
    bubbles = [100 * at[count].bubble for count in (1, 2, 16, 32, 4, 8)]
    return [*bubbles, *(at[count].activation_bytes / 1e9 for count in (1, 32))]


def compression(asking: Asking) -> Values:
    """Top-k on a quadratic (κ = 1000): iterations by how much is kept, with error feedback, at steps that converge."""
    schemes = ("topk:0.01@0.1", "topk:0.05@0.3", "topk:0.1", "topk:0.5", "none")
    answer = asking.defaults(schemes=schemes)
    counts = [answer.run(scheme).iterations for scheme in schemes]
    return [math.inf if count is None else float(count) for count in counts]


def local_sgd(asking: Asking) -> Values:
    """Eight workers, 50 ms a step and 100 ms an averaging: times, iterations, and the best number of local steps."""
    runs = {1: 1000, 2: 1080, 4: 1200, 8: 1500, 16: 2000, 32: 3500}
    answer = asking.defaults(num_trials=1)
    growth = {point.period: point.iterations / answer.points[0].iterations for point in answer.points}
    times_s = [count * 0.05 + math.ceil(count / period) * 0.1 for period, count in runs.items()]
    return [*times_s, *(growth[period] for period in (2, 8, 32)), answer.best_period]


def load_balancing(asking: Asking) -> Values:
    """Sixteen workers of unequal speed: how much sooner shares by speed are done."""
    return [asking.defaults(num_steps=1).gain.ratio]


def loss_scaling(asking: Asking) -> Values:
    """Gradients of 1e-4 under four loss scales: how many overflow."""
    shares = asking.defaults(num_steps=1).shares
    normal = {each.power: 100 * each.overflow for each in shares if each.distribution.startswith("N(")}
    return [normal[power] for power in (15, 18, 20, 24)]


def overlap(asking: Asking) -> Values:
    """96 layers of 5 ms in buckets: the end of the last all-reduce by layers in a bucket."""
    answer = asking.defaults()
    ends_ms = [1e3 * answer.by_layers[count].end_s for count in (1, 2, 4, 8, 12, 16, 24, 48)]
    return [*ends_ms, float(answer.best_layers)]


def parameter_server(asking: Asking) -> Values:
    """256 workers, 16 servers, 700 MB: both times at 200 GB/s, and their ratio."""
    times_s = asking.defaults().times_s
    return [1e3 * times_s["server"], 1e3 * times_s["ring"], times_s["server"] / times_s["ring"]]


def mixture_of_experts(asking: Asking) -> Values:
    """1000 experts: the balanced exchange of 256 tokens each, its slow-down under skew, and what is dropped."""
    balanced = asking.at(
        num_experts=1000,
        num_devices=8,
        tokens_per_device=32_000,
        hidden_size=1,
        element_bytes=4,
        bytes_per_s=200e9,
        latency_s=0.0,
        num_trials=2,
    )
    skewed = next(each for each in asking.defaults(num_trials=10).by_skew if each.skew == 0.5)
    # The mean of the largest of 1000 draws of Pareto(2).
    largest = 1000 * math.exp(math.lgamma(1000) + math.lgamma(0.5) - math.lgamma(1000.5)) - 1
    return [1e3 * balanced.balanced_s, largest * 50 / 256, 100 * skewed.dropped_limit]


def staleness_weighting(asking: Asking) -> Values:
    """Weights 1/(1+τ), staleness to 20: the small step for all, what weighting costs, and how much better it is."""
    from plesio_planning.studies.models.bounded_staleness import bounded_staleness

    by_name = {each.name: each for each in asking.defaults().untuned}
    small, inverse = by_name["small"], by_name["inverse"]
    fresh = bounded_staleness(stalenesses=(0,), num_trials=1, num_dimensions=2).points[0].best_iterations
    weighted = inverse.iterations.mean
    return [100 * small.step, weighted / fresh, small.iterations.mean / weighted]


def checkpointing(asking: Asking) -> Values:
    """Checkpoints of 5 min, a failure every 21 h: the best interval, and the work that a failure loses."""
    young_s = asking.defaults(num_runs=2).young_s
    lost_s = [asking.at(checkpoint_interval_s=each_s, num_runs=2).lost_s for each_s in (young_s, 1800.0)]
    return [each_s / 60 for each_s in (young_s, *lost_s)]


def batch_scaling(asking: Asking) -> Values:
    """Learning rates and accuracies of five batch sizes, which no training stands behind."""
    batches = (256, 512, 2048, 8192, 32768)
    accuracies = [76.5 - max(0.0, (batch / 4096 - 1) * 2) for batch in batches]
    return [*(0.1 * batch / 256 for batch in batches), *accuracies]


def consistency(asking: Asking) -> Values:
    """50 ms of computing and 100 ms of communicating: time to the target, over that of synchronous training."""
    at = asking.at(ratio=2.0, cv=0.0, ratios=(2.0,), cvs=(0.0,), slowdowns=(1.0,)).at
    return [at.best_of(family).time_s / at.best_of("BSP").time_s for family in ("SSP", "local SGD")]


def tensor_parallel(asking: Asking) -> Values:
    """GPT-3's layers on eight devices: what is sent in a step, and its share of the time."""
    at = asking.defaults().at
    return [at.sent_bytes / 1e9, 100 * at.share]


def hierarchical(asking: Asking) -> Values:
    """700 MB on 32 nodes of 8 devices: both times, with one NIC a node as in its program, and with one a device."""
    one, each = asking.at(nics_per_host=1).times_s, asking.defaults().times_s
    flat_s, levels_s = one["flat ring"], one["hierarchical"]
    return [1e3 * levels_s, 1e3 * flat_s, flat_s / levels_s, flat_s / each["hierarchical"]]


def determinism(asking: Asking) -> Values:
    """Causes of differing runs: the gap of the text's sum by its order, and which source dominates."""
    apart = {each.name: each.relative[-1] for each in asking.defaults().comparisons if each.relative}
    with np.errstate(over="ignore"):
        large, one = np.float32(1e30), np.float32(1)
        gap = float(abs(((large + one) - large) - (large + (one - large))))
    worst = max(apart, key=apart.__getitem__)
    # Digits depend on the processor's matrix product (a seed 1.4 or 1.5, an order 0.03 to 0.05), these do not.
    order = math.ceil(math.log10(max(value for name, value in apart.items() if "seed" not in name)))
    dominant = f"{worst}, above {math.floor(apart[worst])} (any order: below {10.0**order:g})"
    return [gap, dominant, "measured by --measure"]


def time_to_train(asking: Asking) -> Values:
    """70 billion parameters on 256 A100: the days, and its program's own computing time of an iteration."""
    own_ms = 1e3 * 6 * 70e9 / (312e12 * 256)
    own_days = 1e6 * (own_ms / 1e3 + 0.028 + 0.015 + 0.010 + 0.005) / 86_400
    return [asking.defaults(num_runs=2).total / 86_400, own_ms, own_days]
