"""An exercise for each study: a question with a number, and the reason that its answer has.

The text's exercises ask a reader to predict before simulating. Here a study asks: the question has the study's own
inputs in it, the reader writes a number, and the study's answer is set beside it with the reason. Questions and reasons
are in ``exercises.toml``; the numbers are computed here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plesio.core.errors import ConfigError
from plesio.core.units import format_seconds, parse_seconds
from plesio_planning.studies.catalogue import find_study
from plesio_planning.studies.study import Asked
from plesio_planning.texts import read_texts

Unit = Literal["time", "%", "number"]

_RIGHT, _CLOSE = 1.1, 2.0
"""Factors up to which a prediction is right, and close."""
_RIGHT_POINTS, _CLOSE_POINTS = 3.0, 10.0
"""The same of a percentage, in points."""
_LARGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """A question that a study asks a reader.

    Attributes:
        question: With the names of inputs in braces.
        value: The number, of a study's answer: seconds, per cent or a number.
    """

    question: str
    unit: Unit
    value: Callable[[Any], float]
    reason: str

    def ask(self, asked: Asked) -> str:
        """Write the question with the study's inputs."""
        inputs = {one.name: one.format(asked.inputs[one.name]) for one in find_study(asked.study).inputs()}
        return self.question.format_map(inputs)

    def hint(self) -> str:
        """Say how a prediction is written.

        >>> EXERCISES["pipeline"].hint()
        'in per cent, as in 20'
        """
        return {"time": "with a unit, as in 120 ms", "%": "in per cent, as in 20", "number": "as in 1.5"}[self.unit]

    def read(self, text: str) -> float | None:
        """Read the number that somebody predicts; None where nothing is written.

        >>> EXERCISES["pipeline"].read("20 %"), EXERCISES["overlap"].read("5 ms"), EXERCISES["overlap"].read("")
        (20.0, 0.005, None)
        >>> EXERCISES["consistency"].read("20 %"), EXERCISES["consistency"].read("1.5x")
        (0.2, 1.5)

        Raises:
            ConfigError: It is no number of this unit.
        """
        text = text.strip()
        if not text:
            return None
        if self.unit == "time":
            return parse_seconds(text)
        try:
            share = text.endswith("%") and self.unit == "number"
            value = float(text.removesuffix("%").removesuffix("x")) / (100 if share else 1)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise ConfigError(f'"{text}" is no prediction; write a number of 0 or more, {self.hint()}')
        return value

    def judge(self, predicted: float | None, asked: Asked) -> str:
        """Write the answer, and how far a prediction is from it."""
        value = self.value(asked.answer)
        shown = f"It is {self._format(value)}."
        if predicted is None:
            return shown
        if self.unit == "%":
            apart = abs(predicted - value)
            grade = _grade(apart, right=_RIGHT_POINTS, close=_CLOSE_POINTS)
            return f"{shown} You said {self._format(predicted)}: {grade}, {apart:.1f} points off."
        low, high = sorted((predicted, value))
        times = high / low if low > 0 else (1.0 if high == low else math.inf)
        grade = _grade(times, right=_RIGHT, close=_CLOSE)
        return f"{shown} You said {self._format(predicted)}: {grade}, {times:.3g} times apart."

    def _format(self, value: float) -> str:
        if self.unit == "time":
            return format_seconds(value)
        if self.unit == "%":
            return f"{value:.1f} %"
        return f"{value:,.0f}" if value >= _LARGE else f"{value:.3g}"


def _grade(apart: float, *, right: float, close: float) -> str:
    return "right" if apart <= right else "close" if apart <= close else "far off"


def _saved_by_inverse(answer: Any) -> float:
    asked = answer.tuned[0].staleness
    (inverse,) = (one for one in answer.tuned if (one.staleness, one.weighting) == (asked, "inverse"))
    return float(100 * inverse.saved)


_ANSWERS: Mapping[str, Callable[[Any], float]] = {
    "data-parallel": lambda answer: 100 * answer.at.efficiency,
    "stragglers": lambda answer: answer.cost,
    "bounded-staleness": lambda answer: answer.total / answer.points[0].best_iterations,
    "collectives": lambda answer: answer.total,
    "pipeline": lambda answer: 100 * answer.at.bubble,
    "compression": lambda answer: answer.dense.total_s / answer.best.total_s,
    "local-sgd": lambda answer: answer.best.period,
    "load-balancing": lambda answer: answer.gain.ratio,
    "loss-scaling": lambda answer: 1 / run.steady if (run := answer.runs["by interval"]).steady else math.inf,
    "overlap": lambda answer: answer.best.exposed_s,
    "parameter-server": lambda answer: answer.model.server_s / answer.model.ring_s,
    "mixture-of-experts": lambda answer: answer.at.load,
    "staleness-weighting": _saved_by_inverse,
    "checkpointing": lambda answer: answer.best_s,
    "batch-scaling": lambda answer: answer.critical_batch,
    "consistency": lambda answer: answer.at.gain,
    "tensor-parallel": lambda answer: 100 * answer.at.share,
    "hierarchical": lambda answer: answer.times_s["flat ring"] / answer.total,
    "determinism": lambda answer: answer.total,
    "time-to-train": lambda answer: answer.total,
    "goodput": lambda answer: 100 * next(way.share for way in answer.ways if way.name == "elastic"),
}
"""The number that an exercise asks for, of the answer of the study of this name."""

EXERCISES: Mapping[str, Exercise] = {
    name: Exercise(**texts, value=_ANSWERS[name]) for name, texts in read_texts("exercises").items()
}
"""By name of the study."""
