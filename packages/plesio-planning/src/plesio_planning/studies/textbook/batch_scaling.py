"""C.15: learning rates and accuracies of five batch sizes."""

from plesio_planning.studies.textbook.printed import Asking, Printed, rows_of

__all__ = ["printed"]

_RATES = {256: 0.1, 512: 0.2, 2048: 0.8, 8192: 3.2, 32768: 12.8}
_ACCURACIES = {256: 76.5, 512: 76.5, 2048: 76.5, 8192: 75.5, 32768: 70.0}


def printed(asking: Asking) -> tuple[Printed, ...]:
    """Its two columns, which no training stands behind."""
    accuracies = {batch: 76.5 - max(0.0, (batch / 4096 - 1) * 2) for batch in _ACCURACIES}
    small, large = (256, 512, 2048), (8192, 32768)
    return (
        Printed(
            place="solution",
            rows=rows_of(
                {f"learning rate, B = {batch:,}": text for batch, text in _RATES.items()},
                [0.1 * batch / 256 for batch in _RATES],
            ),
            cause=(
                "The same: in proportion to the batch. Which of these rates still converge is what the study measures."
            ),
            by="its own formula",
        ),
        Printed(
            place="solution",
            rows=rows_of(
                {f"accuracy, B = {batch:,}": _ACCURACIES[batch] for batch in small},
                [accuracies[batch] for batch in small],
                unit="%",
            ),
            cause="The same, for its curve is level up to 4096 samples by assumption.",
            by="its own formula",
        ),
        Printed(
            place="solution",
            rows=rows_of(
                {f"accuracy, B = {batch:,}": _ACCURACIES[batch] for batch in large},
                [accuracies[batch] for batch in large],
                unit="%",
            ),
            cause=(
                "Its program takes two points off for each 4096 samples beyond the first; the printed table has half "
                "of that, and nothing was trained for either."
            ),
            by="its own formula",
        ),
    )
