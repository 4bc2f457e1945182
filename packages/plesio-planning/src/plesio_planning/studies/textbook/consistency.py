"""C.16: 50 ms of computing and 100 ms of communicating."""

from plesio_planning.studies.models.consistency import Consistency
from plesio_planning.studies.textbook.printed import Asking, Printed, Row

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Asynchronous and local SGD beside synchronous training, in time to the target."""
    answer = asking.at(Consistency, ratio=2.0, cv=0.0, ratios=(2.0,), cvs=(0.0,), slowdowns=(1.0,))
    time_s = {family: answer.at.best_of(family).time_s for family in ("BSP", "SSP", "local SGD")}
    return (
        Printed(
            place="solution",
            rows=(
                Row(what="bounded staleness over BSP", text=225.0 / 150.0, here=time_s["SSP"] / time_s["BSP"]),
                Row(what="local SGD over BSP", text=75.0 / 150.0, here=time_s["local SGD"] / time_s["BSP"]),
            ),
            cause=(
                "It sets the iterations by hand, 1.5 and 1.25 times as many; here they follow from the staleness and "
                "the drift of eight workers, which take the same steps of 50 ms and exchange of 100 ms."
            ),
        ),
    )
