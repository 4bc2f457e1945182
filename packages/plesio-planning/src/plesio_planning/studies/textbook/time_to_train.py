"""C.20: 70 billion parameters on 256 A100."""

from plesio_planning.studies.models.time_to_train import TimeToTrain
from plesio_planning.studies.textbook.printed import Asking, Printed, Row

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """The days, and its program's own computing time of an iteration."""
    answer = asking.defaults(TimeToTrain, num_runs=2)
    own_ms = 1e3 * 6 * 70e9 / (312e12 * 256)
    return (
        Printed(
            place="solution",
            rows=(Row(what="the whole run", unit="days", text=8.1, here=answer.total / 86_400),),
            cause=(
                "Its FLOPs are those of one token an iteration: no batch and no number of tokens is in it. 1.4·10¹² "
                "tokens at 40 % of the peak take 213 days, and failures and checkpoints a little more."
            ),
        ),
        Printed(
            place="solution",
            rows=(
                Row(what="computing in an iteration", unit="ms", text=400.0, here=own_ms),
                Row(
                    what="its million iterations, its other costs included",
                    unit="days",
                    text=8.1,
                    here=1e6 * (own_ms / 1e3 + 0.028 + 0.015 + 0.010 + 0.005) / 86_400,
                ),
            ),
            cause=(
                "Its program multiplies to 5.3 µs for a token; the printed shares, with 107 ms of a part it does not "
                "have, do not."
            ),
            by="its own formula",
        ),
    )
