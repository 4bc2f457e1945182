"""C.14: checkpoints of 5 min, a failure every 21 h."""

from plesio_planning.studies.models.checkpointing import Checkpointing
from plesio_planning.studies.textbook.printed import Asking, Printed, Row

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """The best interval, and the work that a failure loses."""
    best = asking.defaults(Checkpointing, num_runs=2)
    young = asking.at(Checkpointing, checkpoint_interval_s=best.young_s, num_runs=2)
    often = asking.at(Checkpointing, checkpoint_interval_s=1800.0, num_runs=2)
    return (
        Printed(
            place="solution",
            rows=(Row(what="best interval by Young", unit="min", text=112.3, here=best.young_s / 60),),
            cause="The same; the exact optimum is 108.9 min.",
        ),
        Printed(
            place="solution",
            rows=(
                Row(what="work lost a failure, 112.3 min", unit="min", text=37.5, here=young.lost_s / 60),
                Row(what="work lost a failure, 30 min", unit="min", text=0.58, here=often.lost_s / 60),
            ),
            cause=(
                "A failure loses half an interval with its checkpoint, a little less "
                "since early ones are likelier. Its program's 2√(MC) is 159 min, its 37.5 a third of the interval, and "
                f"its 0.58 is (30 + 5) over 60, where the program adds 300 s to 30: {(30 + 300) / 60:.1f}."
            ),
        ),
    )
