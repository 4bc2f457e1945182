"""C.1: 256 workers, 700 MB, 125 ms of computing."""

from plesio_planning.studies.models.data_parallel import DataParallel
from plesio_planning.studies.textbook.printed import Asking, Printed, Row, rows_of

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """The iteration, its ring, and the size at which ring and tree cross."""
    from plesio_planning.studies.models.collectives import collectives

    text = asking.at(DataParallel, forward_s=0.05, backward_s=0.075)
    crossing = collectives(bytes_per_s=50e9, other_ranks=())
    slow = collectives(message_bytes=700e6, bytes_per_s=25e9, other_ranks=())
    return (
        Printed(
            place="solution",
            rows=(
                Row(what="iteration", unit="ms", text=153.42, here=1e3 * text.total),
                Row(what="ring all-reduce", unit="ms", text=28.0, here=1e3 * text.at.all_reduce_s),
                Row(what="communication", unit="%", text=18.0, here=100 * text.at.all_reduce_s / text.total),
            ),
            cause="28 ms are 700 MB once at 25 GB/s; a ring sends nearly twice that, and waits 510 times 10 µs.",
        ),
        Printed(
            place="solution",
            rows=(
                Row(what="efficiency", unit="%", text=45.2, here=100 * text.at.efficiency),
                Row(what="speed-up", text=115.4, here=text.at.speedup),
            ),
            cause="Its own 125 ms of 153.42 ms are 81.5 %, and 208 times one worker; no model gives its 45.2 %.",
        ),
        Printed(
            place="in depth",
            rows=(Row(what="tree all-reduce", unit="ms", text=22.1, here=1e3 * slow.at_s["tree"]),),
            cause="A tree sends all of the message at each of its 16 levels, so at 700 MB it cannot beat a ring.",
        ),
        Printed(
            place="in depth",
            rows=rows_of(
                {"ring and tree cross, 50 GB/s": 125.0, "the same, by its formula": 16.0},
                [crossing.ring_from_bytes[256] / 1e6] * 2,
                unit="MB",
            ),
            cause=(
                "The formula αBN/log₂N leaves out what the ring sends and what the tree waits; 125 MB follow from "
                "nothing."
            ),
        ),
    )
