"""Others' figures for a machine of failing devices, beside those of this model.

Decoupled DiLoCo (arXiv 2604.21428) simulates 1.2 million chips: about 27 % goodput of plain data parallelism, 58 % of
an elastic one, 88 % of 8 learners that do not wait for each other and 93 % of 16. How often a chip fails and how long
it takes to go on is not known here. But a way that loses a time c at every failure has a goodput of ``1 / (1 + c / M)``
for failures M apart, and a group of G is hit by one of G failures; so each figure says what c is, as a multiple of M.
"""

from collections.abc import Sequence

from plesio.core.charts import Table
from plesio.core.units import format_seconds
from plesio_planning.estimate.goodput_charts import percent
from plesio_planning.estimate.goodput_ways import WayToGoOn

__all__ = ["PUBLISHED_DEVICES", "PUBLISHED_SHARES", "cost_of_a_failure", "published_goodput"]

PUBLISHED_DEVICES = 1_200_000
PUBLISHED_SHARES = {
    "plain": 0.27,
    "elastic": 0.58,
    "local SGD, 8 groups": 0.88,
    "local SGD, 16 groups": 0.93,
}
_GROUPS = {"local SGD, 8 groups": 8, "local SGD, 16 groups": 16}


def cost_of_a_failure(share: float, *, num_groups: int = 1) -> float:
    """Return the cost of a failure to the replicas that it hits, in mean times between failures of the whole machine.

    >>> round(cost_of_a_failure(0.27), 2), round(cost_of_a_failure(0.88, num_groups=8), 2)
    (2.7, 1.09)
    """
    return (1 / share - 1) * num_groups


def published_goodput(ways: Sequence[WayToGoOn], *, mtbf_s: float) -> Table:
    """List published shares beside those of the same ways here.

    Args:
        ways: On as many devices; of a way that is not among them stands "–".
        mtbf_s: Mean seconds between failures of that machine here.
    """
    here = {way.name: way.share for way in ways}
    rows = []
    for name, share in PUBLISHED_SHARES.items():
        cost = cost_of_a_failure(share, num_groups=_GROUPS.get(name, 1))
        share_here = percent(here[name]) if name in here else "–"
        rows.append((name, f"{100 * share:.0f} %", share_here, f"{cost:.2f}", format_seconds(cost * mtbf_s)))
    from_8 = 1 / (1 + cost_of_a_failure(PUBLISHED_SHARES["local SGD, 8 groups"], num_groups=8) / 16)
    rows.append(("16 groups, from the figure of 8", "93 %", f"{100 * from_8:.1f} %", "", ""))
    return Table(
        title=f"Against Decoupled DiLoCo's simulation of {PUBLISHED_DEVICES:,} chips:",
        headers=("way", "published", "here", "a failure costs it, in times between failures", "at failures as here"),
        rows=rows,
    )
