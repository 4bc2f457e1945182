"""The results of measuring the subject of a study."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from plesio.core.charts import Chart
from plesio.core.predictions import Prediction, Scale, predictions_to_json
from plesio.core.units import counted

_TIE = 0.02
"""A choice that costs less than this share is as good as the best: repeats differ by more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledChoice:
    """Which of several ways the model takes for the best, and which one is.

    Attributes:
        where: Setting that the ways have in common.
        quantity: Quantity whose least value is the best.
        modelled: The way that the model would choose.
        measured: The best, as measured.
        cost: Excess of the model's choice over the best one, as measured; a share.
    """

    where: Mapping[str, str]
    quantity: str
    modelled: str
    measured: str
    cost: float

    @property
    def wrong(self) -> bool:
        """True if the choice costs something that repeats would show again."""
        return self.cost > _TIE


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which of a study's inputs a measurement has, and which not; by option.

    Attributes:
        taken: Inputs of the measurement.
        found: Inputs that are measured instead of given.
        left_out: Inputs that are no part of it, and why where somebody asked for them.
    """

    taken: Mapping[str, str] = field(default_factory=dict)
    found: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The facts that a reader needs to compare the measurement with the study."""
        told = []
        if self.taken:
            told.append(f"Measured with {', '.join(f'{option} {value}' for option, value in self.taken.items())}.")
        if self.found:
            told.append(f"Measured instead of given: {', '.join(self.found)}.")
        if self.left_out:
            names = ", ".join(f"{option} ({why})" if why else option for option, why in self.left_out.items())
            told.append(f"Left out of the measurement: {names}.")
        return tuple(told)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of a machine beside the study's model.

    Attributes:
        finding: How far the model is off, in one or two sentences.
        setting: Runs, their machine, and their number.
        predictions: Modelled beside measured; the baseline is the simplest model that one would otherwise use.
        charts: Measured points over modelled lines.
        rivals: The name in the predictions' settings of what one chooses among, the least measured being the best; none
            where there is nothing to choose.
        scope: Which of the study's inputs it has.
    """

    study: str
    finding: str
    setting: str
    predictions: tuple[Prediction, ...]
    charts: tuple[Chart, ...]
    rivals: str = ""
    scope: Scope = Scope()

    @property
    def worst(self) -> tuple[Prediction, ...]:
        """The prediction of each quantity that is furthest off."""
        by_quantity: dict[str, list[Prediction]] = {}
        for one in self.predictions:
            by_quantity.setdefault(one.quantity, []).append(one)
        return tuple(max(each, key=lambda one: abs(one.error)) for each in by_quantity.values())

    @property
    def choices(self) -> tuple[ModelledChoice, ...]:
        """The model's choices among the rivals, and the best ones, wherever several were measured."""
        return tuple(self._choices())

    def _choices(self) -> Iterator[ModelledChoice]:
        groups: dict[tuple[Any, ...], list[Prediction]] = {}
        for one in self.predictions:
            if self.rivals in one.setting and one.scale == "relative":
                others = tuple((name, value) for name, value in one.setting.items() if name != self.rivals)
                groups.setdefault((one.quantity, others), []).append(one)
        for (quantity, where), rivals in groups.items():
            if len(rivals) > 1:
                chosen, best = min(rivals, key=lambda one: one.predicted), min(rivals, key=lambda one: one.measured)
                yield ModelledChoice(
                    where=dict(where),
                    quantity=quantity,
                    modelled=chosen.setting[self.rivals],
                    measured=best.setting[self.rivals],
                    cost=chosen.measured / best.measured - 1,
                )

    @property
    def remarks(self) -> tuple[str, ...]:
        """The worst errors, wrong choices, and which inputs the measurement has: a sentence for each."""
        told = []
        if self.predictions:
            worst = ", ".join(
                f"{one.quantity} {error_text(one.error, one.scale)}{_where(one.setting)}" for one in self.worst
            )
            told.append(f"Furthest off: {worst}.")
        choices = self.choices
        if choices:
            wrong = sorted((one for one in choices if one.wrong), key=lambda one: -one.cost)
            told.append(
                f"The model chooses the best {self.rivals} in {len(choices) - len(wrong)} of "
                f"{counted(len(choices), 'case')}"
                + "".join(
                    f"; it takes {one.modelled} where {one.measured} is best{_where(one.where)}, "
                    f"which costs {100 * one.cost:.0f} %"
                    for one in wrong
                )
                + "."
            )
        return (*told, *self.scope.sentences)

    def to_json(self) -> dict[str, Any]:
        """Return all of it but the charts."""
        return {
            "finding": self.finding,
            "setting": self.setting,
            "remarks": list(self.remarks),
            **predictions_to_json(self.predictions),
        }


def error_text(error: float, scale: Scale) -> str:
    """Write an error with its sign, in percent or in percentage points.

    >>> error_text(0.125, "relative")
    '+12.5 %'
    """
    return f"{error:+.1f} points" if scale == "points" else f"{100 * error:+.1f} %"


def _where(setting: Mapping[str, str]) -> str:
    return f" ({', '.join(f'{name} {value}' for name, value in setting.items())})" if setting else ""
