"""Local SGD, counted as staleness: how many updates of other workers a local step does not know."""

from plesio.core.checks import check_count
from plesio_planning.theory.bound import Bound


def local_staleness(*, period: int = 8, num_workers: int = 8) -> Bound:
    """Local SGD as bounded staleness: most updates of others that a local step does not know.

    ``K(n-1)``: in a round of K local steps the last step of the last worker knows nothing of K-1 steps of each other
    worker, nor of those that are made with it; the mean is half of that. Each update moves the shared parameters by
    ``α/n``.

    Why it is a count and nothing more: a local step has a fresh gradient of its own replica. With equal Hessians K
    local steps are stable up to ``αL = 2`` for every K, and gradients that are K(n-1) updates late only up to about
    ``πn/(2K(n-1))``.

    >>> bound = local_staleness(period=8, num_workers=8)
    >>> bound.value, bound.parts
    (56.0, {'earlier local steps': 49.0, 'the same local step': 7.0})

    Args:
        period: K, local steps between two averagings.
        num_workers: n.
    """
    check_count(period=period, num_workers=num_workers)
    others = float(num_workers - 1)
    return Bound(
        quantity="updates that a local step does not know, at most",
        unit="updates",
        parts={"earlier local steps": (period - 1) * others, "the same local step": others},
        also={"mean over the steps of a round (updates)": period * others / 2},
    )
