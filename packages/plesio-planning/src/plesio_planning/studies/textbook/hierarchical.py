"""C.18: 700 MB on 32 nodes of 8 devices."""

from plesio_planning.studies.models.hierarchical import Hierarchical
from plesio_planning.studies.textbook.printed import Asking, Printed, Row

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Both times, with one NIC a node as in its program, and with one a device."""
    one, each = asking.at(Hierarchical, nics_per_host=1).times_s, asking.defaults(Hierarchical).times_s
    own_ms = 1e3 * (14 * (1e-6 + 700e6 / 8 / 600e9) + 62 * (10e-6 + 700e6 / 25e9))
    return (
        Printed(
            place="solution",
            rows=(
                Row(what="two levels, one NIC a node", unit="ms", text=23.45, here=1e3 * one["hierarchical"]),
                Row(what="flat ring", unit="ms", text=103.2, here=1e3 * one["flat ring"]),
                Row(what="speed-up", unit="times", text=4.4, here=one["flat ring"] / one["hierarchical"]),
            ),
            cause=(
                f"Its program sends all 700 MB in each of 62 rounds between nodes, which is {own_ms:,.0f} ms, and its "
                "flat ring gives 60.9; the printed times are of neither."
            ),
        ),
        Printed(
            place="in depth",
            rows=(
                Row(
                    what="speed-up, a NIC for each device",
                    unit="times",
                    text=4.5,
                    here=one["flat ring"] / each["hierarchical"],
                ),
            ),
            cause="Two levels save much only where each device has a NIC of its own: each then sends an eighth.",
        ),
    )
