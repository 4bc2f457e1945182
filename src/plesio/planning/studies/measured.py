"""What was found when the subject of a study was measured."""

from dataclasses import dataclass
from typing import Any

from plesio.core.charts import Chart
from plesio.core.predictions import Prediction, predictions_to_json

__all__ = ["Measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a machine did where the study says what it should do.

    Attributes:
        study: Its name.
        finding: How far the model is off, in one or two sentences.
        setting: What was run, on what, how often.
        predictions: Modelled beside measured; the baseline is the simplest model that one would otherwise use.
        charts: Measured points over modelled lines.
    """

    study: str
    finding: str
    setting: str
    predictions: tuple[Prediction, ...]
    charts: tuple[Chart, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it but the charts."""
        return {"finding": self.finding, "setting": self.setting, **predictions_to_json(self.predictions)}
