"""Predicted beside measured: how far a model of a system is off, quantity by quantity."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Scale = Literal["relative", "points"]
"""An error is relative to what was measured, or the difference of two shares in percentage points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One quantity of one run.

    Attributes:
        setting: Which run: its policy, its task and what else distinguishes it, by name.
        scale: How its error is counted.
        predicted: Value by the model.
        baseline: Value by the simplest model that one would otherwise use.

    >>> share = Prediction(
    ...     setting={"policy": "bsp"}, quantity="wait share", scale="points", predicted=0.5, measured=0.25, baseline=1.0
    ... )
    >>> share.error, share.baseline_error
    (25.0, 75.0)
    """

    setting: Mapping[str, str]
    quantity: str
    scale: Scale
    predicted: float
    measured: float
    baseline: float

    @property
    def error(self) -> float:
        """Predicted against measured: a share of it, or percentage points."""
        return self._error(self.predicted)

    @property
    def baseline_error(self) -> float:
        """The same of the baseline."""
        return self._error(self.baseline)

    def _error(self, value: float) -> float:
        if self.scale == "points":
            return 100 * (value - self.measured)
        if self.measured == 0:
            return 0.0 if value == 0 else float("inf")
        return value / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        """Return a flat dictionary of JSON values, errors included."""
        values = asdict(self)
        setting = values.pop("setting")
        return {**setting, **values, "error": self.error, "baseline_error": self.baseline_error}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The errors of one quantity, without their signs; a share of what was measured, or percentage points."""

    quantity: str
    scale: Scale
    num_predictions: int
    median_error: float
    mean_error: float
    worst_error: float
    baseline_median_error: float
    baseline_mean_error: float
    baseline_worst_error: float


def summarise_predictions(predictions: Sequence[Prediction]) -> list[Summary]:
    """Return the median, mean and worst error of each quantity, in the order in which they come."""
    summaries = []
    for quantity in dict.fromkeys(prediction.quantity for prediction in predictions):
        of_it = [prediction for prediction in predictions if prediction.quantity == quantity]
        errors = [abs(prediction.error) for prediction in of_it]
        baseline = [abs(prediction.baseline_error) for prediction in of_it]
        summaries.append(
            Summary(
                quantity=quantity,
                scale=of_it[0].scale,
                num_predictions=len(of_it),
                median_error=statistics.median(errors),
                mean_error=statistics.fmean(errors),
                worst_error=max(errors),
                baseline_median_error=statistics.median(baseline),
                baseline_mean_error=statistics.fmean(baseline),
                baseline_worst_error=max(baseline),
            )
        )
    return summaries


def predictions_to_json(predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return all predictions, one object each, and their summary."""
    return {
        "rows": [prediction.to_json() for prediction in predictions],
        "summary": [asdict(summary) for summary in summarise_predictions(predictions)],
    }
