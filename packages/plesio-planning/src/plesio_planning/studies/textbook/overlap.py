"""C.10: 96 layers of 5 ms in buckets."""

from plesio_planning.studies.models.overlap import Overlap
from plesio_planning.studies.textbook.printed import Asking, Printed, Row, rows_of

__all__ = ["printed"]

_TIMES_MS = {1: 1100.0, 2: 650.0, 4: 450.0, 8: 320.0, 12: 280.0, 16: 270.0, 24: 320.0, 48: 450.0}


def printed(asking: Asking) -> tuple[Printed, ...]:
    """The end of the last all-reduce by layers in a bucket."""
    answer = asking.defaults(Overlap)
    return (
        Printed(
            place="solution",
            rows=rows_of(
                {f"buckets of {count} layers": text for count, text in _TIMES_MS.items()},
                [1e3 * answer.by_layers[count].end_s for count in _TIMES_MS],
                unit="ms",
            ),
            cause=(
                "96 layers of 5 ms take 480 ms by themselves, so six of its eight times are shorter than computing "
                "alone."
            ),
        ),
        Printed(
            place="solution",
            rows=(Row(what="best bucket", unit="layers", text=16.0, here=float(answer.best_layers)),),
            cause=(
                "A ring's latency of 5.1 ms is all that small buckets cost, so two layers are enough to hide the rest."
            ),
        ),
    )
