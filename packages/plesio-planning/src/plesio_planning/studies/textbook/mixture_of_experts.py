"""C.12: 1000 experts, balanced with 256 tokens each, or skewed."""

import math

from plesio_planning.studies.models.mixture_of_experts import MixtureOfExperts
from plesio_planning.studies.textbook.printed import Asking, Printed, Row

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """The balanced exchange, its slow-down under skew, and what is dropped."""
    balanced = asking.at(
        MixtureOfExperts,
        num_experts=1000,
        num_devices=8,
        tokens_per_device=32_000,
        hidden_size=1,
        element_bytes=4,
        bytes_per_s=200e9,
        latency_s=0.0,
        num_trials=2,
    )
    skewed = next(each for each in asking.defaults(MixtureOfExperts, num_trials=10).by_skew if each.skew == 0.5)
    largest = 1000 * math.exp(math.lgamma(1000) + math.lgamma(0.5) - math.lgamma(1000.5)) - 1
    return (
        Printed(
            place="solution",
            rows=(Row(what="balanced all-to-all", unit="ms", text=512.0, here=1e3 * balanced.balanced_s),),
            cause=(
                "Its sum is 5120 of no unit; 256,000 tokens of 4 bytes are a megabyte, which eight devices send at "
                "once at 200 GB/s."
            ),
        ),
        Printed(
            place="solution",
            rows=(Row(what="skewed over balanced", unit="times", text=5.0, here=largest * 50 / 256),),
            cause=(
                "The busiest of its 1000 Pareto(2) experts has 55 times 50 tokens on average, beside 256; a draw of "
                "infinite variance, and of other tokens than it compares with."
            ),
            by="its own formula",
        ),
        Printed(
            place="solution",
            rows=(Row(what="dropped without a balancing loss", unit="%", text=15.0, here=100 * skewed.dropped_limit),),
            cause="The same for Zipf(0.5) at a capacity of 1.25; the text names no skew.",
        ),
    )
