"""C.13: weights 1/(1+τ) against one small step, staleness up to 20."""

from plesio_planning.studies.models.staleness_weighting import StalenessWeighting
from plesio_planning.studies.textbook.printed import Asking, Printed, Row

__all__ = ["printed"]


def printed(asking: Asking) -> tuple[Printed, ...]:
    """The small step, what weighting costs, and how much better it is."""
    from plesio_planning.studies.models.bounded_staleness import bounded_staleness

    answer = asking.defaults(StalenessWeighting)
    by_name = {each.name: each for each in answer.untuned}
    small, inverse = by_name["small"], by_name["inverse"]
    fresh = bounded_staleness(stalenesses=(0,), num_trials=1, num_dimensions=2).points[0].best_iterations
    return (
        Printed(
            place="solution",
            rows=(Row(what="one step for all, over 1/L", unit="%", text=4.8, here=100 * small.step),),
            cause="The same: 1/21.",
        ),
        Printed(
            place="solution",
            rows=(
                Row(
                    what="weighted, over fresh gradients",
                    unit="times",
                    text=1.5,
                    here=inverse.iterations.mean / fresh,
                ),
                Row(
                    what="one small step over weighted",
                    unit="times",
                    text=13.8,
                    here=small.iterations.mean / inverse.iterations.mean,
                ),
            ),
            cause=(
                "It takes 21 for the small step and 1.5 from the literature, and divides (to 14); on the quadratic (κ"
                " = 100, staleness uniform in 0..20) both follow from the steps."
            ),
        ),
    )
