"""C.5: eight stages of GPT-3, by micro-batches."""

from plesio_planning.studies.models.pipeline import Pipeline
from plesio_planning.studies.textbook.printed import Asking, Printed, rows_of

__all__ = ["printed"]

_BUBBLES = {1: 87.5, 2: 77.8, 4: 58.3, 8: 43.8, 16: 30.4, 32: 17.9}
_RIGHT = (1, 2, 16, 32)
_MEMORY_GB = {1: 1.5, 32: 48.0}


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Bubble and activations."""
    answer = asking.at(Pipeline, schedule="gpipe", recomputation="none", tp=1)
    points = (point for point in answer.points if (point.schedule, point.recomputation) == ("gpipe", "none"))
    at = {point.num_micro_batches: point for point in points}
    bubbles = {count: 100 * at[count].bubble for count in _BUBBLES}
    return (
        Printed(
            place="solution",
            rows=rows_of(
                {f"bubble, m = {count}": _BUBBLES[count] for count in _RIGHT},
                [bubbles[count] for count in _RIGHT],
                unit="%",
            ),
            cause="The same: (p-1)/(m+p-1).",
        ),
        Printed(
            place="solution",
            rows=rows_of(
                {f"bubble, m = {count}": text for count, text in _BUBBLES.items() if count not in _RIGHT},
                [each for count, each in bubbles.items() if count not in _RIGHT],
                unit="%",
            ),
            cause=(
                "Its formula gives 7/11 and 7/15 here; 58.3 is 7/12 and 43.8 is 7/16, with a place too many below the"
                " line."
            ),
        ),
        Printed(
            place="solution",
            rows=rows_of(
                {f"activations, m = {count}": text for count, text in _MEMORY_GB.items()},
                [at[count].activation_bytes / 1e9 for count in _MEMORY_GB],
                unit="GB",
            ),
            cause=(
                "A stage has 12 layers of 2.87 GB for one sequence of 2048 tokens; 1.5 GB are half of one layer's. It"
                " counts no attention scores, and divides by nothing that it names."
            ),
        ),
    )
