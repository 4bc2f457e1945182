"""C.11: 256 workers, 16 servers, 700 MB."""

from plesio_planning.studies.models.parameter_server import ParameterServer
from plesio_planning.studies.textbook.printed import Asking, Printed, rows_of

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Both times at 200 GB/s, and their ratio."""
    times_s = asking.defaults(ParameterServer).times_s
    return (
        Printed(
            place="solution",
            rows=rows_of(
                {"parameter server": 1750.0, "ring": 2.78},
                [1e3 * times_s["server"], 1e3 * times_s["ring"]],
                unit="ms",
            ),
            cause=(
                "Its own program, with 200 for 200 GB/s, gives 112 and 6.97 of its units; the printed times are of "
                "neither."
            ),
        ),
        Printed(
            place="solution",
            rows=rows_of({"server over ring": 629.0}, [times_s["server"] / times_s["ring"]], unit="times"),
            cause="The ratio is (N/S)·N/(N-1), whatever the bandwidth.",
        ),
    )
