"""Figures of the settings that a review has compared, and of a trial that ended in it, as the log keeps them.

They stand in `Decision.inputs`, which are numbers by name: ``local_sgd:8.step_s`` is the seconds of a step under
``local_sgd:8``, and ``trial.excess`` how far the loss was above the one to be expected.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSetting:
    """A setting as it was compared; intervals are ``caution`` standard deviations to either side.

    Attributes:
        spec: Its policy.
        step_s: Predicted seconds of a step.
        worth_low: A step's worth in steps of BSP: the lower end.
        worth_high: The same: the upper end.
        score: Logarithm of progress per second over BSP's at the lower end, with lost steps counted; the highest is
            chosen.
    """

    spec: str
    step_s: float
    worth_low: float
    worth_high: float
    score: float

    @property
    def progress_per_s(self) -> tuple[float, float]:
        """Both ends of the progress per second, in steps of BSP."""
        return self.worth_low / self.step_s, self.worth_high / self.step_s

    @property
    def inputs(self) -> dict[str, float]:
        """The figures by the names under which a decision keeps them."""
        return {f"{self.spec}.{name}": getattr(self, name) for name in _FIGURES}


_FIGURES = tuple(one.name for one in fields(ComparedSetting) if one.name != "spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnd:
    """The end of a trial.

    Attributes:
        excess: Mean of loss less the loss to be expected.
        most: The excess above which it failed.
        worth_low: A step's worth in steps of BSP as measured: the lower end; None if too little was to fall for it.
        worth_high: The same: the upper end.
    """

    excess: float
    most: float
    worth_low: float | None = None
    worth_high: float | None = None

    @property
    def failed(self) -> bool:
        """True if the change was taken back."""
        return self.excess > self.most

    @property
    def inputs(self) -> dict[str, float]:
        """The figures by the names under which a decision keeps them."""
        figures = {one.name: getattr(self, one.name) for one in fields(self)}
        return {f"trial.{name}": value for name, value in figures.items() if value is not None}


def compared_in(inputs: Mapping[str, float]) -> list[ComparedSetting]:
    """Return the settings that a decision was made from, best first."""
    specs = [name.removesuffix(".score") for name in inputs if name.endswith(".score")]
    found = [
        ComparedSetting(spec=spec, **{name: inputs[f"{spec}.{name}"] for name in _FIGURES})
        for spec in specs
        if all(f"{spec}.{name}" in inputs for name in _FIGURES)
    ]
    return sorted(found, key=lambda one: -one.score)


def trial_end_in(inputs: Mapping[str, float]) -> TrialEnd | None:
    """Return the end of the trial that ended in a review, if one did."""
    if "trial.excess" not in inputs:
        return None
    names = [one.name for one in fields(TrialEnd)]
    return TrialEnd(**{name: inputs[f"trial.{name}"] for name in names if f"trial.{name}" in inputs})
