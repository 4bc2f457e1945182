"""How far the loss on new data may be above that on the training data, by how long SGD has seen the latter."""

from plesio.core.checks import check_count, check_positive
from plesio_planning.theory.bound import Bound
from plesio_planning.theory.premises import rate_premise


def generalisation_gap(
    *,
    gradient_bound: float = 1.0,
    smoothness: float = 1.0,
    learning_rate: float = 0.1,
    batch_size: int = 256,
    num_samples: int = 50_000,
    num_steps: int = 10_000,
) -> Bound:
    """SGD on a convex loss with bounded gradients: expected loss on new data above that on the training data.

    ``2G²αT/N`` for ``αL ≤ 2`` (Hardt, Recht & Singer 2016, theorem 3.8). The batch is not in it, nor are the workers
    that share it; only how long, and at which rate, the same N samples are gone through. In passes over the data
    it is ``2G²αE/B``: at a rate in proportion to the batch it stays the same.

    Why: exchange one sample for another. A step draws it with probability B/N and then moves ``2αG/B`` apart from
    where it would have been, and a step on a convex smooth loss brings no two points further apart. So the two runs
    differ by at most ``2αGT/N`` in the end, and their losses by G times that.

    >>> bound = generalisation_gap()
    >>> bound.value, round(bound.also["passes over the data"], 1)
    (0.04, 51.2)

    Args:
        gradient_bound: G, largest norm of a sample's gradient.
        smoothness: L, of a sample's loss.
        learning_rate: α, constant.
        batch_size: B, samples of all workers in a step; it decides only how many passes the steps are.
        num_samples: N, in the training data.
        num_steps: T.

    Raises:
        ConfigError: ``αL ≤ 2`` does not hold, or an argument is out of range.
    """
    check_positive(gradient_bound=gradient_bound, smoothness=smoothness, learning_rate=learning_rate)
    check_count(batch_size=batch_size, num_samples=num_samples, num_steps=num_steps)
    each_pass = 2 * gradient_bound**2 * learning_rate / batch_size
    return Bound(
        quantity="E of the loss on new data less that on the training data",
        parts={"stability": 2 * gradient_bound**2 * learning_rate * num_steps / num_samples},
        conditions=(rate_premise("αL ≤ 2", learning_rate, smoothness=smoothness, limit=2.0),),
        also={
            "passes over the data": num_steps * batch_size / num_samples,
            "bound for each pass": each_pass,
            "each pass, at twice the batch and the rate": 2
            * gradient_bound**2
            * (2 * learning_rate)
            / (2 * batch_size),
        },
    )
