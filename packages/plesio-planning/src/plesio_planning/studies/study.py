"""The interface of a study: a question, typed inputs, and a typed answer that can be shown.

A study is a function with keyword arguments, whose names carry their units and whose defaults give the reference
values, and a frozen dataclass that it returns. Everything else follows from these two: the options of ``plesio study
NAME`` (`plesio.core.inputs`), the tables, the page, the pictures and the JSON file (`plesio_planning.report.study`).
A study refuses an input that is out of range with a `ConfigError`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from plesio.core.charts import Chart, Table
from plesio.core.records import to_json


class Answer(ABC):
    """The answer of a study; subclasses are frozen dataclasses, whose fields are its numbers.

    Attributes:
        unit: Unit of ``total`` and ``parts``: ``s``, ``B``, ``iterations`` ...
    """

    __slots__ = ()
    unit: ClassVar[str]

    @property
    @abstractmethod
    def finding(self) -> str:
        """The answer in one or two sentences, with its numbers and their units."""

    @property
    @abstractmethod
    def total(self) -> float:
        """The number that the question asks for."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, float]:
        """The parts of ``total`` by name; they add up to it."""

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """Return the answer's tables, the most important first; at least one."""

    @abstractmethod
    def charts(self) -> Sequence[Chart]:
        """Return the answer's pictures, the most important first; at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A study's name and question, what it was asked with, and the answer."""

    study: str
    question: str
    inputs: Mapping[str, Any]
    answer: Answer

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values; the answer's fields are under ``values``."""
        return {
            "study": self.study,
            "question": self.question,
            "inputs": to_json(self.inputs),
            "finding": self.answer.finding,
            "unit": self.answer.unit,
            "total": to_json(self.answer.total),
            "parts": to_json(self.answer.parts),
            "values": to_json(self.answer),
        }
