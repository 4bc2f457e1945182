"""C.4: ring and tree of 256 ranks, 10 µs and 50 GB/s."""

from plesio_planning.studies.models.collectives import Collectives, Links
from plesio_planning.studies.textbook.printed import Asking, Printed, Row, rows_of

__all__ = ["printed"]

_RING_MS = {1: 51.2, 10: 110.3, 100: 820.1, 500: 4100.5, 1000: 8200.9}
_TREE_MS = {1: 126.4, 10: 134.5, 100: 140.2, 500: 150.3, 1000: 160.4}


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Where the two cross, and both times by size."""
    answer = asking.defaults(Collectives, other_ranks=())
    return (
        Printed(
            place="solution",
            rows=(Row(what="ring and tree cross", unit="MB", text=125.4, here=answer.ring_from_bytes[256] / 1e6),),
            cause="Its own table has the ring slower from 100 MB on, the wrong way round: rings win large messages.",
        ),
        Printed(
            place="solution",
            rows=rows_of(
                {f"ring, {size} MB": text for size, text in _RING_MS.items()},
                [_time_ms(answer.links, "ring", size) for size in _RING_MS],
                unit="ms",
            ),
            cause="8.2 ms for each MB are 0.12 GB/s; at 50 GB/s a ring sends a MB in 0.04 ms and waits 5.1 ms in all.",
        ),
        Printed(
            place="solution",
            rows=rows_of(
                {f"tree, {size} MB": text for size, text in _TREE_MS.items()},
                [_time_ms(answer.links, "tree", size) for size in _TREE_MS],
                unit="ms",
            ),
            cause="A tree's 16 levels wait 0.16 ms, not 126, and each sends the whole message: 20 ms a level at 1 GB.",
        ),
    )


def _time_ms(links: Links, algorithm: str, size_mb: float) -> float:
    return 1e3 * links.all_reduce_s(algorithm, size_mb * 1e6, num_ranks=256)
